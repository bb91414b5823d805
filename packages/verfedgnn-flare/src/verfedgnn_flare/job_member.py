"""What the controller and the executor of a job share: their identity, their cells, and FLARE's log."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.f3.cellnet.fqcn import FQCN

from verfedgnn.core.errors import ConfigError, VerFedGNNError
from verfedgnn.core.files import write_bytes, writing
from verfedgnn.federation.agreement import Agreement
from verfedgnn.federation.certificates import short_fingerprint
from verfedgnn.federation.event_log import EVENTS, event_text
from verfedgnn_flare.site_settings import SiteSettings, read_site_settings

TASK = "verfedgnn"
"""Name of the one task of a job, which lasts as long as the training."""
SERVER_CELL = "server_cell"
"""Field of the task: the name of the coordinator's cell, which differs between a simulation and a deployment."""
_PRIVATE_FIELDS = ("own_valid_error",)
"""Fields of a party's events that stay out of FLARE's log, because a job can stream logs to the server."""


def load_settings(fl_ctx: FLContext, site: str) -> SiteSettings:
    """Return the settings of this site, and set the number of threads."""
    settings = read_site_settings(_local_folder(fl_ctx), site)
    if settings.threads:
        torch.set_num_threads(settings.threads)
    return settings


def write_failure(fl_ctx: FLContext, error: VerFedGNNError) -> Path:
    """Write why this site failed into its folder `local`, which stays at the site, and return the file."""
    file = _local_folder(fl_ctx) / "verfedgnn-failure.txt"
    with writing(file):
        write_bytes(file, f"{datetime.now(UTC).isoformat(timespec='seconds')}  {error}\n".encode())
    return file


def _local_folder(fl_ctx: FLContext) -> Path:
    return Path(fl_ctx.get_engine().get_workspace().get_site_config_dir())


def check_agreement(agreement: Agreement, wanted: str) -> None:
    """Raise `ConfigError` if this site's agreement is not the one with the fingerprint in the job."""
    held = short_fingerprint(agreement.digest())
    if held != wanted:
        raise ConfigError(
            f"the job is for the agreement {wanted}, but this site holds {held}; "
            "compare federation.toml with the other members"
        )


def job_cell(fqcn: str, job: str) -> str:
    """Return the name of a job's cell at a site whose own cell is `fqcn`."""
    return str(FQCN.join([fqcn, job]))


def log_to_flare(private: Sequence[str] = _PRIVATE_FIELDS) -> None:
    """Send the events of the federation to FLARE's log, with their fields but without private ones."""
    EVENTS.setLevel(logging.INFO)
    EVENTS.propagate = True
    EVENTS.handlers = []
    EVENTS.filters = [_FoldFields(private)]


class _FoldFields(logging.Filter):
    """A filter that writes the fields of an event into its text, since FLARE's formatters show the text only."""

    def __init__(self, private: Sequence[str]) -> None:
        super().__init__()
        self._private = private

    def filter(self, record: logging.LogRecord) -> bool:
        fields = getattr(record, "fields", {})
        record.msg = event_text(
            record.getMessage(), {key: value for key, value in fields.items() if key not in self._private}
        )
        record.args = ()
        return True

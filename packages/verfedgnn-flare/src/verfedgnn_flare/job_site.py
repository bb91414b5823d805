"""A site of a job: what it keeps to itself, and what the controller and the executor share of their cells and FLARE's log.

`local/verfedgnn.toml` in its FLARE workspace names its federation folder and its data. Nothing of it is part of a job. In it,
`{site}` is replaced by the name of the site, so that one file can serve all sites of a simulation.
"""

from __future__ import annotations

import json
import logging
import time
import tomllib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import tomli_w
import torch
import typer
from nvflare.apis.fl_context import FLContext
from nvflare.apis.signal import Signal
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.widgets.info_collector import GroupInfoCollector, InfoCollector
from pydantic import Field, ValidationError

from verfedgnn.cli.night_command import NightRules, hold_night
from verfedgnn.config.sections import Section
from verfedgnn.config.tree import explain_invalid
from verfedgnn.core.errors import ConfigError, Interrupted, RunError, VerFedGNNError
from verfedgnn.core.files import write_bytes, writing
from verfedgnn.federation.agreement import Agreement
from verfedgnn.federation.certificates import short_fingerprint
from verfedgnn.federation.event_log import EVENTS, event_text, log_event
from verfedgnn.runs.nights import DONE

SITE_FILE = "verfedgnn.toml"
ALLOWED_CLASSES = (
    "verfedgnn_flare.controller.FederationController",
    "verfedgnn_flare.executor.PartyExecutor",
)
"""Classes of a job that a site must allow in `class_allow_list`."""
_RESOURCES = "resources.json"


class SiteSettings(Section):
    """Where a site has its federation folder, its ratings and its run folder, and how it computes."""

    federation: Path
    """Folder with federation.toml and the private key: `key.pem` of a party, `coordinator.key` at FLARE's server."""
    ratings: str | None = None
    """Ratings of a party: a file or a folder; FLARE's server has none."""
    out: Path | None = None
    """Run folder, resumed if it exists. Default: run, in the federation folder."""
    reading: list[tuple[str, str]] = Field(default_factory=list)
    """Options for reading the ratings, as in `verfedgnn party`: `[["columns", "user=uid"], ["read", "scale=1,5"]]`."""
    device: str = "cpu"
    """Name of the device on which the party computes, such as cpu or cuda."""
    threads: int = Field(1, ge=0)
    """CPU threads; 0 means all cores."""
    after: Path | None = None
    """Run folder of a party's training before this one."""
    nights: Path | None = None
    """Folder of the nights, instead of `out` and `after`: every job trains in a folder named after the day."""

    @property
    def run_folder(self) -> Path:
        """The folder that holds the run of this site."""
        return self.out or self.federation / "run"


def read_site_settings(local: Path, site: str) -> SiteSettings:
    """Return the settings of a site from the folder `local` of its FLARE workspace."""
    file = local / SITE_FILE
    try:
        values = tomllib.loads(file.read_text("utf-8").replace("{site}", site))
    except FileNotFoundError:
        raise ConfigError(
            f"{site} has no {file}; create it with `verfedgnn flare site WORKSPACE --federation FOLDER`"
        ) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot read {file}: {error}") from None
    try:
        return SiteSettings.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{file}: {explain_invalid(error)}") from None


def prepare_site(workspace: Path, settings: dict[str, Any]) -> Path:
    """Write the settings of a site into its FLARE workspace and allow the classes of a job there; return the file.

    The site's `resources.json` is written if there is only FLARE's `resources.json.default`, which stays as it is.
    """
    local = workspace / "local"
    if not local.is_dir():
        raise ConfigError(f"{workspace} is no FLARE workspace: it has no folder 'local'")
    try:
        SiteSettings.model_validate(settings)
    except ValidationError as error:
        raise ConfigError(explain_invalid(error)) from None
    resources = {"format_version": 2}
    for file in (local / f"{_RESOURCES}.default", local / _RESOURCES):
        try:
            resources = json.loads(file.read_text("utf-8"))
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot read {file}: {error}") from None
    allow_classes(resources)
    with writing(local):
        write_bytes(local / _RESOURCES, json.dumps(resources, indent=2).encode())
        write_bytes(local / SITE_FILE, tomli_w.dumps(settings).encode())
    return local / SITE_FILE


def allow_classes(resources: dict[str, Any]) -> None:
    """Add the classes of a job to `class_allow_list` of a site's resources, which replaces FLARE's default list."""
    from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST

    allowed = resources.setdefault("class_allow_list", list(DEFAULT_CLASS_ALLOW_LIST))
    allowed += [name for name in ALLOWED_CLASSES if name not in allowed]


# -- what the controller and the executor of a job share -----------------------------------------------

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


def hold_nights(
    settings: SiteSettings,
    role: str,
    abort: Signal,
    train: Callable[[SiteSettings, Callable[[], bool]], None],
) -> None:
    """Train as `settings` say; with `nights`, first the night that was begun before, then tonight's, as `verfedgnn night` does.

    `train` gets settings with the run folder, and what says whether to stop.
    """
    if settings.nights is None:
        train(settings, lambda: bool(abort.triggered))
        return

    def try_night(place: Path, current: Path, seconds: float) -> tuple[int, str]:
        after = current if role == "party" and current.exists() else None
        due = time.monotonic() + seconds
        try:
            tonight = settings.model_copy(update={"out": place, "after": after})
            train(tonight, lambda: abort.triggered or time.monotonic() > due)
        except VerFedGNNError as error:
            return error.exit_code, str(error)
        return 0, ""

    today, reached = time.strftime("%Y-%m-%d"), False
    while not reached:
        try:
            night = hold_night(settings.nights, role, try_night, "", NightRules(today))
        except typer.Exit:
            raise RunError(f"another night is running in {settings.nights}") from None
        log_event("night", night=night.night, result=night.result)
        if night.result == "stopped":
            raise Interrupted(f"night {night.night} stopped: {night.reason}")
        if night.result not in DONE or night.result == "given up":
            raise RunError(f"night {night.night} {night.result}: {night.reason}")
        reached = night.night == today


def write_failure(fl_ctx: FLContext, error: VerFedGNNError) -> Path:
    """Write why this site failed into its folder `local`, which stays at the site, and return the file."""
    file = _local_folder(fl_ctx) / "verfedgnn-failure.txt"
    with writing(file):
        write_bytes(file, f"{datetime.now(UTC).isoformat(timespec='seconds')}  {error}\n".encode())
    return file


def report_status(event_type: str, fl_ctx: FLContext, status: dict[str, Any]) -> None:
    """Report a status if this is the event in which FLARE collects statistics."""
    if event_type == InfoCollector.EVENT_TYPE_GET_STATS:
        collector = fl_ctx.get_prop(InfoCollector.CTX_KEY_STATS_COLLECTOR)
        if isinstance(collector, GroupInfoCollector):
            collector.set_info(group_name="verfedgnn", info=status)


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
    """Send the events of the federation to FLARE's log, with their fields in the text but without private ones."""

    def fold_fields(record: logging.LogRecord) -> bool:
        fields = getattr(record, "fields", {})
        shown = {name: value for name, value in fields.items() if name not in private}
        record.msg, record.args = event_text(record.getMessage(), shown), ()
        return True

    EVENTS.setLevel(logging.INFO)
    EVENTS.propagate = True
    EVENTS.handlers = []
    EVENTS.filters = [fold_fields]

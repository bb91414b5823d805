"""A party of a federation as the executor of a FLARE job."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import cache

from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.cellnet.fqcn import FQCN

from verfedgnn.cli.service_commands import read_own_ratings
from verfedgnn.config import Config
from verfedgnn.core.errors import ConfigError, Interrupted, ProtocolError, VerFedGNNError
from verfedgnn.core.files import check_writable, lock_folder
from verfedgnn.data import Ratings
from verfedgnn.data.read_options import ReadOptions
from verfedgnn.federation.certificates import COORDINATOR
from verfedgnn.federation.coordinator_link import CoordinatorLink
from verfedgnn.federation.party_service import load_finished, run_party
from verfedgnn.federation.roster import load_party
from verfedgnn.federation.status import StatusPublisher
from verfedgnn.federation.stores import PartyStore
from verfedgnn_flare import job_site
from verfedgnn_flare.job_transport import JobTransport

_PUBLIC_STATUS = ("state", "stage", "round", "rounds", "waits_for")
"""Fields of a party's status that FLARE's administrators may see; the others are about its own data."""


class PartyExecutor(Executor):  # type: ignore[misc]
    """The executor: its one task is the party's whole training, from aligning users to the run folder.

    `agreement` is the fingerprint of the federation file. The reason of a failure goes to a file of the site and not to FLARE's
    log, because it may quote data, and FLARE can stream logs to the server.
    """

    def __init__(self, agreement: str) -> None:
        super().__init__()
        self.agreement = agreement
        self._publisher: StatusPublisher | None = None

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> Shareable:
        """Run the party and return whether it has its model."""
        if task_name != job_site.TASK:
            return make_reply(ReturnCode.TASK_UNKNOWN)
        job_site.log_to_flare()
        try:
            server = read_server_cell(shareable)
            settings = job_site.load_settings(fl_ctx, fl_ctx.get_identity_name())
            job_site.hold_nights(
                settings,
                "party",
                abort_signal,
                lambda tonight, stop: self._take_part(tonight, server, fl_ctx, stop),
            )
        except Interrupted:
            return make_reply(ReturnCode.TASK_ABORTED)
        except VerFedGNNError as error:
            file = job_site.write_failure(fl_ctx, error)
            self.logger.error(f"the party failed; the reason is in {file}")
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
        return make_reply(ReturnCode.OK)

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Report the public part of the status when FLARE collects statistics (`nvflare job stats`)."""
        super().handle_event(event_type, fl_ctx)
        if self._publisher is not None:
            status = self._publisher.status
            public = {name: status[name] for name in _PUBLIC_STATUS if name in status}
            job_site.report_status(event_type, fl_ctx, public)

    def _take_part(
        self, settings: job_site.SiteSettings, server: str, fl_ctx: FLContext, stop: Callable[[], bool]
    ) -> None:
        site = fl_ctx.get_identity_name()
        identity = load_party(settings.federation, run=settings.run_folder)
        job_site.check_agreement(identity.agreement, self.agreement)
        if identity.name != site:
            owner = f"the key in {settings.federation} is {identity.name}'s"
            raise ConfigError(f"{owner}, but this site is {site}")
        store = PartyStore(settings.run_folder, identity)
        if store.is_trained:
            load_finished(store, settings.device)
            return
        check_writable(store.folder)
        read = cache(lambda: _read_own_ratings(settings, identity.agreement.config))
        if not store.is_aligned:
            read()  # reports a mistake in the ratings before the first message
        self._publisher = publisher = StatusPublisher(store.folder, identity)
        transport = JobTransport(
            fl_ctx.get_engine().get_cell(),
            {COORDINATOR: server},
            # FLARE's server admits no message whose origin is not the cell of its sender
            lambda message: COORDINATOR if message.get_header(MessageHeaderKey.ORIGIN) == server else None,
            link_seconds=identity.agreement.timeouts.link,
        )
        with closing(transport), lock_folder(store.folder), publisher:
            link = CoordinatorLink(identity, transport, stop, publisher)
            run_party(store, link, read, device=settings.device, after=settings.after)


def read_server_cell(task: Shareable) -> str:
    """Return the name of the coordinator's cell; raise `ProtocolError` if it is not one of FLARE's server."""
    cell = task.get(job_site.SERVER_CELL)
    if not isinstance(cell, str) or FQCN.split(cell)[0] != FQCN.ROOT_SERVER:
        raise ProtocolError("the task names no cell of FLARE's server")
    return cell


def _read_own_ratings(settings: job_site.SiteSettings, config: Config) -> Ratings:
    if settings.ratings is None:
        raise ConfigError("the settings of this site name no ratings; add `ratings` to local/verfedgnn.toml")
    reading = ReadOptions(settings.reading)
    return read_own_ratings(settings.ratings, reading, config)

"""The coordinator of a federation as the controller of a FLARE job."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import NoReturn

from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.message import Message
from nvflare.private.defs import CellMessageHeaderKeys

from verfedgnn.core.errors import Interrupted, RunError, VerFedGNNError
from verfedgnn.core.files import lock_folder
from verfedgnn.federation.agreement import Agreement
from verfedgnn.federation.certificates import COORDINATOR
from verfedgnn.federation.coordinator_service import CoordinatorService
from verfedgnn.federation.roster import load_coordinator
from verfedgnn.federation.status import StatusPublisher
from verfedgnn_flare import job_site
from verfedgnn_flare.job_transport import Identify, JobTransport

_TICK = 0.25


class FederationController(Controller):  # type: ignore[misc]
    """The controller: it hands out one task that lasts as long as the training, and runs the coordinator's service meanwhile.

    `agreement` is the fingerprint of the federation file.
    """

    def __init__(self, agreement: str) -> None:
        super().__init__()
        self.agreement = agreement
        self._publisher: StatusPublisher | None = None
        self._failed: list[str] = []
        """Sites whose task ended with an error."""

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Do nothing: everything happens in `control_flow`."""

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Do nothing: `control_flow` ends when its signal is triggered."""

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """Ignore a result that nobody waits for."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Run the training; a mistake that a person can fix ends the job with one sentence."""
        job_site.log_to_flare(private=())
        try:
            settings = job_site.load_settings(fl_ctx, COORDINATOR)
            job_site.hold_nights(
                settings,
                "coordinator",
                abort_signal,
                lambda tonight, stop: self._coordinate(tonight, fl_ctx, stop),
            )
        except Interrupted as stop:
            if not abort_signal.triggered:
                self.system_panic(f"{stop}; resubmit the job to resume", fl_ctx)
        except VerFedGNNError as error:
            self.system_panic(str(error), fl_ctx)

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Report the status when FLARE collects statistics (`nvflare job stats`)."""
        super().handle_event(event_type, fl_ctx)
        if self._publisher is not None:
            job_site.report_status(event_type, fl_ctx, self._publisher.status)

    def _coordinate(
        self, settings: job_site.SiteSettings, fl_ctx: FLContext, stop: Callable[[], bool]
    ) -> None:
        identity = load_coordinator(settings.federation, settings.run_folder)
        agreement = identity.agreement
        job_site.check_agreement(agreement, self.agreement)
        run = settings.run_folder
        engine = fl_ctx.get_engine()
        roster = {party.name for party in agreement.parties}
        clients = [client for client in engine.get_clients() if client.name in roster]
        self._publisher = publisher = StatusPublisher(run, identity)
        transport = JobTransport(
            engine.get_cell(),
            {client.name: job_site.job_cell(client.get_fqcn(), fl_ctx.get_job_id()) for client in clients},
            identify_clients(clients, fl_ctx.get_job_id()),
            link_seconds=agreement.timeouts.link,
        )
        with closing(transport), lock_folder(run), publisher:
            service = CoordinatorService(identity, transport, publisher, device=settings.device)
            self._check_sites(agreement, clients, began=service.coordinator.began)
            data = Shareable({job_site.SERVER_CELL: engine.get_cell().get_fqcn()})
            task = Task(job_site.TASK, data, result_received_cb=self._take_result)
            self.broadcast(task, fl_ctx, targets=clients, min_responses=len(clients))
            service.run(lambda: stop() or self._is_hopeless(service, agreement))
        self._wait_for_parties(task, stop)

    @staticmethod
    def _check_sites(agreement: Agreement, clients: Sequence[Client], *, began: bool) -> None:
        """Raise `RunError` if sites are missing that this job cannot do without, since no site can enter a running job."""
        here = {client.name for client in clients}
        missing = [party.name for party in agreement.parties if party.name not in here]
        if len(here) < (agreement.quorum if began else len(agreement.parties)):
            remedy = "start these sites, then resubmit the job"
            raise RunError(f"the job runs without {', '.join(missing)}; {remedy}")

    def _take_result(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        if client_task.result.get_return_code() != ReturnCode.OK:
            self._failed.append(client_task.client.name)

    def _is_hopeless(self, service: CoordinatorService, agreement: Agreement) -> bool:
        """Raise `RunError` if so many sites failed that no round can start in this job."""
        if not self._failed or service.stage.finishing:
            return False
        count = len(agreement.parties)
        if count - len(self._failed) < (agreement.quorum if service.coordinator.began else count):
            self._report_failed()
        return False

    def _wait_for_parties(self, task: Task, stop: Callable[[], bool]) -> None:
        """Wait until every site has chosen its gate and written its run folder."""
        while task.completion_status is None and not stop():
            time.sleep(_TICK)
        if self._failed:
            self._report_failed("the training is finished, but ")

    def _report_failed(self, start: str = "") -> NoReturn:
        remedy = "see local/verfedgnn-failure.txt there, then resubmit the job"
        raise RunError(f"{start}the party at {', '.join(self._failed)} failed; {remedy}")


def identify_clients(clients: Sequence[Client], job: str) -> Identify:
    """Return how to recognise the site of a message: by the token that FLARE gave to it, in the header that FLARE adds.

    FLARE's server checks the token's signature and that it comes from the site's cell. Names inside a message, such as those
    of an aux request's context, are written by its sender.
    """
    by_token = {client.token: client for client in clients}

    def identify(message: Message) -> str | None:
        client = by_token.get(message.get_header(CellMessageHeaderKeys.TOKEN))
        origin = message.get_header(MessageHeaderKey.ORIGIN)
        if client is None or origin != job_site.job_cell(client.get_fqcn(), job):
            return None
        return str(client.name)

    return identify

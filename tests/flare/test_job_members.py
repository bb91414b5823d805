"""What ends a FLARE job, what a site tells FLARE about it, and what it keeps to itself."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: it is in the extra flare")

from nvflare.apis.client import Client
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.widgets.info_collector import GroupInfoCollector, InfoCollector

from verfedgnn.cli import night_command
from verfedgnn.core.errors import ConfigError, Interrupted, ProtocolError, RunError
from verfedgnn.federation.event_log import EVENTS, log_event
from verfedgnn.runs.nights import HISTORY, read_nights
from verfedgnn_flare.controller import FederationController
from verfedgnn_flare.executor import PartyExecutor, read_server_cell
from verfedgnn_flare.job_site import (
    SERVER_CELL,
    TASK,
    SiteSettings,
    check_agreement,
    hold_nights,
    log_to_flare,
)

AGREEMENT: Any = SimpleNamespace(
    parties=[SimpleNamespace(name=name) for name in ("books", "films", "games")],
    quorum=2,
    digest=lambda: "abcd" * 16,
)


def context(local: Path, site: str = "books") -> Any:
    workspace = SimpleNamespace(get_site_config_dir=lambda: str(local))
    engine = SimpleNamespace(get_workspace=lambda: workspace)
    return SimpleNamespace(
        get_engine=lambda: engine, get_identity_name=lambda: site, get_job_id=lambda: "job"
    )


@pytest.fixture(autouse=True)
def _own_log() -> Any:
    kept = (EVENTS.level, EVENTS.propagate, EVENTS.handlers, EVENTS.filters)
    yield
    EVENTS.level, EVENTS.propagate, EVENTS.handlers, EVENTS.filters = kept


def test_a_first_training_needs_all_sites_and_a_later_job_a_quorum() -> None:
    clients = [Client("books", "1"), Client("films", "2")]
    with pytest.raises(RunError, match="without games; start these sites, then resubmit"):
        FederationController._check_sites(AGREEMENT, clients, began=False)
    FederationController._check_sites(AGREEMENT, clients, began=True)
    with pytest.raises(RunError, match="without films, games"):
        FederationController._check_sites(AGREEMENT, clients[:1], began=True)


def test_failed_sites_end_a_job_when_too_few_are_left() -> None:
    controller = FederationController("abcd")
    service: Any = SimpleNamespace(
        stage=SimpleNamespace(finishing=False), coordinator=SimpleNamespace(began=True)
    )
    assert not controller._is_hopeless(service, AGREEMENT)
    controller._failed = ["books"]
    assert not controller._is_hopeless(service, AGREEMENT)
    service.coordinator.began = False
    with pytest.raises(RunError, match="the party at books failed; see local/"):
        controller._is_hopeless(service, AGREEMENT)
    service.coordinator.began = True
    controller._failed = ["books", "films"]
    with pytest.raises(RunError, match="resubmit"):
        controller._is_hopeless(service, AGREEMENT)
    service.stage.finishing = True
    assert not controller._is_hopeless(service, AGREEMENT), "the others still get the result"


def test_the_reason_of_a_failure_stays_at_the_site(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The attack: a job streams the logs of a site to the server, to read what a mistake in its data quotes."""
    executor = PartyExecutor("abcd")
    task = Shareable({SERVER_CELL: "server.job"})
    (tmp_path / "verfedgnn.toml").write_text(f'federation = "{tmp_path}/secret-place"\n')
    with caplog.at_level(logging.DEBUG):
        reply = executor.execute(TASK, task, context(tmp_path), Signal())
    assert reply.get_return_code() == ReturnCode.EXECUTION_EXCEPTION
    assert "secret-place" not in repr(reply) + caplog.text
    assert "secret-place" in (tmp_path / "verfedgnn-failure.txt").read_text()


def test_flares_log_shows_fields_but_not_private_ones(caplog: pytest.LogCaptureFixture) -> None:
    log_to_flare()
    with caplog.at_level(logging.INFO):
        log_event("validated", round=3, own_valid_error=0.9)
    assert caplog.messages == ["validated  round=3"]


def test_flares_administrators_see_the_state_of_a_party_and_not_its_error() -> None:
    executor = PartyExecutor("abcd")
    status = {"state": "training", "round": 4, "valid_error": 0.9, "bytes": {"up": 1}}
    executor._publisher = SimpleNamespace(status=status)  # type: ignore[assignment]
    collector = GroupInfoCollector()
    executor.handle_event(
        InfoCollector.EVENT_TYPE_GET_STATS,
        SimpleNamespace(get_prop=lambda key: collector),  # type: ignore[arg-type]
    )
    assert collector.info == {"verfedgnn": {"state": "training", "round": 4}}


@pytest.mark.parametrize("cell", [None, 3, "films.job", "serverless.job"])
def test_a_task_must_name_a_cell_of_the_server(cell: Any) -> None:
    with pytest.raises(ProtocolError, match="no cell of FLARE's server"):
        read_server_cell(Shareable({SERVER_CELL: cell}))
    assert read_server_cell(Shareable({SERVER_CELL: "server.job"})) == "server.job"


def test_a_job_for_another_agreement_is_refused() -> None:
    check_agreement(AGREEMENT, " ".join(["abcd"] * 8))
    with pytest.raises(ConfigError, match="with the other members"):
        check_agreement(AGREEMENT, "another one")


def test_a_job_resumes_the_night_that_was_begun_and_then_trains_tonights(tmp_path: Path) -> None:
    """A job that is submitted again after its night trains nothing; a failure ends the job with the reason."""
    settings = SiteSettings(federation=tmp_path, nights=tmp_path / "nights")
    problem: list[Exception] = [Interrupted("stopped"), RunError("no space left")]
    trained: list[str] = []

    def train(tonight: SiteSettings, stop: Any) -> None:
        trained.append(tonight.run_folder.name)
        tonight.run_folder.mkdir(exist_ok=True)
        if problem:
            raise problem.pop()
        (tonight.run_folder / "metrics.json").write_text("{}")

    def submit() -> None:
        hold_nights(settings, "coordinator", Signal(), train)

    with pytest.raises(RunError, match="failed: no space left"):
        submit()
    with pytest.raises(Interrupted, match="stopped"):
        submit()
    file = tmp_path / "nights" / HISTORY
    today = trained[0]
    file.write_text(file.read_text().replace(f'"night": "{today}"', '"night": "yesterday"'))
    submit()
    submit()
    assert trained == [today, today, "yesterday", today]
    assert [(each.night, each.result) for each in read_nights(tmp_path / "nights")] == [
        ("yesterday", "trained"),
        (today, "trained"),
    ]


def test_a_night_of_a_job_stops_when_it_is_given_up_or_aborted(tmp_path: Path) -> None:
    settings = SiteSettings(federation=tmp_path, nights=tmp_path / "nights")
    abort = Signal()

    def train(tonight: SiteSettings, stop: Any) -> None:
        assert not stop()
        abort.trigger(True)
        assert stop()
        raise Interrupted("stopped")

    with pytest.raises(Interrupted):
        hold_nights(settings, "party", abort, train)
    assert read_nights(tmp_path / "nights")[0].result == "stopped"
    with (
        pytest.raises(RunError, match="another night is running"),
        night_command._alone(tmp_path / "nights"),
    ):
        hold_nights(settings, "party", abort, train)

"""Who waits for whom: on the coordinator's page, on a party's, in `status` and in Prometheus; and the examples that use it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from test_federation import assert_same, in_round, local, trial
from typer.testing import CliRunner

import verfedgnn as vf
from alert_rules import check_alerts
from hub import SERVER, Killed, agree, wait_until
from verfedgnn.cli.main import app
from verfedgnn.core.errors import Interrupted
from verfedgnn.federation import coordinator_link, coordinator_stage, party_service
from verfedgnn.federation.status import (
    StatusPublisher,
    describe_process,
    exposition,
    make_tables,
    page,
    presence,
)
from verfedgnn.federation.stores import PartyStore
from verfedgnn.protocol.messages import Finished, RoundReply, RoundStart, decode, encode

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "monitoring"


def test_a_finished_party_has_left_before_it_chooses_its_gate(
    tmp_path: Path, small_parties: list[vf.PartyData], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator may be gone by then, and a party that looked for it would log failures."""
    connected: list[bool] = []
    choose = party_service.complete_run

    def watch(store: PartyStore, device: str) -> vf.Run:
        connected.append(store.identity.name in federated.hub.wires)
        return choose(store, device)

    monkeypatch.setattr(party_service, "complete_run", watch)
    federated = trial(tmp_path, small_parties)
    federated.run()
    assert connected == [False] * 3


def test_a_stopped_party_is_stalled_on_every_side(
    tmp_path: Path, small_parties: list[vf.PartyData], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator_stage, "STALL_SECONDS", 0.3)
    seen = {}

    def stop(reply: RoundReply) -> bytes:
        """Answer only when all sides have noticed."""
        deadline = time.monotonic() + 180
        while len(seen) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        return encode(reply)

    late, other, _ = (party.name for party in small_parties)
    federated = trial(tmp_path, small_parties)
    for name in (SERVER, *federated.parties):
        federated.start(name, in_round(5, stop) if name == late else None)

    def notice() -> bool:
        for name, state in ((SERVER, "stalled"), (other, "waiting")):
            service = federated.services.get(name)
            status = {} if service is None else service.publisher.status
            if status.get("state") == state and status.get("waits_for") == [late]:
                seen[name] = status
        return len(seen) == 2

    wait_until(notice)
    federated.join()
    assert_same(federated, local(small_parties))
    about = seen[SERVER]
    assert (about["parties"][late]["here"], presence(about["parties"][late])) == (False, "stalled")
    assert presence(about["parties"][other]) == "here"
    assert about["updated"] - about["waits_since"] >= 0.3
    assert about["seconds_left"] is None
    assert "stalled" in page(make_tables(about))
    text = exposition(about)
    assert f'verfedgnn_party_stalled{{party="{late}"}} 1.0' in text
    assert f'verfedgnn_waits_for{{party="{late}"}} 1.0' in text
    check_examples(text)
    if shutil.which("promtool"):
        check_alerts(tmp_path, text, 3, {"VerfedgnnPartyStalled"})
        waiting = {"VerfedgnnTrainingWaits", "VerfedgnnNoProgress"}
        check_alerts(tmp_path, text, 8, {"VerfedgnnPartyStalled"} | waiting)


def check_examples(text: str) -> None:
    """Alert rules and the dashboard can be read and use metrics that there are."""
    (group,) = yaml.safe_load((EXAMPLES / "alerts.yaml").read_text())["groups"]
    assert all(rule["annotations"]["summary"] for rule in group["rules"])
    expressions = [rule["expr"] for rule in group["rules"]]
    board = json.loads((EXAMPLES / "grafana.json").read_text())
    expressions += [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    known = set(re.findall(r"^# TYPE (\w+) ", text, re.M)) | {"verfedgnn_seconds_left"}
    used = {name for expression in expressions for name in re.findall(r"\bverfedgnn_\w+", expression)}
    nights = {name for name in used if name.startswith("verfedgnn_night")}  # tests/cli/test_night.py
    assert used - nights <= known


def test_the_status_is_true_from_the_first_second(tmp_path: Path, small_parties: list[vf.PartyData]) -> None:
    """While members gather, it names who is here and who is missing since when, at the coordinator and at a party."""
    federated = trial(tmp_path, small_parties, alignment="keyed")
    here, *missing = (party.name for party in small_parties)
    began = time.time()
    federated.start(SERVER)
    file = tmp_path / f"run-{SERVER}" / "status.json"
    wait_until(lambda: file.is_file() and json.loads(file.read_text())["state"] != "starting")
    first = json.loads(file.read_text())
    assert first["state"] == "gathering"
    assert first["waits_for"] == [here, *missing]
    assert first["next"] == "the training starts when all parties are here"
    federated.start(here)
    own = tmp_path / f"run-{here}" / "status.json"

    def told() -> bool:
        about = federated.services[SERVER].publisher.status
        return about["waits_for"] == missing and own.is_file() and "party-1" in own.read_text()

    wait_until(told)
    status = federated.services[SERVER].publisher.status
    assert status["state"] == "gathering"
    wait_until(lambda: presence(federated.services[SERVER].publisher.status["parties"][here]) == "joined")
    for name in missing:
        assert presence(status["parties"][name]) == "away"
        assert began - 1 < status["parties"][name]["missing_since"] <= status["updated"]
    assert describe_process(status) == "The process is running."
    text = exposition(status)
    assert 'role="coordinator"' in text
    assert "None" not in text
    told_party = json.loads(own.read_text())
    assert (told_party["role"], told_party["state"]) == (f"party {here}", "gathering")
    assert told_party["waits_for"] == missing
    for name in missing:
        federated.start(name)
    federated.join()
    assert not federated.errors


def test_a_member_that_has_not_connected_yet_is_starting(tmp_path: Path) -> None:
    """An operator who looks at once sees who starts, and not how many years ago 1970 was."""
    _, identities = agree(tmp_path, ["film", "music"], vf.Config.preset("best"))
    with StatusPublisher(tmp_path, identities["film"]):
        about = json.loads((tmp_path / "status.json").read_text())
        assert (about["role"], about["federation"], about["state"]) == ("party film", "trial", "starting")
        assert describe_process(about) == "The process is running."
        assert 'role="party film"' in exposition(about)
    assert describe_process({"state": "starting"}) == "The process is running."


def test_a_party_that_left_between_two_trainings_is_named(
    tmp_path: Path, small_parties: list[vf.PartyData], caplog: pytest.LogCaptureFixture
) -> None:
    """The next training needs its answer: the coordinator, which is finishing this one, says for whom it waits."""
    caplog.set_level(logging.INFO, "verfedgnn.federation")
    small = {"epochs": 2, "dim": 6, "unprotected": ["noise"], "final": False}
    federated = trial(tmp_path, small_parties, vf.Config.preset("best").with_values(small))
    gone, *rest = federated.parties

    def leave(data: bytes) -> bytes:
        if isinstance(decode(data), Finished):
            raise Killed
        return data

    federated.start(gone, leave, restart=False)
    for name in (SERVER, *rest):
        federated.start(name)

    def named() -> bool:
        service = federated.services.get(SERVER)
        about = {} if service is None else service.publisher.status
        return about.get("state") == "finishing" and about["waits_for"] == [gone]

    wait_until(named)
    about = federated.services[SERVER].publisher.status
    assert about["next"] == "the next training starts when they have the result of this one"
    assert about["updated"] >= about["waits_since"]
    wait_until(lambda: "waiting for parties" in caplog.text)
    federated.start(gone)
    federated.join()
    assert not federated.errors


def test_an_exit_writes_its_state(tmp_path: Path) -> None:
    """`status` does not take the last status of a process that has stopped for that of a running one."""

    def after(error: Exception | None, state: str = "training") -> dict[str, Any]:
        with contextlib.suppress(Exception), StatusPublisher(tmp_path) as publisher:
            publisher.update(lambda: {"role": "coordinator", "state": state, "parties": {}}, now=True)
            if error is not None:
                raise error
        return dict(json.loads((tmp_path / "status.json").read_text()))

    stopped = after(Interrupted("stopped"))
    assert (stopped["state"], stopped["reason"]) == ("stopped", "stopped")
    assert describe_process(stopped) == "The process has ended (stopped). Start it again; it resumes."
    assert "no space left" in describe_process(after(vf.RunError("no space left")))
    assert describe_process(after(None, "finished")) == "The training is finished."
    shown = CliRunner().invoke(app, ["status", str(tmp_path)])
    assert "The training is finished." in shown.output
    assert "refused" not in shown.output, "no table without rows"


def test_the_status_of_a_member_is_that_of_its_last_night(tmp_path: Path) -> None:
    """With nights, the run beside the key is an old one or none."""
    folder = tmp_path / "film"
    for age, (place, state) in enumerate({"nights/fri": "training", "run": "finished"}.items()):
        (folder / place).mkdir(parents=True)
        for name, text in {
            "status.json": json.dumps({"role": "party film", "state": state}),
            "metrics.json": "{}",
        }.items():
            (folder / place / name).write_text(text)
            os.utime(folder / place / name, (time.time() - age, time.time() - age))
    (folder / "nights" / "current").symlink_to("fri")

    def show(where: Path) -> str:
        return CliRunner().invoke(app, ["status", str(where)]).output

    assert "training" in show(folder)
    assert "training" in show(folder / "nights")
    shown = show(folder / "run")
    assert "finished" in shown
    assert f" serve {folder / 'run'}\n" in shown
    shutil.rmtree(folder / "nights")
    assert f" serve {folder / 'run'}\n" in show(folder)


def test_silence_is_named_with_what_happens_next(
    tmp_path: Path,
    small_parties: list[vf.PartyData],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A party that is stopped answers nothing; its connection stays open. The others hear of it, and that it is back."""
    assert coordinator_stage.STALL_SECONDS < 10
    assert coordinator_link.SILENT_SECONDS < 10
    monkeypatch.setattr(coordinator_stage, "STALL_SECONDS", 0.3)
    caplog.set_level(logging.INFO, "verfedgnn.federation")

    def named(event: str) -> list[dict[str, Any]]:
        return [record.__dict__["fields"] for record in caplog.records if record.getMessage() == event]

    def told() -> list[dict[str, Any]]:
        """Return the events of a round; parties that are slow to join are named, too."""
        events = named("no answer from parties")
        return [fields for fields in events if fields["next"].startswith("if no answer comes")]

    def stop(reply: RoundReply) -> bytes:
        wait_until(lambda: bool(told()))
        return encode(reply)

    late = small_parties[0].name
    federated = trial(tmp_path, small_parties)
    federated.run({late: in_round(2, stop)})
    assert_same(federated, local(small_parties))
    about = told()[0]
    assert about["missing"] == [late]
    assert re.fullmatch(r"\d\d:\d\d:\d\d", about["since"])
    assert re.fullmatch(r"if no answer comes within \d+ s, the training waits for it", about["next"])
    assert named("nobody is missing")


def test_a_silent_coordinator_is_named(
    tmp_path: Path,
    small_parties: list[vf.PartyData],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(coordinator_link, "SILENT_SECONDS", 0.3)

    def hold(data: bytes) -> bytes:
        """Keep the coordinator from opening a round until a party that waits for it has noticed."""
        message = decode(data)
        if isinstance(message, RoundStart) and message.round == 3:
            wait_until(lambda: "no message from the coordinator" in caplog.text)
        return data

    federated = trial(tmp_path, small_parties)
    federated.run({SERVER: hold})
    assert_same(federated, local(small_parties))
    records = [r for r in caplog.records if r.getMessage() == "no message from the coordinator"]
    assert records[0].__dict__["fields"]["next"] == "this party joins again after 30 s of silence"

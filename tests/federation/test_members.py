"""What members learn of each other besides the rounds: versions, nights, shared verdicts, and a changed agreement."""

from __future__ import annotations

import json
import logging
import threading
import time
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from test_federation import assert_same, in_round, local, settings, trial
from test_network import Net, federation, net  # noqa: F401
from typer.testing import CliRunner

import verfedgnn as vf
from hub import SERVER, Hub, Killed, Wire, agree, wait_until
from verfedgnn.cli.main import app
from verfedgnn.evaluation.verdict import summarise_verdict
from verfedgnn.federation import PARTY_KEY, coordinator_link, coordinator_service, roster
from verfedgnn.federation.agreement import FILE, MARK, compare_agreements, load_agreement, save_agreement
from verfedgnn.federation.coordinator_link import CoordinatorLink
from verfedgnn.federation.coordinator_service import CoordinatorService
from verfedgnn.federation.party_service import read_verdict
from verfedgnn.federation.roster import load_party
from verfedgnn.federation.status import StatusPublisher, make_members_tables, make_tables, page
from verfedgnn.federation.transcript import read_lines
from verfedgnn.federation.transport import TransportEvent
from verfedgnn.protocol.messages import (
    About,
    MembersPage,
    Message,
    Refused,
    RoundReply,
    RoundStart,
    decode,
    encode,
)
from verfedgnn.runs.nights import HISTORY, Night

SHARED = {"run": "2026-11-13", "word": "yes", "gain": "+3.0 of 100"}


def test_members_see_versions_nights_and_shared_verdicts_and_nothing_else(
    tmp_path: Path, small_parties: list[vf.PartyData]
) -> None:
    night = Night("2026-11-14", "failed", "no space left in /srv/hub", "2026-11-14T02:13:00+00:00", 9.0, "")
    (tmp_path / HISTORY).write_text(json.dumps(asdict(night)) + "\n")
    federated = trial(tmp_path, small_parties)
    sharing, other, _ = federated.parties
    federated.verdicts[sharing] = SHARED
    seen: dict[str, Any] = {}

    def hold(reply: RoundReply) -> bytes:
        """Answer only when another party knows the verdict."""

        def told() -> bool:
            status = federated.services[other].publisher.status
            seen.update(status)
            return len((status.get("members") or {"members": {}})["members"]) == 4

        wait_until(told)
        return encode(reply)

    federated.run({sharing: in_round(4, hold)})
    assert_same(federated, local(small_parties))
    members = seen["members"]
    assert members["members"][sharing] | SHARED == members["members"][sharing]
    assert members["members"][other]["word"] == ""
    assert members["nights"] == [("2026-11-14", "failed")]
    shown = page(make_members_tables(seen))
    for text in ("+3.0 of 100", "2026-11-14", "failed", "not shared"):
        assert text in shown
    assert "/srv" not in str(seen)
    assert vf.__version__ not in shown
    assert f"{SERVER} {vf.__version__}" in page(make_tables(seen))
    for name in (sharing, other):
        entries = [entry for _, entry in read_lines(tmp_path / f"run-{name}" / "transcript.jsonl") if entry]
        stated = [
            entry.common[f"verdict {sharing}"]
            for entry in entries
            if entry.common and f"verdict {sharing}" in entry.common
        ]
        assert stated[0] == {"verdict": "yes +3.0 of 100 2026-11-13"}, "all transcripts have it"


def test_where_ratings_are_protected_no_verdict_is_shared(
    tmp_path: Path, small_parties: list[vf.PartyData]
) -> None:
    """Neither does a party send one, nor does the coordinator take one."""
    config = vf.Config.preset("private")
    with pytest.raises(vf.ConfigError, match="omit --share-verdict"):
        read_verdict(tmp_path, config, "film")
    _, identities = agree(tmp_path, ["film", "music"], config)
    hub = Hub()
    service = CoordinatorService(identities[SERVER], Wire(hub, SERVER), StatusPublisher(tmp_path / "run"))
    service._take_about("film", About(version="1"))
    with pytest.raises(vf.ProtocolError, match="shares a verdict"):
        service._take_about("film", About(version="1", word="yes"))
    assert service._about["film"].word == ""


def test_a_verdict_is_one_word_and_a_rounded_gain(tmp_path: Path) -> None:
    row = {
        "name": "film",
        "users": 500,
        "pays": "yes",
        "reference": "alone",
        "alone": 0.3,
        "federated": 0.33456,
    }
    row["gain"] = {"value": 0.03456, "low": 0.02, "high": 0.05}
    table = {"metric": "hitrate@20", "overall": row, "parties": [row | {"ndcg@20": 0.1}]}
    lift = {"lists": table | {"newcomers": table}}
    assert summarise_verdict(lift, "film") == ("yes", "+3.5 of 100")
    night = tmp_path / "2026-11-13"
    night.mkdir()
    assert read_verdict(night, settings(), "film") == {}, "a run that is not finished"
    assert read_verdict(None, settings(), "film") == {}, "the first night"
    (night / "metrics.json").write_text(json.dumps({"lift": lift}))
    (tmp_path / "current").symlink_to(night)
    shared = read_verdict(tmp_path / "current", settings(), "film")
    assert shared == {"run": "2026-11-13", "word": "yes", "gain": "+3.5 of 100"}
    assert About(version="1", **shared).word == "yes"


def test_members_are_updated_one_at_a_time(
    tmp_path: Path,
    small_parties: list[vf.PartyData],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each is stopped during a training and comes back with a newer version; the status says who has which."""
    updated: set[str] = set()
    version = lambda: "0.2.0" if threading.current_thread().name in updated else "0.1.0"  # noqa: E731
    monkeypatch.setattr(coordinator_link, "installed_version", version)
    monkeypatch.setattr(coordinator_service, "installed_version", version)

    def update(name: str, number: int) -> Any:
        def stop(_: RoundReply) -> bytes:
            updated.add(name)
            raise Killed

        return in_round(number, stop)

    def update_coordinator(data: bytes) -> bytes:
        message = decode(data)
        if isinstance(message, RoundStart) and message.round == 7 and SERVER not in updated:
            updated.add(SERVER)
            raise Killed
        return data

    federated = trial(tmp_path, small_parties)
    faults = {name: update(name, 2 + place) for place, name in enumerate(federated.parties)}
    federated.run(faults | {SERVER: update_coordinator})
    assert_same(federated, local(small_parties))
    assert updated == {SERVER, *federated.parties}
    known = federated.services[SERVER].status()["members"]["members"]
    assert {about["version"] for about in known.values()} == {"0.2.0"}


def test_the_log_warns_while_versions_differ(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "verfedgnn.federation")
    agreement, identities = agree(tmp_path, ["film", "book"], settings())
    publisher = StatusPublisher(tmp_path / "run")
    link = CoordinatorLink(identities["film"], Wire(Hub(), "film"), lambda: False, publisher)
    for version in ("0.1.0", "0.1.0", "0.2.0"):
        members = {SERVER: About(version="0.2.0"), "book": About(version=version)}
        link._take_page(MembersPage(members=members, nights=[], offer=agreement.digest()))
    records = [r for r in caplog.records if r.getMessage() == "versions of the members"]
    assert [r.levelno for r in records] == [logging.WARNING, logging.INFO], "each change once"
    link._take_page(MembersPage(members={}, nights=[], offer="ab"))
    assert caplog.records[-1].getMessage() == "the agreement was changed"


def test_a_changed_agreement_is_offered_and_accepted_with_one_command(
    net: Net,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The difference is shown; the coordinator knows who has accepted; a file of another federation is refused."""
    before = net.agreement
    film = tmp_path / "film"
    film.mkdir(mode=0o700)
    save_agreement(film / FILE, before)
    (tmp_path / "film.pem").rename(film / PARTY_KEY)
    after = before.with_values(
        parties=before.parties, max_users=500, config=before.config.with_values({"dim": 9})
    )
    save_agreement(tmp_path / FILE, after)

    def accept(*words: str) -> Any:
        return CliRunner().invoke(app, ["federation", "accept", str(film), *words])

    refused = accept()
    assert isinstance(refused.exception, vf.ConfigError)
    assert "max_users: 20000000 before, 500 now" in refused.output
    assert "as before" not in refused.output
    assert load_agreement(film) == before, "nobody has confirmed the fingerprint"
    with monkeypatch.context() as patch:
        ask = roster.ask_coordinator

        def vanish(identity: Any, what: str, told: str = "") -> bytes:
            if told:
                raise vf.RunError("cannot reach the coordinator")
            return ask(identity, what)

        patch.setattr(roster, "ask_coordinator", vanish)
        assert "cannot reach" in str(accept("--yes").exception)
    assert load_agreement(film) == before, "an error changes nothing"
    done = accept("--yes")
    assert done.exit_code == 0, done.output
    assert "dim" in done.output
    assert load_agreement(film) == after
    assert net.server.holds == {"film": after.digest()}
    assert accept("--yes").output.startswith("the coordinator offers the agreement that you have")
    with closing(net.join("film")):
        assert accept("--yes").exit_code == 0, "also while the party is running"
    # A run that was begun under the agreement before is resumed under that.
    (film / "run").mkdir()
    (film / "run" / MARK).write_text(f"{before.digest()}\nrows\n")
    assert load_party(film, run=film / "run").agreement == before
    assert load_party(film, run=film / "run-2").agreement == after
    (tmp_path / "other").mkdir()
    others = agree(tmp_path / "other", ["film", "book"], settings())[1]
    save_agreement(tmp_path / FILE, others["film"].agreement.with_values(name=before.name))
    assert "another federation" in str(accept("--yes").exception)
    assert load_agreement(film) == after


def test_a_change_is_shown_before_it_is_accepted_and_can_draw_nothing_on_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack: a coordinator writes another fingerprint over the real one, or changes what has no name."""
    before, identities = agree(tmp_path, ["film", "book"], settings())
    forged = before.config.model_copy(update={"base": "best\n\x1b[2Jfingerprint of the agreement: 1234"})
    (tmp_path / "forged").mkdir()
    save_agreement(tmp_path / "forged" / FILE, before.with_values(parties=before.parties, config=forged))
    with pytest.raises(vf.ConfigError, match="base"):
        load_agreement(tmp_path / "forged")
    named = before.config.model_copy(update={"base": "\x1b[2J"})  # in case that something else holds it
    turned = before.model_copy(update={"parties": before.parties[::-1], "config": named})
    monkeypatch.setattr(roster, "load_party", lambda _: identities["film"])
    monkeypatch.setattr(roster, "fetch_agreement", lambda _: (b"", turned))
    refused = CliRunner().invoke(app, ["federation", "accept", str(tmp_path)])
    assert "there is no terminal to confirm at" in str(refused.exception)
    assert "the order of the parties: book, film" in refused.output
    assert "\x1b" not in refused.output
    moved = before.model_copy(update={"address": "elsewhere:7443"})
    monkeypatch.setattr(roster, "fetch_agreement", lambda _: (b"", moved))
    shown = CliRunner().invoke(app, ["federation", "accept", str(tmp_path)]).output
    assert "(as before: it covers neither address nor timeouts)" in shown


def test_a_run_is_not_resumed_under_a_coordinators_old_key(tmp_path: Path) -> None:
    """Attack: the stolen key of a coordinator, which has a new one, takes in the parties that resume."""
    before, _ = agree(tmp_path, ["film", "book"], settings())
    (tmp_path / "new").mkdir()
    renewed, _ = agree(tmp_path / "new", ["film", "book"], settings())
    save_agreement(tmp_path / FILE, before)
    save_agreement(tmp_path / FILE, renewed)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / MARK).write_text(f"{before.digest()}\nrows\n")
    with pytest.raises(vf.ConfigError, match="the coordinator has another key since"):
        load_party(tmp_path, tmp_path / "film.pem", tmp_path / "run")


def test_a_coordinator_cannot_speak_for_a_party(tmp_path: Path) -> None:
    agreement, identities = agree(tmp_path, ["film", "event"], settings())
    publisher = StatusPublisher(tmp_path / "run")
    link = CoordinatorLink(identities["film"], Wire(Hub(), "film"), lambda: False, publisher, verdict=SHARED)
    own = About(version=vf.__version__, **SHARED)
    shown = {SERVER: About(version="1"), "event": About(version="2"), "film": own}
    link._take_page(MembersPage(members=shown, nights=[], offer=agreement.digest()))
    for word in ("", "no"):
        forged = shown | {"film": own.model_copy(update={"word": word})}
        with pytest.raises(vf.ProtocolError, match="what this party did not say"):
            link._take_page(MembersPage(members=forged, nights=[], offer=agreement.digest()))
    link._last_hello = time.monotonic() + 180  # just now, also on a busy machine
    kept = link.page
    link._take_page(MembersPage(members=forged, nights=[], offer=agreement.digest()))
    assert link.page is kept, "a page from before it came back, with another version, is not taken"


@pytest.mark.parametrize("message", [About(version="1"), Refused(reason="no")])
def test_a_party_cannot_fill_the_coordinators_disk(tmp_path: Path, message: Message) -> None:
    """Attack: each of these messages is logged and written to the transcript."""
    _, identities = agree(tmp_path, ["film", "book"], settings())
    service = CoordinatorService(identities[SERVER], Wire(Hub(), SERVER), StatusPublisher(tmp_path / "run"))
    for _ in range(1000):
        service._handle(TransportEvent("message", "film", encode(message)))
    assert service.offences["film"] == coordinator_service.MOST_OFFENCES
    taken = [
        entry for _, entry in read_lines(tmp_path / "run" / "transcript.jsonl") if entry and entry.way == "in"
    ]
    assert len(taken) == coordinator_service.MOST_A_MINUTE


def test_the_status_says_who_has_accepted(tmp_path: Path, small_parties: list[vf.PartyData]) -> None:
    federated = trial(tmp_path, small_parties)
    save_agreement(tmp_path / FILE, federated.agreement)
    changed = federated.agreement.with_values(max_users=500)
    first, second, _ = federated.parties
    told: list[str] = []

    def change(reply: RoundReply) -> bytes:
        service = federated.services[SERVER]
        assert service.status()["accepted"] == list(federated.parties)
        save_agreement(tmp_path / FILE, changed)
        service.transport.holds[first] = changed.digest()
        wait_until(lambda: service.publisher.status["accepted"] == [first])

        def offered() -> bool:
            members = federated.services[second].publisher.status.get("members") or {"offer": ""}
            told.append(members["offer"])
            return told[-1] == changed.digest()

        wait_until(offered)
        return encode(reply)

    federated.run({first: in_round(4, change)})
    assert_same(federated, local(small_parties))
    assert told[-1] == changed.digest()


def test_what_an_agreement_changes_is_said_in_sentences(tmp_path: Path) -> None:
    before, _ = agree(tmp_path, ["film", "book"], settings())
    (tmp_path / "new").mkdir()
    renewed, _ = agree(tmp_path / "new", ["film", "book"], settings())
    assert compare_agreements(before, before) == []
    after = before.with_values(parties=before.parties[:1], min_parties=1)
    assert compare_agreements(before, after) == ["book leaves", "a round needs: 2 before, 1 now"]
    assert compare_agreements(after, before)[0] == "book joins"
    assert "film has a new key" in compare_agreements(before, renewed)
    patient = before.model_copy(update={"timeouts": before.timeouts.model_copy(update={"absent": 60.0})})
    assert compare_agreements(before, patient) == ["timeouts.absent: 0 before, 60.0 now"]

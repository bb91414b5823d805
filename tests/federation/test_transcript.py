"""Transcripts: changes are noticed, honest members agree, and a coordinator that says different things is found."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_federation import PATIENT, assert_same, killed_at, local, settings, trial

import verfedgnn as vf
from hub import SERVER, Clock, Hub, Trial, Wire
from message_samples import ALL
from verfedgnn.core.errors import RunError
from verfedgnn.federation.agreement import Agreement, save_agreement
from verfedgnn.federation.coordinator_link import common_statements
from verfedgnn.federation.transcript import (
    CONTRIBUTORS,
    TRANSCRIPT,
    Transcript,
    TranscriptEntry,
    check_transcript,
    compare_transcripts,
    read_lines,
    summarise_comparison,
)
from verfedgnn.federation.transport import TransportEvent
from verfedgnn.protocol.messages import (
    AlignStart,
    Finish,
    Message,
    RoundStart,
    ShareRequest,
    Survivors,
    UserRows,
    Welcome,
    decode,
    encode,
)

PARTIES = ["party-0", "party-1", "party-2"]


class LyingHub(Hub):
    """A coordinator that changes what it says to one party."""

    def __init__(self, victim: str, change: Callable[[Message], Message]) -> None:
        super().__init__()
        self.victim = victim
        self.change = change

    def deliver(self, to: str, event: TransportEvent, sender: Wire) -> None:
        if to == self.victim and event.data:
            changed = encode(self.change(decode(event.data)))
            event = TransportEvent("message", event.peer, changed)
        super().deliver(to, event, sender)


def verify(agreement: Agreement, *folders: Path) -> dict[str, Any]:
    checked = [check_transcript(folder, agreement) for folder in folders]
    return summarise_comparison(checked, compare_transcripts(checked, agreement))


def verify_all(federated: Trial, *names: str) -> dict[str, Any]:
    return verify(federated.agreement, *(federated.folder / f"run-{name}" for name in names or PARTIES))


def deceived(folder: Path, parties: list[vf.PartyData], change: Callable[[Message], Message]) -> Trial:
    """Run a federation whose coordinator changes messages to party-1; without masks, which would not cancel."""
    federated = trial(folder, parties, settings(masking=False), min_parties=2)
    federated.hub = LyingHub("party-1", change)
    federated.run()
    return federated


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory, small_parties: list[vf.PartyData]) -> Trial:
    """A finished federation in which a party and the coordinator were killed."""
    federated = trial(tmp_path_factory.mktemp("honest"), small_parties)
    federated.run({SERVER: killed_at(20), "party-1": killed_at(6)})
    assert_same(federated, local(small_parties))
    return federated


# -- honest members --------------------------------------------------------------------------------------


def test_transcripts_of_an_honest_federation_agree_in_spite_of_kills(honest: Trial) -> None:
    found = verify_all(honest, SERVER, *PARTIES)
    assert found["agree"], found["verdict"]
    assert not found["remarks"]
    by_name = {one["member"]: one for one in found["transcripts"]}
    assert all(one["finished"] and one["entries"] == one["signed"] for one in by_name.values())
    assert by_name["party-1"]["restarts"] == 1
    assert by_name[SERVER]["restarts"] == 1
    assert {one["rounds"] for one in by_name.values()} == {9}
    entries = check_transcript(honest.folder / "run-party-0", honest.agreement).entries
    spent = [entry.values for entry in entries if entry.kind == "spent"]
    assert len(spent) >= 9
    assert spent[-1] is not None
    assert spent[-1]["releases"] == 9, "the budget is in the transcript, too"


def test_parties_of_four_trainings_agree(
    tmp_path: Path, small_parties: list[vf.PartyData], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("verfedgnn.config.tree.FINAL_ROUNDS", {"ratings": 2, "raters": 2, "lists": 2})
    small = {
        "epochs": 4,
        "evaluate_every": 2,
        "dim": 6,
        "unprotected": ["noise"],
    }
    federated = trial(tmp_path, small_parties, vf.Config.preset("best").with_values(small), alignment="keyed")
    federated.run({"party-2": killed_at(14)})
    found = verify_all(federated, SERVER, *PARTIES)
    assert found["agree"], found["verdict"]
    stages = {entry.stage for _, entry in read_lines(tmp_path / "run-party-0" / TRANSCRIPT) if entry}
    assert stages == {None, "alignment", "ratings", "lists", "final", "final lists"}


def test_a_party_that_left_for_good_agrees_as_far_as_it_came(
    tmp_path: Path, small_parties: list[vf.PartyData], clock: Clock
) -> None:
    federated = trial(tmp_path, small_parties, min_parties=2, timeouts=PATIENT)
    for name in (SERVER, *PARTIES[1:]):
        federated.start(name)
    federated.start("party-0", killed_at(5), restart=False)
    federated.end_without("party-0", clock)
    found = verify_all(federated)
    assert found["agree"], found["verdict"]
    assert any("party-0 has not finished" in remark for remark in found["remarks"])


def test_a_torn_last_line_is_cut_off_and_noted(tmp_path: Path, honest: Trial) -> None:
    run = tmp_path / "run"
    run.mkdir()
    file = run / TRANSCRIPT
    shutil.copy(honest.folder / "run-party-0" / TRANSCRIPT, file)
    whole = file.read_bytes()
    file.write_bytes(whole + b'{"number":99,"ti')
    assert check_transcript(run, honest.agreement).problem is None, "as a kill leaves it"
    Transcript(run, honest.identities["party-0"]).sign()
    assert file.read_bytes().startswith(whole)
    checked = check_transcript(run, honest.agreement)
    assert checked.problem is None
    assert [entry.kind for entry in checked.entries[-3:]] == ["started", "cut", "signature"]
    assert checked.signed == len(checked.entries)


def test_a_transcript_holds_sizes_and_hashes_only(honest: Trial, small_parties: list[vf.PartyData]) -> None:
    """The fields are those of docs/protocol.md; no id, array or key is in them."""
    text = (honest.folder / "run-party-0" / TRANSCRIPT).read_text()
    assert set(TranscriptEntry.model_fields) == {
        "number", "time", "way", "kind", "stage", "peer", "round", "attempt", "bytes", "sha256", "common",
        "values", "signature", "previous",
    }  # fmt: skip
    assert not any(f'"{user}"' in text for user in small_parties[0].ratings.user_ids)
    keys = {
        key
        for _, _, data in honest.hub.seen
        if isinstance(message := decode(data), ShareRequest)
        for key in message.mask_keys
    }
    assert keys
    assert not any(key in text for key in keys)
    assert (honest.folder / "run-party-0" / TRANSCRIPT).stat().st_mode & 0o077 == 0


# -- a transcript that was changed -----------------------------------------------------------------------


def lines_of(honest: Trial, name: str = "party-1") -> list[bytes]:
    return (honest.folder / f"run-{name}" / TRANSCRIPT).read_bytes().splitlines()


def problem_of(honest: Trial, folder: Path, lines: list[bytes]) -> str | None:
    (folder / TRANSCRIPT).write_bytes(b"".join(line + b"\n" for line in lines))
    return check_transcript(folder, honest.agreement).problem


def chain_again(lines: list[bytes]) -> list[bytes]:
    """Number and chain entries anew, as somebody can who lacks the member's key."""
    head, out = "0" * 64, []
    for number, line in enumerate(lines, 1):
        line = json.dumps(json.loads(line) | {"number": number, "previous": head}).encode()
        head = hashlib.sha256(line).hexdigest()
        out.append(line)
    return out


def test_an_edited_entry_is_found(honest: Trial, tmp_path: Path) -> None:
    lines = lines_of(honest)
    place = next(i for i, line in enumerate(lines) if i > 20 and b'"attempt":0' in line)
    edited = [*lines[:place], lines[place].replace(b'"attempt":0', b'"attempt":1'), *lines[place + 1 :]]
    assert f"line {place + 2} does not follow line {place + 1}" in str(problem_of(honest, tmp_path, edited))
    assert "is not party-1's" in str(problem_of(honest, tmp_path, chain_again(edited)))


def test_reordered_and_removed_entries_are_found(honest: Trial, tmp_path: Path) -> None:
    lines = lines_of(honest)
    swapped = [*lines[:20], lines[21], lines[20], *lines[22:]]
    assert "line 21 does not follow" in str(problem_of(honest, tmp_path, swapped))
    removed = lines[:20] + lines[21:]
    assert "line 21 does not follow" in str(problem_of(honest, tmp_path, removed))
    assert "is not party-1's" in str(problem_of(honest, tmp_path, chain_again(removed)))
    garbled = [*lines[:20], b"{}", *lines[21:]]
    assert "line 21 is not an entry" in str(problem_of(honest, tmp_path, garbled))


def test_a_transcript_of_many_statements_is_compared_in_a_moment(honest: Trial) -> None:
    """20,000 values of one subject took 40 s, and ten times as many a hundred times as long."""
    checked = [check_transcript(honest.folder / f"run-{name}", honest.agreement) for name in PARTIES[:2]]
    entry = next(entry for entry in checked[0].entries if entry.common and "training" not in entry.common)
    many = [{"update 1": {CONTRIBUTORS: 7, "sum": str(n)}} for n in range(40_000)]
    checked[0].entries += [entry.model_copy(update={"common": common}) for common in many]
    began = time.process_time()
    compare_transcripts(checked, honest.agreement)
    assert time.process_time() - began < 15


def test_a_transcript_that_is_a_link_is_not_followed(honest: Trial, tmp_path: Path) -> None:
    """Attack: the run folder of another member leads to a file of the person who compares."""
    (tmp_path / "transcript.jsonl").symlink_to(honest.folder / "run-party-1" / "transcript.jsonl")
    with pytest.raises(RunError, match="a link to a place outside the run"):
        verify(honest.agreement, tmp_path)


def test_another_members_transcript_does_not_pass_for_ones_own(honest: Trial, tmp_path: Path) -> None:
    lines = [line.replace(b'"member":"party-1"', b'"member":"party-0"') for line in lines_of(honest)]
    assert "is not party-0's" in str(problem_of(honest, tmp_path, chain_again(lines)))
    with pytest.raises(vf.RunError, match="there is no party"):
        problem_of(honest, tmp_path, [line.replace(b'"party-0"', b'"mallory"') for line in lines])
    with pytest.raises(vf.RunError, match="is not a transcript"):
        problem_of(honest, tmp_path, [b"[1]"])


def test_a_shortened_transcript_is_found(honest: Trial, tmp_path: Path) -> None:
    """The chain of its beginning is intact, but the others were told of replies that it does not have."""
    lines = lines_of(honest)
    signatures = [i for i, line in enumerate(lines) if b'"kind":"signature"' in line]
    cut = signatures[len(signatures) // 2]
    assert problem_of(honest, tmp_path, lines[: cut + 1]) is None
    others = [honest.folder / f"run-{name}" for name in ("party-0", "party-2")]
    found = verify(honest.agreement, tmp_path, *others)
    assert not found["agree"]
    assert "the transcript of party-1 has no reply in that round" in found["verdict"]
    with_coordinator = verify(honest.agreement, tmp_path, honest.folder / "run-server")
    assert "that the transcript of party-1 does not have" in with_coordinator["verdict"]


# -- a coordinator that says different things ------------------------------------------------------------


def test_a_party_that_gets_other_updates_is_found(tmp_path: Path, small_parties: list[vf.PartyData]) -> None:
    def lie(message: Message) -> Message:
        if isinstance(message, RoundStart) and message.round >= 5 and message.updates is not None:
            other = message.updates.copy()
            other[0] = 0 if other[0] else 1
            return message.model_copy(update={"updates": other})
        return message

    federated = deceived(tmp_path, small_parties, lie)
    found = verify_all(federated)
    assert not found["agree"]
    first = found["differences"][0]
    assert (first["stage"], first["round"], first["field"]) == ("ratings", 4, "updates")
    assert "party-1" in first["between"]
    assert "round 4: the field updates differs between party-0 and party-1" in found["verdict"]
    with_coordinator = verify_all(federated, SERVER, "party-1")
    assert "party-1 received a RoundStart" in with_coordinator["verdict"], (
        "one party and the coordinator suffice"
    )


def test_a_party_that_gets_another_active_set_is_found(
    tmp_path: Path, small_parties: list[vf.PartyData]
) -> None:
    def lie(message: Message) -> Message:
        if isinstance(message, RoundStart) and message.round in (4, 7):
            return message.model_copy(update={"active": [0, 1]})
        return message

    found = verify_all(deceived(tmp_path, small_parties, lie))
    first = found["differences"][0]
    assert (first["round"], first["field"]) == (4, "active")
    assert "party-0 has party-0, party-1, party-2, party-1 has party-0, party-1" in first["text"]


def test_a_party_that_gets_another_survivor_list_is_found(
    tmp_path: Path, small_parties: list[vf.PartyData], clock: Clock
) -> None:
    """Signatures and thresholds already keep it from a second sum; the transcripts show that it was tried."""

    def lie(message: Message) -> Message:
        if isinstance(message, Survivors) and message.round == 4:
            return message.model_copy(update={"survivors": [0, 1]})
        return message

    federated = trial(tmp_path, small_parties, settings(), min_parties=2, timeouts=PATIENT)
    federated.hub = LyingHub("party-1", lie)
    federated.run_without("party-1", clock)
    found = verify_all(federated)
    assert not found["agree"]
    first = found["differences"][0]
    assert (first["round"], first["field"]) == (4, "survivors")
    assert "party-0 has party-0, party-1, party-2, party-1 has party-0, party-1" in first["text"]


def test_parties_in_two_trainings_are_found(tmp_path: Path, small_parties: list[vf.PartyData]) -> None:
    """Another name of the training does not keep transcripts from being compared."""

    def lie(message: Message) -> Message:
        return message.model_copy(update={"training": "other"}) if isinstance(message, Welcome) else message

    found = verify_all(deceived(tmp_path, small_parties, lie))
    assert "the field training differs between party-0 and party-1" in found["verdict"]


def other_value(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value + 1
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, tuple):
        return tuple(one + 1 for one in value)
    if isinstance(value, list):
        return [*value, *value] if value else [[0]]
    return np.ones(5, np.float32)


TO_EACH: dict[type[Message], frozenset[str]] = {
    AlignStart: frozenset({"index"}),
    UserRows: frozenset({"rows"}),
    Welcome: frozenset({"index", "stay"}),
    RoundStart: frozenset(),
    Survivors: frozenset({"signatures"}),
    Finish: frozenset({"parameters"}),
}
"""Fields that may differ between parties: places, and signatures, which each party checks.

All others are stated. The requests and shares of masks are not: sealed shares open only among parties that received the same.
"""


@pytest.mark.parametrize("kind", TO_EACH, ids=lambda kind: kind.__name__)
def test_every_field_is_stated_unless_it_may_differ_between_parties(kind: type[Message]) -> None:
    """A new field of a message from the coordinator has to be stated, or listed in TO_EACH with a reason."""
    (message,) = (message for message in ALL if type(message) is kind)

    model: Any = SimpleNamespace(size=1)
    if isinstance(message, RoundStart):
        message = message.model_copy(update={"parameters": np.ones(5, np.float32)})
    before = common_statements(message, model)
    assert before
    for name in kind.model_fields:
        changed = message.model_copy(update={name: other_value(getattr(message, name))})
        assert (common_statements(changed, model) != before) != (name in TO_EACH[kind]), name


# -- the command -----------------------------------------------------------------------------------------


def test_the_command_shows_the_first_difference(
    honest: Trial, tmp_path: Path, command: Callable[..., tuple[int, str, str]]
) -> None:
    save_agreement(tmp_path / "federation.toml", honest.agreement)
    folders = [honest.folder / f"run-{name}" for name in PARTIES]
    code, out, _ = command("federation", "verify", *folders, "--federation", tmp_path)
    assert code == 0
    assert "3 parties received the same" in out
    lines = lines_of(honest)
    (tmp_path / TRANSCRIPT).write_bytes(b"\n".join([*lines[:20], *lines[21:]]) + b"\n")
    files = [tmp_path / TRANSCRIPT, folders[0] / TRANSCRIPT]
    code, out, err = command("federation", "verify", *files, "--federation", tmp_path, "--json")
    assert code == 1
    assert "line 21 does not follow line 20" in json.loads(out)["verdict"]
    code, _, err = command("federation", "verify", tmp_path / "none", "--federation", tmp_path)
    assert code == 2
    assert "cannot read the transcript" in err

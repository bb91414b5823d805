"""A member's transcript: an append-only, hash-chained log of the messages it sent and received, signed with its key.

Every line of `transcript.jsonl` is one entry in JSON. It holds the SHA-256 of the line before it, so no entry can be changed,
removed or moved without breaking the chain. Signatures of the chain's head are entries, too. An entry describes a message by
its size, its SHA-256 and the statements that all parties must have received alike. It holds no ratings, ids, masks or keys.

A check reads transcripts of several members: is each complete, unchanged and signed by its member, and did every party receive
the same?
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from verfedgnn.core.errors import ConfigError, RunError
from verfedgnn.core.files import check_links, make_folder, write_all, writing
from verfedgnn.federation.agreement import Agreement, Member, list_stages
from verfedgnn.federation.certificates import COORDINATOR
from verfedgnn.federation.event_log import log_warning
from verfedgnn.federation.roster import MemberIdentity, is_signed
from verfedgnn.protocol.messages import EncodedMessage, Message, RoundReply
from verfedgnn.runs.ledger import Direction, Ledger

TRANSCRIPT = "transcript.jsonl"
"""Name of the file in a run folder."""
PURPOSE = "transcript"
"""What a signature of a chain's head is for."""
NOTHING = "0" * 64
"""Hash before the first entry."""
MOST_BYTES = 1 << 20
"""Bytes of a line, at most."""
STARTED = "started"
FINISHED = "finished"
SIGNATURE = "signature"
SPENT = "spent"
ALIGNMENT = "alignment"

Statements = dict[str, dict[str, Any]]
"""What the coordinator must say to all parties alike: values with named fields, by subject."""

CONTRIBUTORS = "update_parties"
"""The field of a statement that names the parties in a sum of gradients."""
_OF_PARTIES = (CONTRIBUTORS, "neighbourhood_parties", "active", "survivors")
"""Fields of statements that are lists of parties."""

_FLUSH_SECONDS = 1.0
_SHA256 = "^[0-9a-f]{64}$"


class TranscriptEntry(BaseModel):
    """One line of a transcript."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    number: int = Field(ge=1)
    time: str = Field(max_length=40)
    """When the entry was written (UTC)."""
    way: Literal["in", "out", "note"]
    """Whether the message was received or sent; notes are about the member itself."""
    kind: str = Field(max_length=40)
    """Kind of the message or the note."""
    stage: str | None = Field(None, max_length=40)
    """The training that the message belongs to, or "alignment"."""
    peer: str | None = Field(None, max_length=200)
    round: int | None = None
    attempt: int | None = None
    bytes: int | None = Field(None, ge=0)
    """Size of the encoded message."""
    sha256: str | None = Field(None, pattern=_SHA256)
    """Hash of the encoded message."""
    common: Statements | None = None
    """The statements that all parties must have received alike."""
    values: dict[str, str | int | float] | None = None
    """Content of a note."""
    signature: str | None = Field(None, max_length=300)
    """Signature of the hash of the previous entry, which covers everything before it."""
    previous: str = Field(pattern=_SHA256)
    """Hash of the previous line."""


class MessageMark(NamedTuple):
    """What a transcript keeps of an encoded message."""

    size: int
    sha256: str


def mark_message(data: EncodedMessage) -> MessageMark:
    """Return the size and the hash of an encoded message."""
    digest = hashlib.sha256()
    for part in data:
        digest.update(part)
    return MessageMark(sum(map(len, data)), digest.hexdigest())


class Transcript:
    """The transcript in a member's run folder. A restart continues it; a torn last line is cut off and noted."""

    def __init__(self, folder: Path, identity: MemberIdentity) -> None:
        self.file = folder / TRANSCRIPT
        self.identity = identity
        self._head = NOTHING
        self._number = 0
        self.released: Counter[str | None] = Counter()
        """Number of releases that had left a party, by training, when it stopped the last time."""
        self.ledgers: defaultdict[str, Ledger] = defaultdict(Ledger)
        """Messages and bytes by training, before restarts too; those of the alignment count for the first training."""
        self._signed = 0
        """Number of the last signature."""
        self._flushed = 0.0
        with writing(folder):
            make_folder(folder)
            self._handle = os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            cut = self._continue()
        self.note(STARTED, member=identity.name, agreement=identity.agreement.digest())
        if cut:
            log_warning("the end of the transcript was damaged and is cut off", bytes=cut)
            self.note("cut", bytes=cut)

    def __del__(self) -> None:
        with suppress(OSError, AttributeError):
            os.close(self._handle)

    def record(
        self,
        way: Literal["in", "out"],
        peer: str,
        message: Message | None,
        mark: MessageMark,
        stage: str,
        common: Statements | None = None,
    ) -> None:
        """Append a message that is sent or was received, and whose encoded form has that mark; None if it is unreadable."""
        place = {name: getattr(message, name, None) for name in ("round", "attempt")}
        kind = "unreadable" if message is None else type(message).__name__
        about: dict[str, Any] = {"way": way, "kind": kind, "stage": stage, "peer": peer, **place}
        self._append(**about, bytes=mark.size, sha256=mark.sha256, common=common or None)
        self._count(way, kind, peer, stage, mark.size)

    def _count(self, way: str, kind: str, peer: str, stage: str, size: int) -> None:
        hosts = self.identity.is_coordinator
        direction: Direction = "up" if (way == "in") == hosts else "down"
        ledger = self.ledgers[list_stages(self.identity.agreement)[0].name if stage == ALIGNMENT else stage]
        ledger.record(kind, direction, peer if hosts else self.identity.name, size)

    def total(self, direction: Direction, party: str | None = None) -> int:
        """Return the bytes of all trainings."""
        return sum(ledger.total(direction, party=party) for ledger in self.ledgers.values())

    def note(self, kind: str, stage: str | None = None, **values: str | int | float) -> None:
        """Append a note about this member."""
        self._append(way="note", kind=kind, stage=stage, values=values)

    def sign(self) -> None:
        """Sign everything so far, and flush it to disk if the last flush is more than a second ago."""
        if self._signed != self._number:
            self._append(way="note", kind=SIGNATURE, signature=self.identity.sign(PURPOSE, self._head))
            self._signed = self._number
        if time.monotonic() - self._flushed > _FLUSH_SECONDS:
            self._flush()

    def finish(self) -> None:
        """Note that the last training is over; sign and flush everything."""
        self.note(FINISHED)
        self.sign()
        self._flush()

    def _flush(self) -> None:
        with writing(self.file):
            os.fsync(self._handle)
        self._flushed = time.monotonic()

    def _append(self, **fields: Any) -> None:
        self._number += 1
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        entry = {"number": self._number, "time": now, **fields, "previous": self._head}
        present = {name: value for name, value in entry.items() if value is not None}
        line = json.dumps(present, separators=(",", ":"), allow_nan=False).encode()
        self._head = hashlib.sha256(line).hexdigest()
        with writing(self.file):
            write_all(self._handle, line + b"\n")

    def _continue(self) -> int:
        """Find the last entry of an existing file; cut off and count the bytes after it that are no entry."""
        good = place = spent = 0
        for line, entry in read_lines(self.file):
            place += len(line) + 1
            if entry is not None:
                good = place
                self._number = entry.number
                self._head = hashlib.sha256(line).hexdigest()
                if entry.way != "note":
                    about = (entry.peer or "", entry.stage or ALIGNMENT, entry.bytes or 0)
                    self._count(entry.way, entry.kind, *about)
                if entry.kind == SPENT and entry.values is not None:
                    spent = int(entry.values["releases"])
                elif (entry.way, entry.kind) == ("out", RoundReply.__name__):
                    self.released[entry.stage] = spent
        size = os.fstat(self._handle).st_size
        os.truncate(self._handle, good)
        return size - good


def read_lines(file: Path) -> Iterator[tuple[bytes, TranscriptEntry | None]]:
    """Yield every line of a transcript without its newline, and the entry that it holds; None if it holds none."""
    try:
        with file.open("rb") as lines:
            while line := lines.readline(MOST_BYTES):
                entry = None
                if line.endswith(b"\n"):
                    with suppress(ValidationError):
                        entry = TranscriptEntry.model_validate_json(line)
                yield line.removesuffix(b"\n"), entry
    except OSError as error:
        raise RunError(f"cannot read the transcript {file}: {error.strerror or error}") from None


# -- the check of several transcripts ----------------------------------------------------------------------------------------


@dataclass
class CheckedTranscript:
    """A transcript and what its check found."""

    file: Path
    member: Member
    entries: list[TranscriptEntry] = field(default_factory=list)
    problem: str | None = None
    """The first thing that is wrong with it; the entries end before it."""
    signed: int = 0
    """Number of entries that a valid signature covers."""

    def summary(self) -> dict[str, Any]:
        """Return what the check found as JSON values."""
        return {
            "member": self.member.name,
            "file": str(self.file),
            "entries": len(self.entries),
            "signed": self.signed,
            "rounds": max((entry.round or 0 for entry in self.entries), default=0),
            "restarts": sum(entry.kind == STARTED for entry in self.entries) - 1,
            "finished": any(entry.kind == FINISHED for entry in self.entries[: self.signed]),
            "problem": self.problem,
        }


def check_transcript(path: Path, agreement: Agreement) -> CheckedTranscript:
    """Read the transcript in a file or run folder, and check its chain and signatures against the roster."""
    check_links(path)
    file = path / TRANSCRIPT if path.is_dir() else path
    lines = list(read_lines(file))
    first = lines[0][1] if lines else None
    if first is None or first.kind != STARTED or first.values is None:
        raise RunError(f"{file} is not a transcript; pass a {TRANSCRIPT} or the run folder that holds it")
    try:
        checked = CheckedTranscript(file, agreement.member(str(first.values.get("member", ""))))
    except ConfigError as error:
        raise RunError(f"{file}: {error}") from None
    digest = agreement.digest()
    if first.values.get("agreement") != digest:
        remedy = "pass the file that the run used"
        raise RunError(f"{file} belongs to another agreement than the given federation.toml; {remedy}")
    head = NOTHING
    for number, (line, entry) in enumerate(lines, 1):
        if entry is None:  # an incomplete last line is what a killed process leaves behind
            if number < len(lines):
                checked.problem = f"line {number} is not an entry: the file was changed or is damaged"
            break
        if entry.number != number or entry.previous != head:
            moved = "an entry was changed, removed or moved"
            checked.problem = f"line {number} does not follow line {number - 1}: {moved}"
            break
        if entry.kind == SIGNATURE:
            if not is_signed(digest, checked.member, PURPOSE, head, entry.signature or ""):
                whose = f"is not {checked.member.name}'s: what comes before it was changed"
                checked.problem = f"the signature in line {number} {whose}"
                break
            checked.signed = number
        checked.entries.append(entry)
        head = hashlib.sha256(line).hexdigest()
    return checked


class Difference(NamedTuple):
    """Something that two transcripts do not agree on."""

    stage: str
    """The training, or "alignment"."""
    round: int | None
    between: tuple[str, str]
    field: str
    text: str
    """The difference in one sentence."""


class _View:
    """What one party received, and which rounds it replied to."""

    def __init__(self, transcript: CheckedTranscript) -> None:
        self.name = transcript.member.name
        self.told: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
        """Distinct values, by themselves as JSON, by stage and subject; of the alignments, the last one counts."""
        self.replied: set[tuple[str, int | None]] = set()
        """Stage and round of its replies with a gradient."""
        for entry in transcript.entries:
            stage, said = entry.stage or ALIGNMENT, entry.common or {}
            if entry.kind == ALIGNMENT and entry.values is not None:
                self.told.pop((stage, "name"), None)
                said = {"name": {"alignment": entry.values.get("name")}}
            for subject, value in said.items():
                known = self.told.setdefault((stage, subject), {})
                known.setdefault(json.dumps(value, sort_keys=True), value)
            if (entry.way, entry.kind) == ("out", RoundReply.__name__):
                self.replied.add((stage, entry.round))


def compare_transcripts(transcripts: Sequence[CheckedTranscript], agreement: Agreement) -> list[Difference]:
    """Return all differences between the transcripts of one federation, in the order of rounds."""
    views = [_View(one) for one in transcripts if one.member.name != COORDINATOR]
    names = [party.name for party in agreement.parties]
    stages = [entry.stage or ALIGNMENT for one in transcripts for entry in one.entries]
    order = {stage: place for place, stage in enumerate(dict.fromkeys(stages))}
    differences = [
        one._replace(text=f"{one.stage}{f', round {one.round}' if one.round else ''}: {one.text}")
        for one in (
            *_compare_statements(views, names),
            *_compare_replies(views, names),
            *_compare_messages(transcripts),
        )
    ]
    return sorted(differences, key=lambda one: (order[one.stage], one.round or 0))


def summarise_comparison(
    transcripts: Sequence[CheckedTranscript], differences: Sequence[Difference]
) -> dict[str, Any]:
    """Return the result of a check as JSON values, with a verdict in words."""
    summaries = [one.summary() for one in transcripts]
    problems = [f"{one['member']}: {one['problem']} ({one['file']})" for one in summaries if one["problem"]]
    problems += [one.text for one in differences]
    parties = sum(one["member"] != COORDINATOR for one in summaries)
    verdict = "unchanged; pass transcripts of two or more parties to compare what they received"
    if problems:
        more = f" ({len(problems) - 1} more)" if len(problems) > 1 else ""
        verdict = f"first problem{more}: {problems[0]}"
    elif parties > 1:
        verdict = f"{parties} parties received the same in every round that their transcripts share"
    remarks = []
    for one in (one for one in summaries if one["problem"] is None):
        name, unsigned = one["member"], one["entries"] - one["signed"]
        if not one["finished"]:
            remarks.append(f"{name} has not finished: its transcript ends in round {one['rounds']}")
        if unsigned:
            change = "whoever holds the file could change these"
            remarks.append(f"{name} has not signed the last {unsigned} entries: {change}")
    return {
        "agree": not problems,
        "verdict": verdict,
        "problems": problems,
        "remarks": remarks,
        "transcripts": summaries,
        "differences": [one._asdict() for one in differences],
    }


def _compare_statements(views: Sequence[_View], names: Sequence[str]) -> Iterator[Difference]:
    """Compare what parties received on each subject.

    A coordinator that was killed repeats its open round, perhaps with fewer parties. A party may then have two values of one
    subject. The party with most values is the reference, and every other one must share a value with it.
    """
    for stage, subject in dict.fromkeys(key for view in views for key in view.told):
        told = [view for view in views if (stage, subject) in view.told]
        reference = max(told, key=lambda view: len(view.told[stage, subject]))
        for view in told:
            values, others = (each.told[stage, subject] for each in (reference, view))
            if not values.keys().isdisjoint(others):
                continue
            one, other = (next(reversed(each.values())) for each in (values, others))
            what = next((name for name in one if one[name] != other.get(name)), next(iter(other), ""))
            first, second = (_show(value.get(what), what, names) for value in (one, other))
            text = f"the field {what} differs between {reference.name} and {view.name}: "
            text += f"{reference.name} has {first}, {view.name} has {second}"
            yield Difference(stage, _round_of(subject), (reference.name, view.name), what, text)


def _compare_replies(views: Sequence[_View], names: Sequence[str]) -> Iterator[Difference]:
    """Find sums that name a party as a contributor whose transcript has no reply in that round."""
    for teller in views:
        for (stage, subject), values in teller.told.items():
            told = next(reversed(values.values())).get(CONTRIBUTORS)
            if not subject.startswith("update ") or not isinstance(told, list):
                continue
            round = _round_of(subject)
            for view in views:
                if names.index(view.name) in told and (stage, round) not in view.replied:
                    text = f"the sum of gradients that {teller.name} received includes {view.name}, "
                    text += f"but the transcript of {view.name} has no reply in that round"
                    yield Difference(stage, round, (teller.name, view.name), "reply", text)


def _compare_messages(transcripts: Sequence[CheckedTranscript]) -> Iterator[Difference]:
    """Find messages that a party received and the coordinator's transcript does not have, and the reverse."""
    hubs = [one for one in transcripts if one.member.name == COORDINATOR][:1]
    for hub, party in ((hub, one) for hub in hubs for one in transcripts if one is not hub):
        for receiver, sender in ((party, hub), (hub, party)):
            between = (receiver.member.name, sender.member.name)
            sent = {entry.sha256 for entry in sender.entries if entry.way == "out"}
            for entry in receiver.entries:
                if entry.way == "in" and entry.peer == between[1] and entry.sha256 not in sent:
                    text = f"{between[0]} received a {entry.kind} (line {entry.number}) "
                    text += f"that the transcript of {between[1]} does not have"
                    yield Difference(entry.stage or ALIGNMENT, entry.round, between, entry.kind, text)
                    break


def _round_of(subject: str) -> int | None:
    """Return the round that a subject such as `update 4` or `instruction 5.0` names; None if it names none."""
    place = re.fullmatch(r"[a-z]+ ([0-9]{1,10})(\.[0-9]+)?", subject)
    return None if place is None else int(place[1])


def _show(value: Any, what: str, names: Sequence[str]) -> str:
    if what in _OF_PARTIES and isinstance(value, list):
        known = dict(enumerate(names))
        return ", ".join(known.get(i, str(i)[:20]) if isinstance(i, int) else str(i)[:20] for i in value)
    text = str(value)
    return f"{text[:16]}..." if len(text) > 64 else text

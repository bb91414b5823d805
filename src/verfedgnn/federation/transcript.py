"""A member's transcript: an append-only, hash-chained log of the messages it sent and received, signed with its key.

Every line of `transcript.jsonl` is one entry in JSON. It holds the SHA-256 of the line before it, so no entry can be changed,
removed or moved without breaking the chain. Signatures of the chain's head are entries, too. An entry describes a message by
its size, its SHA-256 and the statements that all parties must have received alike. It holds no ratings, ids, masks or keys.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from verfedgnn.core.errors import RunError
from verfedgnn.core.files import make_folder, write_all, writing
from verfedgnn.federation.event_log import log_warning
from verfedgnn.federation.roster import MemberIdentity
from verfedgnn.protocol.framing import EncodedMessage
from verfedgnn.protocol.messages import Message, RoundReply

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
    common: dict[str, dict[str, Any]] | None = None
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
    found = hashlib.sha256()
    for part in data:
        found.update(part)
    return MessageMark(sum(map(len, data)), found.hexdigest())


class Transcript:
    """The transcript in a member's run folder. A restart continues it; a torn last line is cut off and noted."""

    def __init__(self, folder: Path, identity: MemberIdentity) -> None:
        self.file = folder / TRANSCRIPT
        self.identity = identity
        self._head = NOTHING
        self._number = 0
        self.released: Counter[str | None] = Counter()
        """Number of releases that had left a party, by training, when it stopped the last time."""
        self._is_signed = True
        self._flushed = 0.0
        self._held: list[bytes] | None = None
        """Lines that are not written yet; None outside of `together`."""
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
        common: dict[str, dict[str, Any]] | None = None,
    ) -> None:
        """Append a message that is sent or was received, and whose encoded form has that mark; None if it is unreadable."""
        place = {name: getattr(message, name, None) for name in ("round", "attempt")}
        kind = "unreadable" if message is None else type(message).__name__
        about: dict[str, Any] = {"way": way, "kind": kind, "stage": stage, "peer": peer, **place}
        self._append(**about, bytes=mark.size, sha256=mark.sha256, common=common or None)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Write all entries of the block at its end, as one."""
        self._held = []
        try:
            yield
        finally:
            lines = self._held
            self._held = None
            self._write(b"".join(lines))

    def note(self, kind: str, stage: str | None = None, **values: str | int | float) -> None:
        """Append a note about this member."""
        self._append(way="note", kind=kind, stage=stage, values=values)

    def sign(self) -> None:
        """Sign everything so far, and flush it to disk if the last flush is more than a second ago."""
        if not self._is_signed:
            self._append(way="note", kind=SIGNATURE, signature=self.identity.sign(PURPOSE, self._head))
            self._is_signed = True
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
        self._is_signed = False
        if self._held is None:
            self._write(line + b"\n")
        else:
            self._held.append(line + b"\n")

    def _write(self, lines: bytes) -> None:
        with writing(self.file):
            write_all(self._handle, lines)

    def _continue(self) -> int:
        """Find the last entry of an existing file; cut off and count the bytes after it that are no entry."""
        good = 0
        place = 0
        spent = 0
        for line, entry in read_lines(self.file):
            place += len(line) + 1
            if entry is not None:
                good = place
                self._number = entry.number
                self._head = hashlib.sha256(line).hexdigest()
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
                yield line.removesuffix(b"\n"), _read_entry(line)
    except OSError as error:
        raise RunError(f"cannot read the transcript {file}: {error.strerror or error}") from None


def _read_entry(line: bytes) -> TranscriptEntry | None:
    if not line.endswith(b"\n"):
        return None
    try:
        return TranscriptEntry.model_validate_json(line)
    except ValidationError:
        return None

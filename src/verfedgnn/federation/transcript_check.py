"""Check of one transcript: is it complete, unchanged and signed by the member that it names?"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from verfedgnn.core.errors import ConfigError, RunError
from verfedgnn.federation.agreement import Agreement, Member
from verfedgnn.federation.identity import is_signed
from verfedgnn.federation.transcript import (
    FINISHED,
    NOTHING,
    PURPOSE,
    SIGNATURE,
    STARTED,
    TRANSCRIPT,
    TranscriptEntry,
    read_lines,
)


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

    @property
    def name(self) -> str:
        """The member that wrote it."""
        return self.member.name

    @property
    def is_finished(self) -> bool:
        """Whether the member noted the end of the last training, and signed that."""
        return any(entry.kind == FINISHED for entry in self.entries[: self.signed])

    @property
    def restarts(self) -> int:
        """How often the member started again."""
        return sum(entry.kind == STARTED for entry in self.entries) - 1

    @property
    def rounds(self) -> int:
        """Number of the last round that it mentions; shares that were sent ahead are of a round that may never start."""
        return max((entry.round or 0 for entry in self.entries if entry.kind != "MaskShares"), default=0)


def check_transcript(path: Path, agreement: Agreement) -> CheckedTranscript:
    """Read the transcript in a file or run folder, and check its chain and signatures against the roster."""
    file = path / TRANSCRIPT if path.is_dir() else path
    lines = list(read_lines(file))
    first = lines[0][1] if lines else None
    if first is None or first.kind != STARTED or first.values is None:
        raise RunError(f"{file} is not a transcript; pass a {TRANSCRIPT} or the run folder that holds it")
    try:
        member = agreement.member(str(first.values.get("member", "")))
    except ConfigError as error:
        raise RunError(f"{file}: {error}") from None
    digest = agreement.digest()
    if first.values.get("agreement") != digest:
        raise RunError(
            f"{file} belongs to another agreement than the given federation.toml; pass the file that the run used"
        )
    found = CheckedTranscript(file, member)
    head = NOTHING
    for number, (line, entry) in enumerate(lines, 1):
        found.problem = _line_problem(digest, member, number, len(lines), entry, head)
        if found.problem is not None or entry is None:
            break
        found.entries.append(entry)
        if entry.kind == SIGNATURE:
            found.signed = number
        head = hashlib.sha256(line).hexdigest()
    return found


def _line_problem(
    agreement: str, member: Member, number: int, lines: int, entry: TranscriptEntry | None, head: str
) -> str | None:
    """Return what is wrong with a line that should follow the entry with the hash `head`; None if nothing is."""
    if entry is None:  # an incomplete last line is what a killed process leaves behind
        return (
            None if number == lines else f"line {number} is not an entry: the file was changed or is damaged"
        )
    if entry.number != number or entry.previous != head:
        return f"line {number} does not follow line {number - 1}: an entry was changed, removed or moved"
    if entry.kind == SIGNATURE and not is_signed(agreement, member, PURPOSE, head, entry.signature or ""):
        return f"the signature in line {number} is not {member.name}'s: what comes before it was changed"
    return None

"""What a run has forgotten: a record of what was done, and a list that keeps forgotten users out of later trainings.

    RUN/forget.json     what was done and what remains, with a keyed hash instead of each id
    RUN/forgotten.json  the hashes of all forgotten users, by the key of the hashes; also those of the runs before

A party of a federation has such a list beside its private key, too, which `forget` in one of its run folders adds to. So a user who
was forgotten in one of them stays out of all its later trainings.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ConfigDict, TypeAdapter

from verfedgnn.core.errors import RunError, RunWarning
from verfedgnn.core.files import check_links, parsing
from verfedgnn.core.option_names import make_printable
from verfedgnn.data import PartyData
from verfedgnn.data.ids import StrArray, spell
from verfedgnn.data.ratings import Mask, format_count
from verfedgnn.privacy.id_matching import normalise_ids
from verfedgnn.runs.run import write_json
from verfedgnn.runs.run_folder import FORGET_RECORD, FORGOTTEN


@dataclass(frozen=True)
class ForgottenUsers:
    """A list of forgotten users, without ids."""

    __pydantic_config__ = ConfigDict(extra="forbid")
    hashes: dict[str, list[str]] = field(default_factory=dict)
    """Hashes of ids, by their key in hex. The first key is that of new entries."""
    runs: list[str] = field(default_factory=list)
    """Run folders of the party that has the list; none in the list of a run."""
    party: list[str] = field(default_factory=list)
    """Places of the party's list, in the list of its run: with one key in both, what is forgotten in the run goes there, too."""

    @classmethod
    def read(cls, file: Path) -> ForgottenUsers:
        """Read a list; it is empty if there is no file."""
        with parsing(str(file), "nobody knows who was forgotten: restore it from a backup"):
            if not file.is_file():
                return cls()
            found = TypeAdapter(cls).validate_json(file.read_bytes())
            _ = [*map(bytes.fromhex, found.hashes), *map(os.path.realpath, (*found.runs, *found.party))]
        return found

    def write(self, file: Path) -> None:
        """Write the list to a file that only its owner can read."""
        write_json(file, asdict(self))

    def add(self, others: Iterable[ForgottenUsers]) -> ForgottenUsers:
        """Return the list with the users of other lists."""
        hashes = dict(self.hashes)
        for other in others:
            for key, users in other.hashes.items():
                hashes[key] = sorted({*hashes.get(key, []), *users})
        return replace(self, hashes=hashes)

    def find(self, users: StrArray) -> Mask:
        """Return who of `users` is in the list. Spellings do not matter, also that of a run without domains."""
        found = np.zeros(len(users), bool)
        if any(self.hashes.values()):
            forms = [_mark_exact(users), *_spell_alike(users)]
            for key, hashes in self.hashes.items():
                gone = set(hashes)
                for ids in forms:
                    found |= np.fromiter((each in gone for each in _hash(key, ids)), bool, len(ids))
        return np.asarray(found & (users != ""))

    def find_at(self, parties: Sequence[PartyData]) -> list[Mask]:
        """Return who of the users of parties to leave out at each of them: one party may write the mail address that was forgotten."""
        everywhere, written = self.find(parties[0].ratings.user_ids), [p.ratings.written for p in parties]
        return [everywhere if ids is None else everywhere | self.find(ids) for ids in written]

    def leave_out(self, parties: Sequence[PartyData]) -> tuple[list[PartyData], list[Mask], int]:
        """Return parties without these users, which of their ratings stay, and the number of users."""
        gone = self.find_at(parties)
        stay = [~out[party.ratings.user] for party, out in zip(parties, gone, strict=True)]
        lost = np.any(gone, 0)
        if not (count := int(lost.sum())):
            return list(parties), stay, 0
        note = f"{format_count(count, 'forgotten user')}: left out"
        tables = [p.ratings.take(which).with_notes(note) for p, which in zip(parties, stay, strict=True)]
        lost[np.concatenate([table.user for table in tables])] = False
        left = zip(parties, tables, strict=True)
        return [PartyData(p.name, table.select_users(~lost)) for p, table in left], stay, count


def _spell_alike(ids: StrArray) -> list[list[str]]:
    """Return ids as the alignment spells them, without what options of reading remove; also without the domains, if there are any."""
    short = spell(ids, "mail")
    forms = [ids, short] if (short != ids).any() else [ids]
    return [spell(normalise_ids(each), "lower+number").tolist() for each in forms]


def _mark_exact(ids: StrArray) -> list[str]:
    return [f"\0{each}" for each in ids.tolist()]


def note_forgotten(folder: Path, users: StrArray, others: StrArray | None = None) -> list[str]:
    """Add users to the list of a run folder, whose key is created if it is missing, and return their hashes.

    A user whom only the spelling tells from the `others`, who stay, is listed by the exact id, since they are not to go, too.
    """
    known = ForgottenUsers.read(folder / FORGOTTEN)
    key = next(iter(known.hashes), None) or secrets.token_hex(32)
    taken = set() if others is None else set(chain(*_spell_alike(others)))
    forms = zip(_spell_alike(users)[0], _mark_exact(users), strict=True)
    new = list(_hash(key, (exact if alike in taken else alike for alike, exact in forms)))
    known.add([ForgottenUsers({key: new})]).write(folder / FORGOTTEN)
    places = {os.path.realpath(folder / place) for place in known.party if place.endswith(f".{FORGOTTEN}")}
    reached = []
    for file in map(Path, places):
        try:
            theirs = ForgottenUsers.read(file)
            if key in theirs.hashes:  # a run of somebody else may name any file
                theirs.add([ForgottenUsers({key: new})]).write(file)
                reached.append(True)
        except (OSError, RunError):
            reached.append(False)
    if places and not (reached and all(reached)):  # also on another machine, or after the key has moved
        files = make_printable(" or ".join(sorted(places)))
        remedy = f"keep {folder}, and name it with --after in the party's next training"
        warnings.warn(f"{files} cannot be read or written: {remedy}", RunWarning, stacklevel=2)
    return new


def read_forgotten_users(*runs: Path | None) -> ForgottenUsers:
    """Return whom some run folders have forgotten."""
    for each in (places := [run for run in runs if run is not None]):
        check_links(each)
    return ForgottenUsers().add(ForgottenUsers.read(run / FORGOTTEN) for run in places)


def gather_forgotten(key_file: Path, *runs: Path) -> ForgottenUsers:
    """Return whom a party has forgotten in `runs` or in any earlier run, and remember it beside its private key."""
    file = key_file.with_suffix(f".{FORGOTTEN}")
    known = ForgottenUsers.read(file)
    places = dict.fromkeys([*known.runs, *(str(run.resolve()) for run in runs)])
    lists = (ForgottenUsers.read(Path(place, FORGOTTEN)) for place in places)
    hashes = known.add(lists).hashes or {secrets.token_hex(32): []}
    found = ForgottenUsers(hashes, list(places))
    try:
        if found != known:
            found.write(file)
    except OSError as error:
        text = f"{file} cannot be written ({error.strerror}): name the run before with --after, or who was forgotten in it comes back"
        warnings.warn(text, RunWarning, stacklevel=2)
    return found


def write_party_run(folder: Path, forgotten: ForgottenUsers, key_file: Path) -> None:
    """Write the list of a party's run folder, which leads to the one beside the key, also if both move, or one of them."""
    file = key_file.with_suffix(f".{FORGOTTEN}").resolve()
    places = [str(file), os.path.relpath(file, folder.resolve())]
    ForgottenUsers(forgotten.hashes, party=places).write(folder / FORGOTTEN)


def append_record(folder: Path, entry: dict[str, Any]) -> dict[str, Any]:
    """Append an entry to the record, unless it is there already, and return it with the time."""
    file = folder / FORGET_RECORD
    with parsing(str(file), "move it away, then repeat the command"):
        earlier = json.loads(file.read_text("utf-8")) if file.is_file() else []
        for each in earlier:
            if each | entry == each:  # the process was killed after it wrote the record
                return dict(each)
    record = {"when": int(time.time()), **entry}
    write_json(file, [*earlier, record])
    return record


def _hash(key: str, ids: Iterable[str]) -> Iterator[str]:
    secret = bytes.fromhex(key)
    return (hmac.digest(secret, each.encode(), "sha256").hex() for each in ids)

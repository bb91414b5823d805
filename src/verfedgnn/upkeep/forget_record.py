"""The record of what a run has forgotten: keyed hashes instead of ids, what was done, and what remains."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from verfedgnn.core.files import write_bytes
from verfedgnn.runs.run import write_json
from verfedgnn.runs.run_layout import FORGET_RECORD

_KEY = "forget.key"
"""Key of the hashes in the record."""
_FEDERATED = "federation.txt"
"""File in the run folder of one party of a federation."""


def hash_ids(folder: Path, ids: Iterable[str]) -> list[str]:
    """Return a hash of each id under the key of the run folder, which is created if it is missing."""
    file = folder / _KEY
    if not file.is_file():
        write_bytes(file, secrets.token_bytes(32))
    key = file.read_bytes()
    return [hmac.new(key, each.encode(), hashlib.sha256).hexdigest() for each in ids]


def find_forgotten(folder: Path, users: Iterable[str]) -> list[str]:
    """Return the users among `users` who were forgotten in a run folder."""
    record = folder / FORGET_RECORD
    if not record.is_file():
        return []
    entries = json.loads(record.read_text("utf-8"))
    gone = {each for entry in entries for each in entry.get("users", [])}
    ids = [each for each in users if each]
    return [user for user, hashed in zip(ids, hash_ids(folder, ids), strict=True) if hashed in gone]


def append_record(folder: Path, entry: dict[str, Any]) -> dict[str, Any]:
    """Append an entry to the record, unless it is there already, and return it with the time."""
    file = folder / FORGET_RECORD
    earlier = json.loads(file.read_text("utf-8")) if file.is_file() else []
    for each in earlier:
        if each | entry == each:  # the process was killed after it wrote the record
            return dict(each)
    record = {"when": int(time.time()), **entry}
    write_json(file, [*earlier, record])
    return record


def is_federated(place: Path) -> bool:
    """Return whether a run folder, or the folder of its lists, belongs to one party of a federation."""
    return (place / _FEDERATED).is_file() or (place.parent / _FEDERATED).is_file()

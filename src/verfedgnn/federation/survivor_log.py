"""A party's file of survivor lists that it committed to. It is flushed to disk before any share leaves the party."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from verfedgnn.core.files import writing
from verfedgnn.protocol.party.list_commitments import ListCommitments, Trip


class SurvivorLog(ListCommitments):
    """Commitments in an append-only file, one JSON line each."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self._size = 0
        """Bytes of complete lines. A line that a kill cut short was never followed by a share, so it is overwritten."""
        if path.is_file():
            data = path.read_bytes()
            self._size = data.rfind(b"\n") + 1
            for line in data[: self._size].splitlines():
                training, round, trip, survivors = json.loads(line)
                self._lists[training, round, trip] = survivors

    def write(self, trip: Trip, survivors: Sequence[int]) -> None:
        """Append a commitment and flush it to disk."""
        line = json.dumps([*trip, list(survivors)], separators=(",", ":")).encode() + b"\n"
        with writing(self.path):
            handle = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.ftruncate(handle, self._size)
                os.pwrite(handle, line, self._size)
                os.fsync(handle)
            finally:
                os.close(handle)
        self._size += len(line)

"""A party's ledger of releases on disk: a line a release, flushed to disk before the release leaves the party.

The values of the last round are kept beside it, before masks, so that a repeated trip gets the same release also after a restart.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from verfedgnn.config import Config
from verfedgnn.core.errors import RunError
from verfedgnn.core.files import sync_folder, write_all, write_bytes, writing
from verfedgnn.protocol.checkpoint_state import CheckpointState
from verfedgnn.protocol.party.release_ledger import ReleaseEntry, ReleaseLedger, Values
from verfedgnn.runs.checkpoint_slots import CheckpointSlots
from verfedgnn.runs.run_layout import LAST_RELEASE

LEDGER = "releases.jsonl"
RELEASES = "releases"
"""Name of the number of releases that were on disk when a file was written."""


def open_ledger(folder: Path, config: Config) -> ReleaseLedger:
    """Return the ledger that `folder` holds, or a new one."""
    file = ReleaseFile(folder)
    ledger = ReleaseLedger(config, file.read(), store=file.append, flush=file.flush)
    file.read_last(ledger)
    return ledger


class ReleaseFile:
    """The two files of a ledger."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / LEDGER
        # Not durable: after a power cut the values may be lost, and the coordinator then abandons the round.
        self._last = CheckpointSlots(folder / LAST_RELEASE, durable=False)
        self._flusher = ThreadPoolExecutor(1, "flush")
        """The thread that flushes the ledger while the checkpoint is written."""
        self._flushing: Future[None] | None = None

    def read(self) -> list[ReleaseEntry]:
        """Return all entries. A line that a crash cut off is removed: its release never left the party."""
        if not self.path.is_file():
            return []
        data = self.path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            with writing(self.folder):
                write_bytes(self.path, whole)
        try:
            lines = [json.loads(line) for line in whole.splitlines()]
            return [ReleaseEntry(**{k: v for k, v in line.items() if k != "time"}) for line in lines]
        except (ValueError, TypeError, AttributeError) as error:
            raise RunError(
                f"{self.path} cannot be read ({error}), so this party does not know what it has released; "
                "start a new training with another --out (an older copy of the file would not know all releases)"
            ) from None

    def read_last(self, ledger: ReleaseLedger) -> None:
        """Load the values of the last round into `ledger`, unless they are lost; raise `RunError` if the ledger is older than they are."""
        try:
            found = self._last.read()
        except RunError:
            return
        if found is not None:
            ledger.check_age(found.values[RELEASES], str(self._last.folder))
            ledger.last = dict(found.state.arrays)
            ledger.last_round = found.round

    def append(self, entry: ReleaseEntry, values: Values, before: int) -> None:
        """Write a release after `before` others, and begin to flush it to disk; it may leave the party once `flush` returns."""
        self.flush()
        self._last.write(entry.round, CheckpointState(dict(values)), {RELEASES: before})
        line = {"time": datetime.now(UTC).isoformat(timespec="seconds"), **asdict(entry)}
        with writing(self.folder):
            is_new = not self.path.exists()
            handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                write_all(handle, json.dumps(line).encode() + b"\n")
                if is_new:
                    sync_folder(self.folder)
            except BaseException:
                os.close(handle)
                raise
        self._flushing = self._flusher.submit(_flush_and_close, handle)

    def flush(self) -> None:
        """Wait until the last release is on disk."""
        if self._flushing is not None:
            with writing(self.folder):
                self._flushing.result()
            self._flushing = None


def _flush_and_close(handle: int) -> None:
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

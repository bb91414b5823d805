"""A party's checkpoints in one training. Each of several workers writes its own, of its own users."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verfedgnn.federation.release_file import RELEASES
from verfedgnn.federation.worker_count import WORKERS, check_workers
from verfedgnn.protocol.party.party_progress import PartyProgress
from verfedgnn.protocol.party.release_ledger import ReleaseLedger
from verfedgnn.runs.checkpoint_slots import CheckpointSlots, SlotCheckpoint


class PartyCheckpoints:
    """The progress after each round, and the evaluated models after each validation, in `folder`."""

    def __init__(
        self, folder: Path, progress: PartyProgress, ledger: ReleaseLedger, workers: int = 1
    ) -> None:
        self.progress = progress
        self.ledger = ledger
        self.workers = workers
        """Number of workers of the party."""
        self._rounds = CheckpointSlots(folder / "party")
        self._models = CheckpointSlots(folder / "models")
        self._saved_models: int | None = None
        """Round of the models in the last checkpoint."""

    def write(self, round: int, values: Mapping[str, Any]) -> None:
        """Write the progress after a round, with `values` beside it."""
        newest = self.progress.evaluated[0] if self.progress.evaluated is not None else 0
        if newest != self._saved_models:
            self._models.write(newest, self.progress.models(), {})
            self._saved_models = newest
        releases = max(0, len(self.ledger.entries) - 1)  # the last one may still be on its way to the disk
        values = {**values, WORKERS: self.workers, RELEASES: releases}
        self._rounds.write(round, self.progress.checkpoint(), values)

    def restore(self, round: int | None = None) -> SlotCheckpoint | None:
        """Restore the progress of the newest checkpoint, or of that of a `round`; return None if there is none.

        Raise `RunError` if the ledger of releases is older.
        """
        found = self._rounds.read(round)
        models = self._models.read()
        if found is None or models is None:
            return None
        check_workers(found, self.workers)
        self.ledger.check_age(found.values[RELEASES], str(self._rounds.folder))
        self.progress.restore(found.state, models.state)
        self._saved_models = models.round
        return found

"""A coordinator's checkpoints in one training. Each of several workers writes its own, of its own users, at the same time.

A kill may leave some workers with the checkpoint of a round and others with the one before. All of them then restore the earlier
one. Nobody has heard of the later round, because the coordinator sends nothing until all workers have written theirs.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verfedgnn.core.errors import RunError
from verfedgnn.core.worker_group import WorkerGroup
from verfedgnn.federation.worker_count import WORKERS, check_workers
from verfedgnn.protocol.checkpoint_state import CheckpointState
from verfedgnn.protocol.round.worker_orders import Order, tell_all
from verfedgnn.runs.checkpoint_slots import CheckpointSlots, SlotCheckpoint

CHECKPOINT = "checkpoint"
"""Folder of the first worker's checkpoints in a training's folder; those of the others are below it."""
NONE = -1
"""Stands for a round where there is no checkpoint."""


def worker_folder(folder: Path, rank: int) -> Path:
    """Return the folder of a worker's checkpoints."""
    return folder / f"worker-{rank}" if rank else folder


class CoordinatorCheckpoints:
    """The checkpoints of one process; `stage` names the training. The first of several workers leads the others."""

    def __init__(self, folder: Path, stage: str, workers: WorkerGroup | None = None) -> None:
        self.stage = stage
        self.workers = workers
        self._slots = CheckpointSlots(worker_folder(folder, 0 if workers is None else workers.rank))

    @property
    def _count(self) -> int:
        return 1 if self.workers is None else self.workers.size

    def read(self) -> SlotCheckpoint | None:
        """Return the last checkpoint, or the last one that all workers have; None without one."""
        found = self._slots.read()
        if found is not None:
            check_workers(found, self._count)
        if self.workers is None:
            return found
        if self.workers.is_first:
            tell_all(self.workers, Order.STAGE, stage=self.stage)
        own = NONE if found is None else found.round
        rounds = [struct.unpack("<q", data)[0] for data in self.workers.gather(struct.pack("<q", own))]
        if max(rounds) - min(rounds) > 1:
            raise RunError(
                f"the workers have checkpoints of different rounds ({', '.join(map(str, rounds))}); keep the run folder of all "
                "workers in one place, or start a new training with another --out"
            )
        if min(rounds) == NONE:
            return None
        return found if own == min(rounds) else self._slots.read(min(rounds))

    def restore_others(self, round: int) -> None:
        """Let the other workers restore the checkpoint of a round."""
        if self.workers is not None:
            tell_all(self.workers, Order.RESTORE, stage=self.stage, round=round)

    def write(self, round: int, state: CheckpointState, values: Mapping[str, Any]) -> None:
        """Write a checkpoint, and wait until all workers have written theirs."""
        if self.workers is not None and self.workers.is_first:
            tell_all(self.workers, Order.CHECKPOINT, stage=self.stage, round=round)
        self._slots.write(round, state, {**values, WORKERS: self._count})
        if self.workers is not None:
            self.workers.wait()

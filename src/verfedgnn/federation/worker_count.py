"""The number of workers that wrote a checkpoint; each of them restores its own part."""

from __future__ import annotations

from verfedgnn.core.errors import RunError
from verfedgnn.runs.checkpoint_slots import SlotCheckpoint

WORKERS = "workers"
"""Name of the number among the values of a checkpoint."""


def check_workers(found: SlotCheckpoint, workers: int) -> None:
    """Raise `RunError` unless that many workers wrote a checkpoint."""
    before = found.values.get(WORKERS, 1)
    if before != workers:
        raise RunError(
            f"this training was started with {before} worker(s); resume it with --workers {before}"
        )

"""The last updates of the public parameters, for parties that missed them."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verfedgnn.protocol.checkpoint_state import CheckpointState
from verfedgnn.protocol.round.replica import FULL_COPY
from verfedgnn.protocol.round.user_blocks import UserBlocks

KEPT = 8
"""Updates kept for each block of users; more would be larger than a full copy."""


@dataclass(frozen=True)
class Update:
    """The summed protected gradient of one round."""

    round: int
    parties: list[int]
    """Indices of the parties in the sum."""
    total: NDArray[Any]
    start: NDArray[np.int16] | None = None
    """In the first round of a block of users, the biases that they start with (`user_starts`)."""


class UpdateLog:
    """The updates of the last rounds, in order."""

    def __init__(self, user_blocks: int) -> None:
        self._log: deque[Update] = deque(maxlen=KEPT * user_blocks)

    def add(self, update: Update) -> None:
        """Add the newest update and drop the oldest."""
        self._log.append(update)

    @property
    def last(self) -> list[Update]:
        """A list with the newest update, or an empty list."""
        return [self._log[-1]] if self._log else []

    def since(self, round: int, now: int, blocks: UserBlocks) -> list[Update] | None:
        """Return the updates after `round` up to `now`; None if a full copy is needed, or smaller.

        `blocks` are those of all users, of whom this log may hold some.
        """
        missed = [update for update in self._log if update.round > round]
        if now - round > len(missed):
            return None
        sizes = [
            blocks.in_round(each.round).model.size * each.total.itemsize for each in missed if each.parties
        ]
        return None if sum(sizes) > FULL_COPY * blocks.model.size else missed

    def of_rounds(self, rounds: Collection[int]) -> list[Update]:
        """Return the updates of some rounds."""
        return [update for update in self._log if update.round in rounds]

    def put(self, state: CheckpointState) -> None:
        """Store the log in a checkpoint."""
        state.values["updates"] = [[update.round, update.parties] for update in self._log]
        state.put_arrays({f"update.{i}": update.total for i, update in enumerate(self._log)})
        starts = {f"update.{i}.start": update.start for i, update in enumerate(self._log)}
        state.put_arrays({name: start for name, start in starts.items() if start is not None})

    def restore(self, state: CheckpointState) -> None:
        """Read what `put` stored."""
        self._log.extend(
            Update(r, p, state.arrays[f"update.{i}"], state.arrays.get(f"update.{i}.start"))
            for i, (r, p) in enumerate(state.values["updates"])
        )

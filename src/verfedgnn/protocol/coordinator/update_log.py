"""The last updates of the public parameters, for parties that sat them out."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from verfedgnn.protocol.checkpoint_state import State
from verfedgnn.protocol.round.replica import FULL_COPY

KEPT = 8
"""Updates kept for each part of the users; more would outweigh a full copy."""


@dataclass(frozen=True)
class Update:
    """A round's summed protected gradient, and whose."""

    round: int
    parties: list[int]
    row: NDArray[Any]


class UpdateLog:
    """Updates of the last rounds, in order."""

    def __init__(self, user_blocks: int) -> None:
        self._log: deque[Update] = deque(maxlen=KEPT * user_blocks)

    def add(self, update: Update) -> None:
        """Keep the newest; the oldest goes."""
        self._log.append(update)

    @property
    def last(self) -> list[Update]:
        """The newest, if there is one."""
        return [self._log[-1]] if self._log else []

    def since(self, round: int, now: int, size: int) -> list[Update] | None:
        """What changed from after `round` to `now`; None where a full copy of `size` parameters is needed, or smaller."""
        missed = [update for update in self._log if update.round > round]
        full = now - round > len(missed) or sum(update.row.nbytes for update in missed) > FULL_COPY * size
        return None if full else missed

    def put(self, state: State) -> None:
        """Into a checkpoint."""
        state.values["updates"] = [[update.round, update.parties] for update in self._log]
        state.arrays |= {f"update.{i}": update.row for i, update in enumerate(self._log)}

    def restore(self, state: State) -> None:
        """What `put` put."""
        self._log.extend(
            Update(r, p, state.arrays[f"update.{i}"]) for i, (r, p) in enumerate(state.values["updates"])
        )

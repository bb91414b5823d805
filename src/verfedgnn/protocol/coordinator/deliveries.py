"""What the coordinator hands out, and what each party already has of it: a RoundStart carries only what is new to its party."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verfedgnn.config import Config
from verfedgnn.protocol.checkpoint_state import CheckpointState
from verfedgnn.protocol.coordinator.update_log import UpdateLog
from verfedgnn.protocol.round.replica import Replica
from verfedgnn.protocol.wire.messages import RoundStart


@dataclass(frozen=True)
class NeighbourhoodSum:
    """A sum of neighbourhoods that the coordinator hands out."""

    parties: list[int]
    """Indices of the parties in the sum."""
    trip: tuple[int, int]
    """Round and trip in which they sent their neighbourhoods."""
    total: NDArray[np.integer[Any]]


class Deliveries:
    """The updates and sums of a training, and which of them each party has."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.log = UpdateLog(config.training.user_blocks)
        self.sums: dict[int, NeighbourhoodSum] = {}
        """The last sum of neighbourhoods of each block of users."""
        self.parameters_round: dict[str, int] = {}
        """Round of the public parameters that each party has."""
        self._received: dict[str, dict[int, tuple[int, int]]] = {}
        """Round and trip of the summed neighbourhoods that each party has, by block of users."""

    def welcome(self, name: str, round: int) -> None:
        """Note that a party got a full copy of the public parameters of a round, and has no sums."""
        self.parameters_round[name] = round
        self._received[name] = {}

    def describe_party(self, name: str, block: int) -> tuple[int, tuple[int, int] | None]:
        """Return what a party has; parties for which it is equal get the same RoundStart."""
        return self.parameters_round[name], self._received[name].get(block)

    def news_for(self, name: str, replica: Replica, block: int) -> dict[str, Any]:
        """Return the fields of a RoundStart with updates and sums that a party lacks, or with a full copy instead of updates."""
        backward = self.config.exchange.backward
        known = self.parameters_round[name]
        if backward:  # it reads the last update, even if the party's parameters already include it
            known = min(known, max(0, replica.round - 1))
        missed = self.log.since(known, replica.round, replica.model.size)
        full_copy = missed is None
        updates = (self.log.last if backward else []) if missed is None else missed
        totals = [update.total for update in updates if update.parties]
        starts = {update.round: update.start for update in updates if update.start is not None}
        shared = self.sums.get(block)
        if shared is not None and self._received[name].get(block) == shared.trip:
            shared = None
        return {
            "updates_from": updates[0].round if updates else known + 1,
            "update_parties": [update.parties for update in updates],
            "updates": np.concatenate(totals) if totals else None,
            "starts": np.concatenate(list(starts.values())) if starts else None,
            "start_rounds": list(starts),
            "neighbourhood_parties": [] if shared is None else shared.parties,
            "neighbourhood_trip": (0, 0) if shared is None else shared.trip,
            "neighbourhoods": None if shared is None else shared.total,
            **(replica.full_copy() if full_copy else {}),
        }

    def note_reply(self, name: str, start: RoundStart, round: int, block: int) -> None:
        """Note that a party has taken what its RoundStart carried, and has the public parameters of `round`."""
        self.parameters_round[name] = round
        if start.neighbourhoods is not None:
            self._received[name][block] = start.neighbourhood_trip

    def put(self, state: CheckpointState) -> None:
        """Store everything in a checkpoint."""
        state.values |= {
            "parameters_round": self.parameters_round,
            "sums_received": {name: list(trips.items()) for name, trips in self._received.items()},
            "neighbourhoods": [[block, known.parties, *known.trip] for block, known in self.sums.items()],
        }
        state.put_arrays({f"neighbourhoods.{block}": known.total for block, known in self.sums.items()})
        self.log.put(state)

    def restore(self, state: CheckpointState) -> None:
        """Read what `put` stored."""
        values = state.values
        self.parameters_round = dict(values["parameters_round"])
        self._received = {
            name: {block: (trip[0], trip[1]) for block, trip in trips}
            for name, trips in values["sums_received"].items()
        }
        self.log.restore(state)
        for block, parties, round, trip in values["neighbourhoods"]:
            total = state.arrays[f"neighbourhoods.{block}"]
            self.sums[block] = NeighbourhoodSum(parties, (round, trip), total)

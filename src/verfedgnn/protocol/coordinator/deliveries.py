"""Which updates and sums each party already has: a RoundStart carries only what is new to its party."""

from __future__ import annotations

from typing import Any

from verfedgnn.config import Config
from verfedgnn.protocol.checkpoint_state import CheckpointState
from verfedgnn.protocol.coordinator.public_rows import News, PublicRows
from verfedgnn.protocol.round.user_blocks import UserBlocks
from verfedgnn.protocol.wire.messages import RoundStart


class Deliveries:
    """What each party has of the updates and sums of a training."""

    def __init__(self, config: Config) -> None:
        self.config = config
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

    def news_for(self, name: str, rows: PublicRows, blocks: UserBlocks, block: int) -> dict[str, Any]:
        """Return the fields of a RoundStart with updates and sums that a party lacks, or with a full copy instead of updates."""
        backward = self.config.exchange.backward
        now = rows.replica.round
        known = self.parameters_round[name]
        if backward:  # it reads the last update, even if the party's parameters already include it
            known = min(known, max(0, now - 1))
        missed = rows.log.since(known, now, blocks)
        updates = (rows.log.last if backward else []) if missed is None else missed
        shared = rows.sums.get(block)
        if shared is not None and self._received[name].get(block) == shared.trip:
            shared = None
        rounds = [update.round for update in updates]
        return {
            "updates_from": rounds[0] if rounds else known + 1,
            "update_parties": [update.parties for update in updates],
            "start_rounds": [update.round for update in updates if update.start is not None],
            "neighbourhood_parties": [] if shared is None else shared.parties,
            "neighbourhood_trip": (0, 0) if shared is None else shared.trip,
            **rows.fetch(News(rounds, None if shared is None else block, full_copy=missed is None)),
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
        }

    def restore(self, state: CheckpointState) -> None:
        """Read what `put` stored."""
        values = state.values
        self.parameters_round = dict(values["parameters_round"])
        self._received = {
            name: {block: (trip[0], trip[1]) for block, trip in trips}
            for name, trips in values["sums_received"].items()
        }

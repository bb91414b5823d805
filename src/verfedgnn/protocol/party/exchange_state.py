"""What a party keeps of the exchange between trips, for each block of users: what it sent and what it received."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.protocol.checkpoint_state import CheckpointState, to_tensor


@dataclass(frozen=True)
class SentNeighbourhoods:
    """A party's own neighbourhoods as it sent them, before masks."""

    trip: tuple[int, int]
    """Round and trip in which they were sent."""
    values: NDArray[np.integer[Any]]

    def put(self, state: CheckpointState, name: str) -> None:
        """Store this record in a checkpoint."""
        state.values[name] = self.trip
        state.put_arrays({name: self.values})

    @classmethod
    def get(cls, state: CheckpointState, name: str, device: torch.device) -> SentNeighbourhoods | None:
        """Return the record that `put` stored, or None."""
        trip = state.values.get(name)
        return None if trip is None else cls((trip[0], trip[1]), state.arrays[name])


@dataclass(frozen=True)
class ReceivedNeighbourhoods:
    """The last sum of all parties' neighbourhoods that a party received."""

    digest: str
    """Hash of the sum; all parties that received the same sum have the same hash."""
    trip: tuple[int, int]
    """Round and trip of the sum."""
    others: Tensor | None
    """Estimated sum of the other parties' neighbourhoods (K, q, C); None if the party's own share is no longer known."""

    def put(self, state: CheckpointState, name: str) -> None:
        """Store this record in a checkpoint."""
        state.values[name] = [self.digest, *self.trip]
        if self.others is not None:
            state.put_arrays({name: self.others.cpu().numpy()})

    @classmethod
    def get(cls, state: CheckpointState, name: str, device: torch.device) -> ReceivedNeighbourhoods | None:
        """Return the record that `put` stored, or None."""
        known = state.values.get(name)
        if known is None:
            return None
        digest, round, trip = known
        others = state.arrays.get(name)
        return cls(digest, (round, trip), None if others is None else to_tensor(others, device))


@dataclass(frozen=True)
class UserGradient:
    """A gradient of user parameters of one round, for the backward exchange."""

    round: int
    values: Tensor

    def put(self, state: CheckpointState, name: str) -> None:
        """Store this record in a checkpoint."""
        state.values[name] = self.round
        state.put_arrays({name: self.values.cpu().numpy()})

    @classmethod
    def get(cls, state: CheckpointState, name: str, device: torch.device) -> UserGradient | None:
        """Return the record that `put` stored, or None."""
        round = state.values.get(name)
        return None if round is None else cls(round, to_tensor(state.arrays[name], device))


Record = TypeVar("Record", SentNeighbourhoods, ReceivedNeighbourhoods, UserGradient)


@dataclass
class ExchangeState:
    """The last records of the exchange, each by index of the block of users."""

    sent: dict[int, SentNeighbourhoods] = field(default_factory=dict)
    """The party's own neighbourhoods as last sent."""
    received: dict[int, ReceivedNeighbourhoods] = field(default_factory=dict)
    """The last sum of all parties' neighbourhoods."""
    released: dict[int, UserGradient] = field(default_factory=dict)
    """The party's own protected gradient as last sent; only kept with a backward exchange."""
    pulls: dict[int, UserGradient] = field(default_factory=dict)
    """The others' gradient with respect to neighbourhoods, from the last update; only kept with a backward exchange."""

    def others(self, block: int) -> Tensor | None:
        """Return the estimated sum of the others' neighbourhoods (K, q, C) of a block; None if it is not known."""
        found = self.received.get(block)
        return None if found is None else found.others

    def forget_sum(self, block: int, round: int, trip: int) -> None:
        """Forget the sum of a block if its trip is not before this one: the trip is repeated, after the coordinator lost the sum."""
        found = self.received.get(block)
        if found is not None and (found.trip[0], -found.trip[1]) >= (round, -trip):
            del self.received[block]

    def put(self, state: CheckpointState) -> None:
        """Store all records in a checkpoint."""
        put_records(state, "sent", self.sent)
        put_records(state, "received", self.received)
        put_records(state, "released", self.released)
        put_records(state, "pulls", self.pulls)

    @classmethod
    def get(cls, state: CheckpointState, blocks: int, device: torch.device) -> ExchangeState:
        """Return what `put` stored, for a training with that many blocks of users."""
        return cls(
            sent=get_records(state, "sent", SentNeighbourhoods, blocks, device),
            received=get_records(state, "received", ReceivedNeighbourhoods, blocks, device),
            released=get_records(state, "released", UserGradient, blocks, device),
            pulls=get_records(state, "pulls", UserGradient, blocks, device),
        )


def put_records(state: CheckpointState, name: str, records: Mapping[int, Record]) -> None:
    """Store records of one kind in a checkpoint, by block."""
    for block, record in records.items():
        record.put(state, f"{name}.{block}")


def get_records(
    state: CheckpointState, name: str, kind: type[Record], blocks: int, device: torch.device
) -> dict[int, Record]:
    """Return what `put_records` stored."""
    found = {block: kind.get(state, f"{name}.{block}", device) for block in range(blocks)}
    return {block: record for block, record in found.items() if record is not None}

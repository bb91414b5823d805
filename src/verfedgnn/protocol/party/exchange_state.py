"""What a party remembers between trips, by part of the users: what it sent, and what it was told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from verfedgnn.protocol.checkpoint_state import State
from verfedgnn.protocol.party.private_parameters import Private
from verfedgnn.protocol.round.backward_exchange import Released
from verfedgnn.protocol.round.neighbourhood_exchange import Received, Sent

Kept = TypeVar("Kept", Sent, Received, Released)


@dataclass
class Memory:
    """By index of the part."""

    sent: dict[int, Sent] = field(default_factory=dict)
    """Own neighbourhoods as last sent."""
    received: dict[int, Received] = field(default_factory=dict)
    """The last sum of everybody's."""
    released: dict[int, Released] = field(default_factory=dict)
    """Own protected gradient of users as last sent, with a backward exchange."""
    pulls: dict[int, Released] = field(default_factory=dict)
    """What the others' part of the last update says about neighbourhoods, with a backward exchange."""

    def others(self, part: int) -> Tensor | None:
        """Estimated sum of the others' neighbourhoods (K, q, C) of a part; None if nothing is known."""
        found = self.received.get(part)
        return None if found is None else found.others

    def put(self, state: State) -> None:
        """Into a checkpoint."""
        put(
            state,
            {"sent": self.sent, "received": self.received, "released": self.released, "pulls": self.pulls},
        )

    @classmethod
    def get(cls, state: State, parts: int, device: torch.device) -> Memory:
        """What `put` put."""
        return cls(
            sent=got(state, "sent", Sent, parts, device),
            received=got(state, "received", Received, parts, device),
            released=got(state, "released", Released, parts, device),
            pulls=got(state, "pulls", Released, parts, device),
        )


@dataclass(frozen=True)
class Before:
    """A party before a trip, to which a trip begun anew goes back."""

    round: int
    trip: int
    private: Private
    sent: dict[int, Sent]
    released: dict[int, Released]

    @classmethod
    def of(cls, round: int, trip: int, private: Private, memory: Memory) -> Before:
        """A copy that later steps leave alone."""
        return cls(round, trip, private.clone(), dict(memory.sent), dict(memory.released))

    def put(self, state: State, name: str) -> None:
        """Into a checkpoint, but for round and trip."""
        self.private.put(state, name)
        put(state, {f"{name}.sent": self.sent, f"{name}.released": self.released})

    @classmethod
    def get(
        cls, state: State, name: str, at: tuple[int, int], like: Private, parts: int, device: torch.device
    ) -> Before:
        """What `put` put, with the shapes of `like`; `at` is its round and trip."""
        sent = got(state, f"{name}.sent", Sent, parts, device)
        released = got(state, f"{name}.released", Released, parts, device)
        return cls(*at, like.get(state, name), sent, released)


def put(state: State, memories: Mapping[str, Mapping[int, Sent | Received | Released]]) -> None:
    """Into a checkpoint, by name and part."""
    for name, by_part in memories.items():
        for part, memory in by_part.items():
            memory.put(state, f"{name}.{part}")


def got(state: State, name: str, kind: type[Kept], parts: int, device: torch.device) -> dict[int, Kept]:
    """What `put` put under a name."""
    found = {part: kind.get(state, f"{name}.{part}", device) for part in range(parts)}
    return {part: memory for part, memory in found.items() if memory is not None}

"""A party's commitments: one survivor list for each trip of a training, across attempts and restarts."""

from __future__ import annotations

from collections.abc import Sequence

from verfedgnn.core.errors import ProtocolError

Trip = tuple[str, int, int]
"""Name of the training, round and trip."""


class ListCommitments:
    """The survivor lists that a party committed to. This class keeps them in memory; a federation also writes them to disk."""

    def __init__(self) -> None:
        self._lists: dict[Trip, list[int]] = {}

    def find(self, trip: Trip) -> list[int] | None:
        """Return the list of a trip; None if there is none."""
        return self._lists.get(trip)

    def commit(self, trip: Trip, survivors: Sequence[int]) -> None:
        """Commit to a list; raise `ProtocolError` if the party committed to another list of the same trip."""
        known = self._lists.get(trip)
        if known is None:
            self.write(trip, survivors)
            self._lists[trip] = list(survivors)
        elif known != list(survivors):
            raise ProtocolError(
                f"the coordinator asks for a second sum in round {trip[1]}, over parties {list(survivors)} after {known}; "
                "the difference of two sums would reveal single parties"
            )

    def write(self, trip: Trip, survivors: Sequence[int]) -> None:
        """Make a commitment durable. In memory, there is nothing to do."""

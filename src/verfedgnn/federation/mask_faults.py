"""Find the party whose masked values do not add up."""

from __future__ import annotations

from verfedgnn.core.errors import ProtocolError
from verfedgnn.federation.event_log import log_warning
from verfedgnn.protocol.coordinator.coordinator import Coordinator
from verfedgnn.protocol.round.aggregation import SumError


class MaskFaultSearch:
    """Search for a party that spoils masked sums: repeat the trip with all, then without one party after the other.

    A party that is found is left out until it joins again, not barred: a liar that behaves whenever a certain other
    party is left out makes that party look guilty, and the coordinator cannot tell the two apart.
    """

    def __init__(self) -> None:
        self._failing: list[int] = []
        self._suspect: str | None = None
        self._attempts = 0

    def record_failure(self, coordinator: Coordinator, error: SumError) -> None:
        """Choose the next party to leave out after a failed sum; raise `ProtocolError` when nobody can be left out."""
        self._failing = self._failing or list(coordinator.drawn)
        self._attempts += 1
        log_warning("sums do not add up", round=coordinator.round, attempt=coordinator.attempt)
        names = [coordinator.names[i] for i in self._failing]
        needed = max(2, min(coordinator.members.quorum, coordinator.active_count))
        tried_all = self._attempts > len(names) + 1
        if tried_all or (self._attempts > 1 and len(names) - 1 < needed):
            raise ProtocolError(
                f"round {coordinator.round}: {error}; the fault lies with one of {', '.join(names)}, "
                "and too few parties remain to find out which"
            )
        self._suspect = names[self._attempts - 2] if self._attempts > 1 else None

    def choose_parties(self, coordinator: Coordinator) -> list[int] | None:
        """Return the parties of the next trip without the suspect; None when no search is in progress."""
        if self._failing and coordinator.spoilt and set(self._failing) <= set(coordinator.members.here):
            return [i for i in self._failing if coordinator.names[i] != self._suspect]
        self.finish()  # a party was lost in the meantime, so this set of parties cannot be tried again
        return None

    def finish(self) -> str | None:
        """End the search and return the party without which the sums added up, if one was left out."""
        found = self._suspect
        self._failing = []
        self._suspect = None
        self._attempts = 0
        return found

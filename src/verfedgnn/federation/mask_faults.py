"""The search for a party that spoils masked sums."""

from __future__ import annotations

from verfedgnn.core.errors import ProtocolError
from verfedgnn.federation.event_log import log_warning
from verfedgnn.protocol.coordinator.coordinator import Coordinator
from verfedgnn.protocol.round.aggregation import SumError


class MaskFaultSearch:
    """Masked values that do not add up name nobody: repeat with all, then without one party after the other.

    Who is found is left out, not sent away for good: a liar that is honest whenever a certain party is left out puts the blame on
    that one, and nobody can tell.
    """

    def __init__(self) -> None:
        self._failing: list[int] = []
        self._suspect: str | None = None
        self._times = 0

    def go_on(self, coordinator: Coordinator, error: SumError) -> None:
        """The open trip did not add up: choose whom to leave out next, or give up with the names of all it may be."""
        self._failing = self._failing or list(coordinator.drawn)
        self._times += 1
        names, least = (
            [coordinator.names[i] for i in self._failing],
            min(coordinator.members.quorum, coordinator.active_count),
        )
        log_warning("sums do not add up", round=coordinator.round, attempt=coordinator.attempt)
        if self._times > len(names) + 1 or (self._times > 1 and len(names) - 1 < max(2, least)):
            who = ", ".join(names)
            raise ProtocolError(
                f"round {coordinator.round}: {error}; one of {who} does, and too few are left to tell which"
            )
        self._suspect = names[self._times - 2] if self._times > 1 else None

    def among(self, coordinator: Coordinator) -> list[int] | None:
        """Who takes part in the trip to be opened, while a search is on: the parties that failed, without the suspect."""
        if self._failing and coordinator.spoilt and set(self._failing) <= set(coordinator.members.here):
            return [i for i in self._failing if coordinator.names[i] != self._suspect]
        self.end()  # somebody was lost meanwhile: another set of parties, another search
        return None

    def end(self) -> str | None:
        """The trip added up, or is another one: the party without which it does, if one was left out."""
        found = self._suspect
        self._failing, self._suspect, self._times = [], None, 0
        return found

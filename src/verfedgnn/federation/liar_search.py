"""Find a party whose masked values spoil sums, without unmasking any party."""

from __future__ import annotations

import random

from verfedgnn.config.rules import fewest_parties_in_sum
from verfedgnn.core.errors import ProtocolError
from verfedgnn.protocol.coordinator import Coordinator

MOST_FAILURES = 3
"""Sums out of range after which a training stops if no smaller group of parties may be added up."""
MOST_FAILURES_WHILE_WAITING = 30
"""The same if groups are possible, but parties that they need are away and may come back."""
MOST_SUCCESSES = 10
"""Sums in range after which a search ends."""
SMALLEST_GROUP = 3


class LiarSearch:
    """Search for a party whose values are out of range, by sums over groups of parties in the rounds that follow.

    Every round of the search has one group, a fresh batch and fresh noise; a party releases one gradient a round as always. The
    suspects are the parties of every sum that was out of range. A sum in range clears nobody, since a liar may behave in it. A single
    liar is therefore never taken for another party.
    """

    def __init__(self) -> None:
        self.suspects: list[int] = []
        """Parties of which one spoilt a sum; empty if no search is in progress."""
        self._failures = 0
        self._successes = 0
        """Sums in range since the last one that was not."""
        self._random = random.SystemRandom()

    def record_failure(self, coordinator: Coordinator, group: list[int]) -> int | None:
        """Note a sum over `group` that is out of range; return the index of the party that spoilt it, once it is known."""
        self._failures += 1
        self._successes = 0
        self.suspects = [index for index in self.suspects if index in group] or list(group)
        if len(self.suspects) == 1:
            found = self.suspects[0]
            self._stop()
            return found
        waits = self._least(coordinator) < len(coordinator.names)
        most = MOST_FAILURES_WHILE_WAITING if waits else MOST_FAILURES
        if self._failures >= most and self._group_size(coordinator) is None:
            names = ", ".join(coordinator.names[index] for index in self.suspects)
            raise ProtocolError(
                f"{self._failures} sums were out of range, the last one in round {coordinator.round}. One of {names} sends values "
                "that are not gradients. The sums do not show which, and too few parties are here to add up smaller groups. "
                "Compare the parties' transcripts with `verfedgnn federation verify`"
            )
        return None

    def record_success(self) -> None:
        """Note a sum that is in range; end the search after many of them."""
        self._successes += 1
        if self._successes >= MOST_SUCCESSES:
            self._stop()

    def choose_parties(self, coordinator: Coordinator) -> list[int] | None:
        """Return the parties of the next round; None to draw them as always."""
        here = coordinator.members.here
        suspects = [index for index in self.suspects if index in here]  # a liar that is away stays a suspect
        size = self._group_size(coordinator)
        if not suspects or size is None:
            return None
        half = self._random.sample(suspects, (len(suspects) + 1) // 2)
        trusted = [index for index in here if index not in suspects]
        rest = [index for index in suspects if index not in half]
        others = self._random.sample(trusted, len(trusted)) + self._random.sample(rest, len(rest))
        return sorted([*half, *others[: max(0, size - len(half))]])

    def _group_size(self, coordinator: Coordinator) -> int | None:
        """Return the number of parties that a group needs; None if a group cannot leave a party out."""
        size = self._least(coordinator)
        return size if size < len(coordinator.members.here) else None

    @staticmethod
    def _least(coordinator: Coordinator) -> int:
        """Return the fewest parties that a group may have."""
        needed = fewest_parties_in_sum(coordinator.config, len(coordinator.names))
        return max(SMALLEST_GROUP, needed, min(coordinator.members.quorum, coordinator.active_count))

    def _stop(self) -> None:
        self.suspects = []
        self._failures = 0

"""An index of ids that finds them by exact text and by prefix."""

from __future__ import annotations

from bisect import bisect_left
from difflib import get_close_matches

import numpy as np

from verfedgnn.data.ids import StrArray

NEIGHBOURS = 200
"""Ids before and after a text, in alphabetical order, among which the most similar ones are searched."""
SIMILAR = 0.75
"""Share of equal characters, as difflib counts them, from which on an id is called similar."""


class IdIndex:
    """An index of ids that finds rows by exact id and by prefix."""

    def __init__(self, ids: StrArray) -> None:
        order = np.argsort(ids, kind="stable")
        self._order = order[ids[order] != ""]  # users of other parties have no id here
        self._sorted = ids[self._order]

    def find(self, text: str) -> int | None:
        """Return the row of an id, or None if the id is unknown."""
        place = bisect_left(
            self._sorted, text
        )  # np.searchsorted would copy all ids if `text` is longer than they are
        found = place < len(self._sorted) and str(self._sorted[place]) == text
        return int(self._order[place]) if found else None

    def find_prefix(self, prefix: str, limit: int) -> list[int]:
        """Return the rows of the first `limit` ids that start with `prefix`, in alphabetical order."""
        first = bisect_left(self._sorted, prefix)
        candidates = range(first, min(first + limit, len(self._sorted)))
        return [int(self._order[i]) for i in candidates if str(self._sorted[i]).startswith(prefix)]

    def find_similar(self, text: str, limit: int) -> list[str]:
        """Return up to `limit` ids that differ from an unknown one by a slip of the keyboard; none if there are no such ids."""
        place = bisect_left(self._sorted, text)
        among = self._sorted[max(0, place - NEIGHBOURS) : place + NEIGHBOURS]
        return get_close_matches(text, [str(each) for each in among], limit, cutoff=SIMILAR)

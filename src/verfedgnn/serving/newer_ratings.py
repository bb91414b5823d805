"""Ratings that are newer than a run: of users whom it does not know, and of users who have rated more since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from verfedgnn.core.errors import DataError
from verfedgnn.data import Ratings, read_ratings
from verfedgnn.data.ids import find_positions
from verfedgnn.serving.fold_in import UserRatings
from verfedgnn.serving.id_index import IdIndex


class NewerRatings:
    """One party's ratings that are newer than the run, by user id."""

    def __init__(self, party: int, table: Ratings, newer: Ratings) -> None:
        low, high = table.scale
        outside = (newer.rating < low) | (newer.rating > high)
        if outside.any():
            raise DataError(
                f"--ratings {newer.name} has a rating of {newer.rating[outside.argmax()]:g}, outside the run's scale "
                f"{low:g} to {high:g}; convert the ratings to that scale"
            )
        rows = find_positions(newer.item_ids, table.item_ids)
        kept = newer.take(rows[newer.item] >= 0)
        if not len(kept):
            raise DataError(
                f"--ratings {newer.name} has no item of the run; check the party's name and the spelling of item ids"
            )
        order = np.argsort(kept.user, kind="stable")
        self.ids = IdIndex(kept.user_ids)
        self.count = len(kept)
        self.left_out = len(newer) - len(kept)
        """Number of ratings whose item is not in the run."""
        self.party = party
        self._items: NDArray[np.int64] = rows[kept.item[order]]
        self._ratings = kept.rating[order]
        self._ends = np.searchsorted(kept.user[order], np.arange(kept.n_users + 1))
        self.user_ids = kept.user_ids

    def find(self, user: str) -> UserRatings | None:
        """Return the ratings of a user, or None if there are none."""
        row = self.ids.find(user)
        if row is None:
            return None
        here = slice(self._ends[row], self._ends[row + 1])
        return (
            UserRatings(self.party, self._items[here], self._ratings[here])
            if here.stop > here.start
            else None
        )


def read_newer_ratings(sources: Sequence[str], tables: Mapping[str, Ratings]) -> dict[str, Ratings]:
    """Read newer ratings from sources, each `NAME=SOURCE`, and return them by party; the name may be left out for one party.

    Of several ratings of a user and an item, the last one counts.
    """
    found: dict[str, Ratings] = {}
    for text in sources:
        name, equals, source = text.partition("=")
        if not equals or Path(text).exists():
            name, source = "", text
        party = next(iter(tables)) if not name and len(tables) == 1 else name
        if party not in tables:
            names = ", ".join(tables)
            raise DataError(
                f"--ratings {text} does not name a served party; write NAME={source} with one of: {names}"
            )
        if party in found:
            raise DataError(f"--ratings names party '{party}' twice; put its ratings into one file")
        found[party] = read_ratings(source, duplicates="last")
    return found

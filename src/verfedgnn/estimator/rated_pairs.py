"""Tables of (party, user, item) with one row per rating, as scikit-learn passes them beside the ratings, and their folds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verfedgnn.core.errors import ConfigError, DataError
from verfedgnn.data.ids import StrArray, as_text, to_numpy
from verfedgnn.data.table_sources import match_columns, open_columns

ORDER = ("party", "user", "item")
"""Columns of an array; one with two columns has no party."""


@dataclass(frozen=True, eq=False)
class RatedPairs:
    """The users and items of a table, as text, and the party of each row if the table names it."""

    users: StrArray
    items: StrArray
    parties: StrArray | None
    width: int
    """Number of columns of the table."""
    names: tuple[str, ...]
    """Names of the columns; empty for an array."""

    def __len__(self) -> int:
        return len(self.users)

    def by_party(self) -> dict[str | None, NDArray[np.int64]]:
        """Return the rows of each party, under None if the table names no parties."""
        if self.parties is None:
            return {None: np.arange(len(self))}
        return {str(name): np.flatnonzero(self.parties == name) for name in np.unique(self.parties)}

    def tables(self, y: Any) -> Any:
        """Return these pairs with their ratings as `read_parties` takes them: one table per party, or one table."""
        ratings = np.asarray(y)
        if ratings.ndim == 2 and ratings.shape[1] == 1:
            ratings = ratings[:, 0]
        if np.iscomplexobj(ratings):
            raise DataError("y is complex. Complex data not supported; give real numbers")
        if ratings.shape != (len(self),):
            raise DataError(
                f"X has {len(self):,} rows and y has shape {ratings.shape}; give one rating per row, or name the tables: "
                'fit({"film": ..., "books": ...})'
            )
        if self.parties is None:
            return self.users, self.items, ratings
        rows = self.by_party().items()
        return {name: (self.users[index], self.items[index], ratings[index]) for name, index in rows}


def read_pairs(
    table: Any, columns: Mapping[str, str] | None = None, *, also: Sequence[tuple[str, str]] = ()
) -> RatedPairs:
    """Read a data frame with columns for user, item and optionally party, or an array of (party, user, item).

    `also` has further names of columns by role; those that the table does not have are ignored.
    """
    if hasattr(table, "__arrow_c_stream__") or hasattr(table, "collect"):
        there, column = open_columns(table, "X", ORDER)
        wanted = {role: name for role, name in reversed(also) if role in ORDER and name in there}
        wanted |= {role: name for role, name in (columns or {}).items() if role in ORDER}
        required = ("party", "user", "item") if "party" in wanted else ("user", "item")
        names = match_columns(there, wanted, required=required, keep=("party",), source="X")
        found = {role: column(name) for role, name in names.items() if role in ORDER}
        width = len(there)
    else:
        array = _as_array(table)
        there = []
        width = array.shape[1]
        found = {role: array[:, k].tolist() for k, role in enumerate(ORDER[-width:])}
    ids = {role: _as_ids(values, role) for role, values in found.items()}
    return RatedPairs(ids["user"], ids["item"], ids.get("party"), width, tuple(there))


def _as_array(table: Any) -> NDArray[Any]:
    if hasattr(table, "toarray"):
        raise DataError("X is a sparse matrix; give one row (party, user, item) per rating")
    array = np.asarray(table, None if hasattr(table, "dtype") else object)
    if np.iscomplexobj(array):
        raise DataError("X is complex. Complex data not supported; give ids")
    if array.ndim == 2 and (array.shape[1] < 2 or not len(array)):
        lack, least = (f"{array.shape[1]} feature(s)", 2) if len(array) else ("0 sample(s)", 1)
        raise DataError(f"X has {lack} (shape={array.shape}) while a minimum of {least} is required.")
    if array.ndim != 2 or array.shape[1] > 3:
        raise DataError(
            f"X has shape {array.shape}; give one row (party, user, item) or (user, item) per rating. Reshape your data"
        )
    return array


def _as_ids(values: Any, role: str) -> StrArray:
    ids = to_numpy(as_text(values, role))
    if (ids == "").any():
        row = int(np.argmax(ids == ""))
        raise DataError(
            f"X has no {role} in row {row} (counted from 0), but None or NaN; fill it in or leave the row out"
        )
    return ids


class RatingSplit:
    """Folds of ratings in which every tested user and every tested item also has ratings to train on.

    Ratings go to `n_splits` folds at random. A rating whose user or item has no other rating outside the fold is
    always trained on, because a recommender has no vector for a user or an item that it has never seen.
    """

    def __init__(self, n_splits: int = 5, *, seed: int = 0) -> None:
        self.n_splits = n_splits
        self.seed = seed

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:
        """Return the number of folds."""
        return self.n_splits

    def split(
        self, X: Any, y: Any = None, groups: Any = None
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Yield the rows to train on and the rows to test of each fold; `X` has the columns party, user and item."""
        pairs = read_pairs(X)
        if not 2 <= self.n_splits <= len(pairs):
            raise ConfigError(
                f"n_splits = {self.n_splits} is not between 2 and {len(pairs)}, the number of ratings"
            )
        owner = np.full(len(pairs), "") if pairs.parties is None else pairs.parties
        _, user = np.unique(pairs.users, return_inverse=True)
        _, item = np.unique(np.stack([owner, pairs.items]), axis=1, return_inverse=True)
        fold = np.random.default_rng(self.seed).permutation(len(pairs)) % self.n_splits
        for k in range(self.n_splits):
            outside = fold != k
            known = [np.bincount(code[outside], minlength=code.max() + 1)[code] > 0 for code in (user, item)]
            tested = ~outside & known[0] & known[1]
            yield np.flatnonzero(~tested), np.flatnonzero(tested)

    def __repr__(self) -> str:
        return f"RatingSplit(n_splits={self.n_splits}, seed={self.seed})"

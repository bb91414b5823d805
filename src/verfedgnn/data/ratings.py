"""The `Ratings` table of (user, item, rating) with original ids."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verfedgnn.core.errors import DataError
from verfedgnn.core.option_names import option
from verfedgnn.core.rating_scale import upper_quarter
from verfedgnn.data.ids import StrArray

Mask = NDArray[np.bool_]
Selection = NDArray[np.bool_] | NDArray[np.integer[Any]]


@dataclass(frozen=True, eq=False, kw_only=True)
class Ratings:
    """A table of ratings with its original ids."""

    user: NDArray[np.int32]
    """Position in `user_ids` of each rating's user."""
    item: NDArray[np.int32]
    """Position in `item_ids` of each rating's item."""
    rating: NDArray[np.float32]
    user_ids: StrArray
    """Ids of the users: integers in numeric order, other ids in text order."""
    item_ids: StrArray
    """Ids of the items, in the same order."""
    time: NDArray[np.int64] | None = None
    titles: StrArray | None = None
    columns: Mapping[str, StrArray] = field(default_factory=dict)
    """Further columns of the items, for example "genre", "category" or "file"; "" if unknown."""
    scale: tuple[float, float]
    """Lowest and highest rating, from the data or as given."""
    scale_declared: bool = False
    """Whether the scale was given, so that it does not depend on the ratings."""
    catalogue: int | None = None
    """Declared number of items, with or without ratings; None if none was declared."""
    ids: str | None = None
    """How user ids were spelled alike (`ids.SPELLINGS`); None if they are as written."""
    written: StrArray | None = None
    """The users' ids as written if `ids` spells them alike, "" for users of other parties; no run folder has them."""
    name: str
    notes: tuple[str, ...] = ()
    """Sentences about rows that were left out or changed while reading."""

    def __len__(self) -> int:
        return len(self.rating)

    @property
    def n_users(self) -> int:
        """Number of users, with or without ratings."""
        return len(self.user_ids)

    @property
    def known_users(self) -> NDArray[np.int64]:
        """Rows of the users whose ids are known here; in a federation, users of other parties have the id ""."""
        return np.flatnonzero(self.user_ids != "")

    @property
    def n_items(self) -> int:
        """Number of items, with or without ratings."""
        return len(self.item_ids)

    @property
    def likes(self) -> int:
        """Number of ratings in the upper quarter of the scale; if all are, as in data without ratings, only lists are trained."""
        return int((self.rating >= upper_quarter(self.scale)).sum())

    def summary(self) -> str:
        """Summarise the table in one line: its ratings, the users who have one, and its items."""
        low, high = self.scale
        people = f"{len(np.unique(self.user)):,} users on {self.n_items:,} items"
        what = "likes" if self.likes == len(self) else f"ratings ({low:g} to {high:g})"
        return f"{self.name}: {len(self):,} {what} by {people}"

    def __repr__(self) -> str:
        return f"<Ratings {self.summary()}>"

    def take(self, which: Selection) -> "Ratings":
        """Return the ratings of a mask or an index. Users and items are unchanged."""
        time = None if self.time is None else self.time[which]
        return replace(
            self, user=self.user[which], item=self.item[which], rating=self.rating[which], time=time
        )

    def select_items(self, which: Selection) -> "Ratings":
        """Return the given items, recoded in the given order, and their ratings; users are unchanged."""
        index, code = _recode(which, self.n_items)
        kept = self.take(code[self.item] >= 0)
        return replace(
            kept,
            item=code[kept.item],
            item_ids=self.item_ids[index],
            titles=None if self.titles is None else self.titles[index],
            columns={name: values[index] for name, values in self.columns.items()},
            catalogue=None if self.catalogue is None else len(index),
        )

    def select_users(self, which: Selection) -> "Ratings":
        """Return the given users, recoded in the given order, and their ratings; items are unchanged."""
        index, code = _recode(which, self.n_users)
        kept = self.take(code[self.user] >= 0)
        written = None if self.written is None else self.written[index]
        return replace(kept, user=code[kept.user], user_ids=self.user_ids[index], written=written)

    def with_notes(self, *notes: str) -> "Ratings":
        """Return the same table with more notes."""
        return replace(self, notes=(*self.notes, *notes))

    def with_catalogue(self, size: int | None) -> "Ratings":
        """Return the same table with a declared number of items, if one is given; raise `DataError` if more items have ratings."""
        if size is not None and size < self.n_items:
            raise DataError(
                f"{self.name} has ratings of {format_count(self.n_items, 'item')}, more than the declared catalogue of "
                f"{size:,}; declare a larger one with {option('catalogue')}"
            )
        return self if size is None else replace(self, catalogue=size)


def format_count(count: int, noun: str) -> str:
    """Format a count with its noun, such as "1 user" or "1,329 users"."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def count_rows(count: int, what: str) -> str:
    """Say how many rows have or repeat something, such as "1 row has no user"."""
    if count != 1:
        return f"{count:,} rows {what}"
    return "1 row " + what.replace("have", "has", 1).replace("repeat", "repeats", 1)


def _recode(which: Selection, size: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the index of a mask or an index, and the new code of each old one, -1 for those left out."""
    index = (np.flatnonzero(which) if which.dtype == np.bool_ else which).astype(np.int64)
    code = np.full(size, -1, np.int32)
    code[index] = np.arange(len(index), dtype=np.int32)
    return index, code

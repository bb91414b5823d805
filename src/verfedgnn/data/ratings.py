"""The `Ratings` table of (user, item, rating) with original ids, the pooling of tables, and the drift between two."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verfedgnn.core.errors import DataError
from verfedgnn.core.option_names import option
from verfedgnn.core.rating_scale import upper_quarter
from verfedgnn.data.ids import StrArray, find_positions, sort_ids

Mask = NDArray[np.bool_]
Selection = NDArray[np.bool_] | NDArray[np.integer[Any]]
_BINS = 20
"""Bins of ratings whose shares a drift compares; the ratings of a common scale have one each."""


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
        return replace(kept, user=code[kept.user], user_ids=self.user_ids[index])

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


def pool_tables(tables: Sequence[Ratings], column: str, name: str) -> Ratings:
    """Pool all ratings in one table; the item column `column` names the table that each item came from.

    Users and items are in the order of ids. Times, titles and item columns are kept if every table has them.
    """
    refuse_shared_items(tables)
    user_ids = sort_ids(np.unique(np.concatenate([t.user_ids for t in tables])))
    all_items = np.concatenate([t.item_ids for t in tables])
    item_ids = sort_ids(all_items)
    order = find_positions(item_ids, all_items)
    times = [t.time for t in tables if t.time is not None]
    sizes = [t.catalogue for t in tables if t.catalogue is not None]
    titles = [t.titles for t in tables if t.titles is not None]
    shared = [key for key in tables[0].columns if key != column and all(key in t.columns for t in tables)]
    columns = {key: np.concatenate([t.columns[key] for t in tables])[order] for key in shared}
    columns[column] = np.repeat([t.name for t in tables], [t.n_items for t in tables])[order]
    return Ratings(
        user=np.concatenate([find_positions(t.user_ids, user_ids)[t.user] for t in tables]).astype(np.int32),
        item=np.concatenate([find_positions(t.item_ids, item_ids)[t.item] for t in tables]).astype(np.int32),
        rating=np.concatenate([t.rating for t in tables]),
        user_ids=user_ids,
        item_ids=item_ids,
        time=np.concatenate(times) if len(times) == len(tables) else None,
        titles=np.concatenate(titles)[order] if len(titles) == len(tables) else None,
        columns=columns,
        scale=(min(t.scale[0] for t in tables), max(t.scale[1] for t in tables)),
        scale_declared=all(t.scale_declared for t in tables),
        catalogue=sum(sizes) if len(sizes) == len(tables) else None,
        name=name,
        notes=tuple(f"{t.name}: {note}" for t in tables for note in t.notes),
    )


def refuse_shared_items(tables: Sequence[Ratings]) -> None:
    """Raise `DataError` if an item is in more than one of the tables."""
    unique, count = np.unique(np.concatenate([t.item_ids for t in tables]), return_counts=True)
    if (count > 1).any():
        item = str(unique[count > 1][0])
        first, second = [t.name for t in tables if item in t.item_ids][:2]
        shared = format_count(int((count > 1).sum()), "such item")
        both = f"item {item!r} is in both {first!r} and {second!r} ({shared}); an item belongs to one party"
        raise DataError(f"{both}. Remove it from one of them, or prefix the ids if they mean different items")


def measure_drift(before: Ratings, after: Ratings) -> dict[str, Any]:
    """Return the distance of the distributions of ratings, their means, and the shares of users and items that are new.

    The distance is the total variation: the share of ratings that would have to change their value, from 0 to 1.
    """
    distance = None
    if len(before) and len(after):
        edges = np.histogram_bin_edges(np.concatenate([before.rating, after.rating]), _BINS)
        old, new = (np.histogram(table.rating, edges)[0] / len(table) for table in (before, after))
        distance = float(np.abs(old - new).sum() / 2)

    def unknown(now: StrArray, known: StrArray) -> float:
        return float((find_positions(now, known) < 0).mean()) if len(now) else 0.0

    users, known = (table.user_ids[np.unique(table.user)] for table in (after, before))
    return {
        "rating_distance": distance,
        "mean_rating": [float(table.rating.mean()) if len(table) else None for table in (before, after)],
        "unknown_users": unknown(users, known),
        "unknown_items": unknown(after.item_ids, before.item_ids),
    }

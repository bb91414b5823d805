"""The `Ratings` table of (user, item, rating) with original ids, and `make_ratings`, which checks its input."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from verfedgnn.core.errors import DataError
from verfedgnn.core.option_names import option
from verfedgnn.data.ids import (
    LONGEST_TITLE,
    TEXT,
    StrArray,
    as_item_text,
    as_text,
    encode,
    encode_unordered,
    is_text,
    to_numpy,
)
from verfedgnn.data.number_parsing import INFINITE, NO_RATING, Mask, find_infinite, parse_numbers

DUPLICATES = ("error", "first", "last", "mean")
MISSING = ("error", "drop")


@dataclass(frozen=True, eq=False, kw_only=True)
class Ratings:
    """A table of ratings with its original ids."""

    user: NDArray[np.int32]
    """Position in `user_ids` of each rating's user."""
    item: NDArray[np.int32]
    """Position in `item_ids` of each rating's item."""
    rating: NDArray[np.float32]
    """The ratings, all finite."""
    user_ids: StrArray
    """Ids of the users: integers in numeric order, other ids in text order."""
    item_ids: StrArray
    """Ids of the items, in the same order."""
    time: NDArray[np.int64] | None = None
    """Time of each rating in seconds since 1970."""
    titles: StrArray | None = None
    """Title of each item, "" if unknown."""
    columns: Mapping[str, StrArray] = field(default_factory=dict)
    """Further columns of the items, for example "genre", "category" or "file"; "" if unknown."""
    scale: tuple[float, float]
    """Lowest and highest rating, from the data or as given."""
    scale_declared: bool = False
    """Whether the scale was given, so that it does not depend on the ratings."""
    catalogue: int | None = None
    """Declared number of items, with or without ratings; None if none was declared."""
    name: str
    """Name of the table in messages."""
    notes: tuple[str, ...] = ()
    """Sentences about rows that were left out or changed while reading."""

    def __post_init__(self) -> None:
        lengths = {len(a) for a in (self.user, self.item, self.rating, self.time) if a is not None}
        per_item = {len(a) for a in (self.item_ids, self.titles, *self.columns.values()) if a is not None}
        if len(lengths) > 1 or len(per_item) > 1:
            raise ValueError(
                f"columns of {self.name} differ in length: {sorted(lengths)} ratings, {sorted(per_item)} items"
            )

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

    def summary(self) -> str:
        """Summarise the table in one line: its ratings, the users who have one, and its items."""
        low, high = self.scale
        people = f"{len(np.unique(self.user)):,} users on {self.n_items:,} items"
        return f"{self.name}: {len(self):,} ratings ({low:g} to {high:g}) by {people}"

    def __repr__(self) -> str:
        return f"<Ratings {self.summary()}>"

    def take(self, which: NDArray[np.bool_] | NDArray[np.integer[Any]]) -> "Ratings":
        """Return the ratings of a mask or an index. Users and items are unchanged."""
        return replace(
            self,
            user=self.user[which],
            item=self.item[which],
            rating=self.rating[which],
            time=None if self.time is None else self.time[which],
        )

    def select_items(self, which: NDArray[np.bool_] | NDArray[np.integer[Any]]) -> "Ratings":
        """Return the given items and their ratings.

        Items are recoded in the given order; users are unchanged.
        """
        index = _as_index(which)
        code = _recode(index, self.n_items)
        kept = self.take(code[self.item] >= 0)
        return replace(
            kept,
            item=code[kept.item],
            item_ids=self.item_ids[index],
            titles=None if self.titles is None else self.titles[index],
            columns={name: values[index] for name, values in self.columns.items()},
            catalogue=None if self.catalogue is None else len(index),
        )

    def select_users(self, which: NDArray[np.bool_] | NDArray[np.integer[Any]]) -> "Ratings":
        """Return the given users and their ratings.

        Users are recoded in the given order; items are unchanged.
        """
        index = _as_index(which)
        code = _recode(index, self.n_users)
        kept = self.take(code[self.user] >= 0)
        return replace(kept, user=code[kept.user], user_ids=self.user_ids[index])

    def with_notes(self, *notes: str) -> "Ratings":
        """Return the same table with more notes."""
        return replace(self, notes=(*self.notes, *notes))

    def with_catalogue(self, size: int) -> "Ratings":
        """Return the same table with a declared number of items; raise `DataError` if more items have ratings."""
        check_catalogue(self.name, self.n_items, size)
        return replace(self, catalogue=size)


def find_missing(
    user: pa.Array | pa.ChunkedArray, item: pa.Array | pa.ChunkedArray, rating: NDArray[np.float64]
) -> dict[str, Mask]:
    """Return masks of the rows without a user, an item and a rating."""
    absent = [
        np.asarray(pc.fill_null(pc.equal(ids, ""), True) if is_text(ids.type) else pc.is_null(ids), bool)
        for ids in (user, item)
    ]
    return dict(zip(("user", "item", "rating"), (*absent, np.isnan(rating)), strict=True))


def check_catalogue(name: str, items: int, size: int) -> None:
    """Raise `DataError` if more items have ratings than the declared catalogue has."""
    if size < items:
        raise DataError(
            f"{name} has ratings of {format_count(items, 'item')}, more than the declared catalogue of "
            f"{size:,}; declare a larger one with {option('catalogue')}"
        )


def check_options(duplicates: str, missing: str) -> None:
    """Raise `DataError` for unknown values of `duplicates` and `missing`."""
    for name, given, known in (("duplicates", duplicates, DUPLICATES), ("missing", missing, MISSING)):
        if given not in known:
            raise DataError(f"{name}={given!r} is unknown; use one of {', '.join(known)}")


def fill_in() -> str:
    """Return the remedy for rows without a user, an item, a rating or a kind of event."""
    return f"fill it in, or leave such rows out with {option('missing', 'drop')}"


def format_count(count: int, noun: str) -> str:
    """Format a count with its noun, such as "1 user" or "1,329 users"."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def _as_index(which: NDArray[np.bool_] | NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    index = np.flatnonzero(which) if which.dtype == np.bool_ else which
    return index.astype(np.int64)


def _recode(index: NDArray[np.integer[Any]], size: int) -> NDArray[np.int32]:
    code = np.full(size, -1, np.int32)
    code[index] = np.arange(len(index), dtype=np.int32)
    return code


def make_ratings(
    user: Any,
    item: Any,
    rating: Any,
    *,
    time: Any = None,
    titles: Any = None,
    columns: Mapping[str, Any] | None = None,
    scale: tuple[float, float] | None = None,
    name: str = "ratings",
    duplicates: str = "error",
    missing: str = "error",
    notes: tuple[str, ...] = (),
    where: Callable[[int], str] | None = None,
) -> Ratings:
    """Check columns with one entry per rating and return them as `Ratings`.

    `user`, `item`, `rating`, `time`, `titles` and each of `columns` are arrays or sequences of one length.
    Titles and columns belong to items; the first entry that is not empty is used.

    Args:
        user: Ids of users.
        item: Ids of items.
        rating: Ratings, as numbers or text.
        time: Seconds since 1970.
        titles: Titles of items.
        columns: Further columns of items, by name.
        scale: Lowest and highest rating; by default those of the data.
        name: Name of the table in messages.
        duplicates: How to treat repeated (user, item) pairs: "error", "first", "last" or "mean".
        missing: How to treat rows without a user, an item or a rating: "error" or "drop".
        notes: Sentences about how the columns were read.
        where: Function that describes the place of a row in errors.
    """
    at = where or (lambda row: f"row {row} of {name} (counted from 0)")
    check_options(duplicates, missing)
    users = as_text(user, "user")
    items = as_text(item, "item")
    found = parse_numbers(rating, scale)
    found.refuse(at)
    values = found.values
    if len({len(users), len(items), len(values)}) > 1:
        raise DataError(
            f"{name} has {len(users):,} users, {len(items):,} items and {len(values):,} ratings; give one of each per row"
        )
    for what, column in {"time": time, "titles": titles, **(columns or {})}.items():
        if column is not None and len(column) != len(values):
            raise DataError(
                f"{name} has {len(column):,} entries of {what} for {len(values):,} ratings; give one of each per row"
            )
    notes = (*notes, *found.notes)
    absent = find_missing(users, items, values)
    gone = absent["user"] | absent["item"] | absent["rating"]
    if missing == "drop" and gone.any():
        kept = np.flatnonzero(~gone)
        return make_ratings(
            users.take(kept),
            items.take(kept),
            values[kept],
            time=None if time is None else np.asarray(time)[kept],
            titles=None if titles is None else as_item_text(titles, "title").take(kept),
            columns={key: as_item_text(column, key).take(kept) for key, column in (columns or {}).items()},
            scale=scale,
            name=name,
            duplicates=duplicates,
            notes=(*notes, note_left_out(int(gone.sum()), "no user, item or rating")),
            where=lambda row: at(int(kept[row])),
        )
    refuse_missing({role: BadRows.of(mask) for role, mask in absent.items()}, at)
    refuse_infinite(BadRows.of(find_infinite(values)), at)
    if not len(values):
        raise DataError(f"{name} has no ratings; give a table with at least one row")
    low, high = scale if scale is not None else (float(values.min()), float(values.max()))
    refuse_outside(BadRows.of((values < low) | (values > high)), (low, high), at)

    with ThreadPoolExecutor(2) as both:
        (user_code, user_ids), (item_code, item_ids) = both.map(encode, (users, items), ("user", "item"))
    table = Ratings(
        user=user_code,
        item=item_code,
        rating=values.astype(np.float32),
        user_ids=user_ids,
        item_ids=item_ids,
        time=None if time is None else np.asarray(time, np.int64),
        titles=None if titles is None else _per_item(titles, "title", item_code, len(item_ids)),
        columns={
            key: _per_item(column, key, item_code, len(item_ids)) for key, column in (columns or {}).items()
        },
        scale=(float(low), float(high)),
        scale_declared=scale is not None,
        name=name,
        notes=notes,
    )
    return _without_duplicates(table, duplicates, at)


def note_left_out(count: int, lack: str) -> str:
    """Return the note about rows that were left out because they lack something."""
    return f"{format_count(count, 'row')} {'has' if count == 1 else 'have'} {lack}: left out"


@dataclass(frozen=True)
class BadRows:
    """The number of rows with a problem, and the first of them."""

    count: int = 0
    first: int = -1

    @classmethod
    def of(cls, mask: Mask) -> "BadRows":
        """Return the rows of a mask."""
        return cls(int(mask.sum()), int(mask.argmax())) if mask.any() else cls()

    def add(self, later: "BadRows", before: int) -> "BadRows":
        """Return these rows and those of a later part of the table, which `before` rows precede."""
        if not later.count:
            return self
        return BadRows(self.count + later.count, self.first if self.count else before + later.first)

    def describe(self, what: str, at: Callable[[int], str]) -> str:
        """Return the number of rows and the place of the first."""
        verb = what.replace("have", "has", 1) if self.count == 1 else what
        return f"{format_count(self.count, 'row')} {verb}, the first in {at(self.first)}"


def refuse_missing(absent: Mapping[str, BadRows], at: Callable[[int], str]) -> None:
    """Raise `DataError` that names every kind of missing value, with their numbers and first places."""
    kinds = {"user": "have no user", "item": "have no item", "rating": NO_RATING}
    texts = [absent[role].describe(what, at) for role, what in kinds.items() if absent[role].count]
    if texts:
        raise DataError(f"{'; '.join(texts)}: {fill_in()}")


def refuse_infinite(bad: BadRows, at: Callable[[int], str]) -> None:
    """Raise `DataError` if a rating is infinite."""
    _refuse(bad, INFINITE, at, "correct or remove them")


def refuse_outside(bad: BadRows, scale: tuple[float, float], at: Callable[[int], str]) -> None:
    """Raise `DataError` if a rating is outside the scale."""
    what = f"have a rating outside the scale {scale[0]:g} to {scale[1]:g}"
    _refuse(bad, what, at, "correct them or give another scale")


def _refuse(bad: BadRows, what: str, at: Callable[[int], str], remedy: str) -> None:
    """Raise `DataError` if any row is bad, with their number and the place of the first."""
    if bad.count:
        raise DataError(f"{bad.describe(what, at)}: {remedy}")


def repeated_pairs(repeats: int, pair: tuple[str, str], places: tuple[str, str]) -> DataError:
    """Return the error of rows that repeat a (user, item) pair, with the first such pair and its first two places."""
    return DataError(
        f"{_repeating(repeats)} a (user, item) pair, first {pair} in {places[0]} and {places[1]}:"
        f" keep one with {option('duplicates', 'first')} (or last, mean) or remove them"
    )


def note_repeated(repeats: int, duplicates: str) -> str:
    """Return the note about how repeated pairs were treated."""
    outcome = "took the mean rating" if duplicates == "mean" else f"kept the {duplicates}"
    return f"{_repeating(repeats)} a (user, item) pair: {outcome}"


def _repeating(repeats: int) -> str:
    return format_count(repeats, "row") + (" repeats" if repeats == 1 else " repeat")


def _per_item(values: Any, what: str, item: NDArray[np.int32], n_items: int) -> StrArray:
    """Return the first non-empty value of each item."""
    if not isinstance(values, pa.ChunkedArray) or values.type != pa.dictionary(pa.int32(), TEXT):
        values = as_item_text(values, what)
    codes, texts = encode_unordered(values)
    # The appended entry is for nulls, whose code is -1.
    dictionary = np.append(to_numpy(texts, LONGEST_TITLE), "")
    filled = np.flatnonzero((dictionary != "")[codes])[::-1]
    first = np.full(n_items, -1, np.int64)
    # Assigned from last to first, so that the first value remains.
    first[item[filled]] = codes[filled]
    return dictionary[first]


def _without_duplicates(table: Ratings, duplicates: str, at: Callable[[int], str]) -> Ratings:
    key = table.user.astype(np.int64) * table.n_items + table.item
    in_order = np.sort(key)
    if not (in_order[1:] == in_order[:-1]).any():
        return table
    order = np.argsort(key, kind="stable")
    new = np.append(True, in_order[1:] != in_order[:-1])
    repeats = int((~new).sum())
    if duplicates == "error":
        starts = order[new]
        twice = np.flatnonzero(np.diff(np.append(np.flatnonzero(new), len(key))) > 1)
        first = int(starts[twice].min())
        second = int(np.flatnonzero(key == key[first])[1])
        pair = str(table.user_ids[table.user[first]]), str(table.item_ids[table.item[first]])
        raise repeated_pairs(repeats, pair, (at(first), at(second)))
    if duplicates == "mean":
        group = np.cumsum(new) - 1
        mean = np.bincount(group, weights=table.rating[order]) / np.bincount(group)
        rating = table.rating.copy()
        rating[order[new]] = mean
        table = replace(table, rating=rating)
    last = np.append(new[1:], True)
    kept = np.sort(order[last] if duplicates == "last" else order[new])
    return table.take(kept).with_notes(note_repeated(repeats, duplicates))

"""Checks of a source of ratings: every kind of problem in one pass, with its count and its first places.

A source is usable exactly when `read_ratings` with the same options reads it. Everything else is a warning.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from verfedgnn.core.errors import DataError, MissingColumns
from verfedgnn.core.option_names import option
from verfedgnn.data.column_names import RATING_ROLES
from verfedgnn.data.ids import TEXT
from verfedgnn.data.publishers import find_layout
from verfedgnn.data.rating_checks import SHOWN, CheckedRows, DataProblem, check_rows, used_ids
from verfedgnn.data.rating_distribution import Distribution, describe_ratings
from verfedgnn.data.rating_reader import as_ratings, list_tables, locate, read_ratings
from verfedgnn.data.ratings import Mask, Ratings, count_rows, format_count
from verfedgnn.data.read_options import is_address, redact
from verfedgnn.data.table_sources import (
    MemorySource,
    PlainTable,
    TextSource,
    is_inter,
    open_memory,
    open_table,
    read_rows,
)
from verfedgnn.data.text_files import EncodingError
from verfedgnn.data.value_parsing import EARLIEST, latest_plausible_time, shorten

FEW = 5
"""Number of ratings below which little can be learnt about a user."""
_SHOWN_OF = {
    "not-a-number": "rating",
    "infinite": "rating",
    "off-scale": "rating",
    "future": "time",
    "early": "time",
}
"""Column whose values are shown with a kind of problem. Ids are never shown."""


@dataclass(frozen=True, eq=False)
class CheckedSource:
    """A source of ratings and the result of its check."""

    name: str
    source: str
    """Path or address of the source, without its password."""
    unit: str
    """Unit of the problems' places: "line" for text files, "position" for tables in memory, "row" for everything else."""
    problems: tuple[DataProblem, ...]
    notes: tuple[str, ...]
    shape: Distribution | None
    """Distribution of the rows without a problem."""
    users: pa.Array
    """Distinct user ids."""
    counts: NDArray[np.int64]
    """Number of ratings of each of these users."""
    items: pa.Array
    """Distinct item ids."""
    columns: tuple[str, ...] = ()
    """Values of `--columns` that make an unreadable source readable, if they can be guessed."""

    @property
    def usable(self) -> bool:
        """Whether the source can be read."""
        return not any(problem.fatal for problem in self.problems)


@dataclass(frozen=True)
class OverlapRegion:
    """The users who are at exactly these parties."""

    parties: tuple[str, ...]
    users: int
    ratings: int


@dataclass(frozen=True)
class UserOverlap:
    """How the users of several sources overlap."""

    parties: int
    """Number of sources."""
    regions: tuple[OverlapRegion, ...]
    """Every combination of parties that has users, the largest first."""
    shared_ignoring_case: int
    """Number of users at two or more parties if capitals did not matter. A larger number hints at different spellings."""
    shared_items: tuple[tuple[str, str, int], ...]
    """Pairs of sources and the number of item ids in both. Each party's items are its own, so these are different items."""

    @property
    def shared(self) -> int:
        """Number of users at two or more parties."""
        return self.count_from(2)[0]

    @property
    def usable(self) -> bool:
        """Whether parties with these sources can train together."""
        return bool(self.shared)

    def count_from(self, fewest: int) -> tuple[int, int]:
        """Return how many users are at `fewest` or more parties, and how many ratings they have."""
        chosen = [region for region in self.regions if len(region.parties) >= fewest]
        return sum(region.users for region in chosen), sum(region.ratings for region in chosen)

    def count_rules(self) -> dict[str, tuple[int, int]]:
        """Return the users and the ratings that take part under each rule of `--users`."""
        return {"all": self.count_from(self.parties), "2": self.count_from(2), "any": self.count_from(1)}


def check_source(name: str, source: Any, *, now: int | None = None, **options: Any) -> CheckedSource:
    """Check one source with the options of `read_ratings`. Times after `now`, in seconds since 1970, lie in the future.

    A source is a path or a name, or a table in memory as `as_ratings` takes it.
    """
    stored = isinstance(source, str | Path)
    shown = redact(source) if stored else "in memory"
    try:
        if not stored:
            if isinstance(source, Ratings) or options.get("events") is not None:
                return _check_ratings(name, shown, as_ratings(source, name=name, **options), now)
            opened = open_memory(source, name, options.get("columns") or {}, RATING_ROLES)
            return _check_rows(name, shown, _read_table(opened), now, "error", options)
        plain = _find_plain(source, options)
        if plain is None:
            return _check_ratings(name, shown, read_ratings(source, **options), now)
        opening: dict[str, Any] = {
            key: options.get(key) for key in ("columns", "encoding", "delimiter", "query")
        }
        try:
            table = _read_table(open_table(plain, **opening))
        except EncodingError:
            # latin-1 decodes any file.
            latin = open_table(plain, **opening | {"encoding": "latin-1"})
            table = _read_table(latin, _find_undecodable(open_table(plain, **opening)))
        repeated = "first" if is_inter(plain) else "error"
        return _check_rows(name, redact(plain), table, now, repeated, options)
    except MissingColumns as error:
        return replace(_unreadable(name, shown, error), columns=error.flags)
    except DataError as error:
        return _unreadable(name, shown, error)


@dataclass(frozen=True, eq=False)
class _ReadTable:
    """The readable rows of a table, valid or not, with one column per role."""

    rows: pa.Table
    unread: tuple[DataProblem, ...]
    """Problems of the rows that could not be read, with their lines."""
    unit: str
    """Unit of places in messages."""
    number: Callable[[list[int]], dict[int, int]]
    """Function that returns the lines, or the numbers, of some rows."""


def _read_table(opened: PlainTable, *unread: DataProblem) -> _ReadTable:
    """Read users, items, ratings and times; other columns need no check."""
    roles = {role: name for role, name in opened.names.items() if role in (*RATING_ROLES, "time")}
    opened = replace(opened, names=roles)
    if not isinstance(opened, TextSource):
        first = 0 if isinstance(opened, MemorySource) else 1
        rows = read_rows(opened.batches(), list(roles))
        return _ReadTable(
            rows, (), "row" if first else "position", lambda wanted: {r: r + first for r in wanted}
        )
    text = opened.text
    broken: list[int] = []
    rows = read_rows(opened.batches(broken), list(roles))
    gaps = np.array(broken, np.int64)

    def number(wanted: list[int]) -> dict[int, int]:
        records = np.array(wanted, np.int64) + text.header
        # Removing the j broken records before broken record j shifts it by j; compare the shifted positions.
        records += np.searchsorted(gaps - np.arange(len(gaps)), records, "right")
        lines = text.lines(records.tolist())
        return {row: lines[record] for row, record in zip(wanted, records.tolist(), strict=True)}

    if broken:
        where = text.lines(broken[:SHOWN])
        remedy = f"correct them, or name the delimiter with {option('delimiter')} (now {text.delimiter!r})"
        said = f"{format_count(len(broken), 'line')} {'has' if len(broken) == 1 else 'have'} too few or too many fields"
        places = tuple(where[record] for record in broken[:SHOWN])
        unread = (*unread, DataProblem("broken", said, remedy, len(broken), places, fatal=True))
    return _ReadTable(rows, unread, "line", number)


def _find_undecodable(opened: PlainTable) -> DataProblem:
    """Return the problem of lines that are not in the encoding of a text table."""
    assert isinstance(opened, TextSource)
    lines = opened.text.undecodable()
    first = tuple(islice(lines, SHOWN))
    count = len(first) + sum(1 for _ in lines)
    verb = "is" if count == 1 else "are"
    said = f"{format_count(count, 'line')} {verb} not {opened.text.encoding or 'utf-8'} text"
    remedy = f"give the encoding of the file, for example {option('encoding', 'latin-1')}"
    return DataProblem("encoding", said, remedy, count, first, fatal=True)


def measure_overlap(found: Sequence[CheckedSource]) -> UserOverlap:
    """Compare the ids of several sources, in the clear."""
    pairs = [(a, b) for k, a in enumerate(found) for b in found[k + 1 :]]
    shared_items = [
        (a.name, b.name, int(pc.sum(pc.is_in(a.items, value_set=b.items)).as_py() or 0)) for a, b in pairs
    ]
    without_case = _membership([pc.utf8_lower(each.users).unique() for each in found])
    return UserOverlap(
        len(found),
        _regions(found),
        int((without_case.sum(1) > 1).sum()),
        tuple(pair for pair in shared_items if pair[2]),
    )


def _regions(found: Sequence[CheckedSource]) -> tuple[OverlapRegion, ...]:
    member = _membership([each.users for each in found])
    ratings = np.zeros(len(member), np.int64)
    for each, codes in zip(found, _codes([each.users for each in found]), strict=True):
        ratings[codes] += each.counts
    packed, region_of = np.unique(np.packbits(member, axis=1), axis=0, return_inverse=True)
    users = np.bincount(region_of.reshape(-1), minlength=len(packed))
    rated = np.bincount(region_of.reshape(-1), ratings, minlength=len(packed)).astype(np.int64)
    at = np.unpackbits(packed, axis=1, count=len(found)).astype(bool)
    regions = [
        OverlapRegion(tuple(found[p].name for p in np.flatnonzero(row).tolist()), int(count), int(amount))
        for row, count, amount in zip(at, users, rated, strict=True)
    ]
    return tuple(sorted(regions, key=lambda region: (-region.users, len(region.parties))))


def _membership(ids: Sequence[pa.Array]) -> NDArray[np.bool_]:
    """Return which user of the union is in which of the lists of distinct ids (users, lists)."""
    codes = _codes(ids)
    member = np.zeros((1 + max((int(one.max()) for one in codes if len(one)), default=-1), len(ids)), bool)
    for column, one in enumerate(codes):
        member[one, column] = True
    return member


def _codes(ids: Sequence[pa.Array]) -> list[NDArray[np.int64]]:
    """Return, for each list, the number of each id in the union of all lists."""
    every = pa.concat_arrays([one.cast(TEXT) for one in ids]).dictionary_encode().indices.to_numpy()
    return np.split(every.astype(np.int64), np.cumsum([len(one) for one in ids])[:-1])


def _find_plain(source: str | Path, options: Mapping[str, Any]) -> str | Path | None:
    """Return the table to check row by row, or None for synthetic data, events and publishers' layouts, which have readers."""
    if options.get("events") is not None or (str(source) == "synthetic" and not Path(source).exists()):
        return None
    if is_address(source):
        return source
    path = locate(source)
    if not options.get("columns") and find_layout(path) is not None:
        return None
    if path.is_dir():
        files = list_tables(path)
        return files[0] if len(files) == 1 else None
    return path


def _check_ratings(name: str, source: str, ratings: Ratings, now: int | None) -> CheckedSource:
    shape = describe_ratings(ratings.user, ratings.item, ratings.rating, ratings.time, now)
    problems = _find_warnings(ratings.user, ratings.item, ratings.rating, ratings.time, now)
    counts = np.bincount(ratings.user, minlength=ratings.n_users)
    users = pa.array(ratings.user_ids, TEXT)
    items = pa.array(ratings.item_ids, TEXT)
    return CheckedSource(name, source, "row", tuple(problems), ratings.notes, shape, users, counts, items)


def _check_rows(
    name: str, source: str, table: _ReadTable, now: int | None, duplicates: str, options: Mapping[str, Any]
) -> CheckedSource:
    """Check rows one by one; `duplicates` says how to treat repeated pairs if the options do not."""
    rows = table.rows
    found = check_rows(
        rows["user"],
        rows["item"],
        rows["rating"],
        rows["time"] if "time" in rows.column_names else None,
        scale=options.get("scale"),
        duplicates=options.get("duplicates") or duplicates,
        missing=options.get("missing") or "error",
    )
    good = np.flatnonzero(~found.bad)
    user, users = used_ids(found.user[good], found.users)
    item, items = used_ids(found.item[good], found.items)
    rating = found.rating[good]
    time = None if found.time is None else found.time[good]
    problems = [*found.problems, *_find_warnings(user, item, rating, time, now, good)]
    catalogue = options.get("catalogue")
    if catalogue is not None and len(items) > catalogue:
        text = f"{len(items):,} items have ratings, more than the declared catalogue of {catalogue:,}"
        problems.append(
            DataProblem("catalogue", text, f"declare a larger {option('catalogue')}", 1, fatal=True)
        )
    number = table.number(sorted({row for problem in problems for row in problem.places}))
    placed = [
        replace(
            each, places=tuple(number[row] for row in each.places), values=_show_values(each, rows, found)
        )
        for each in problems
    ]
    shape = describe_ratings(user, item, rating, time, now)
    return CheckedSource(
        *(name, source, table.unit, (*table.unread, *placed), found.notes, shape, users),
        *(np.bincount(user, minlength=len(users)), items),
    )


def _show_values(problem: DataProblem, rows: pa.Table, found: CheckedRows) -> tuple[str, ...]:
    """Return the ratings or times in a problem's rows, without texts that are or may be ids of this table."""
    column = _SHOWN_OF.get(problem.kind)
    if column is None or not problem.places:
        return ()
    words = pc.cast(rows[column].take(pa.array(problem.places)), TEXT).to_pylist()
    if problem.kind != "not-a-number":
        return tuple(map(shorten, words))
    if 2 * problem.count > rows.num_rows:
        return ()
    return tuple(
        ""
        if any(pc.any(pc.equal(ids, word.strip())).as_py() for ids in (found.users, found.items))
        else shorten(word)
        for word in words
    )


def _find_warnings(
    user: NDArray[Any],
    item: NDArray[Any],
    rating: NDArray[Any],
    time: NDArray[np.int64] | None,
    now: int | None = None,
    row_of: NDArray[np.int64] | None = None,
) -> list[DataProblem]:
    """Find problems of usable ratings that are likely to be mistakes or to reduce accuracy."""
    if not len(rating):
        return []
    found = []

    def warn(kind: str, mask: Mask, what: str, remedy: str) -> None:
        if mask.any():
            first = np.flatnonzero(mask)[:SHOWN]
            places = () if row_of is None else tuple(row_of[first].tolist())
            found.append(
                DataProblem(kind, count_rows(int(mask.sum()), what), remedy, int(mask.sum()), places)
            )

    low, high = float(rating.min()), float(rating.max())
    if low == high and len(rating) > 1:
        text = f"all ratings are {low:g}, so there is nothing to learn from them"
        remedy = f"if they are events, weigh them with {option('events')}"
        found.append(DataProblem("all-equal", text, remedy, len(rating)))
    elif low == 0 < high and float(rating[rating > 0].min()) >= 1:
        what = "have the rating 0, where the others begin at 1 or more"
        warn("zeros", rating == 0, what, "if 0 means 'not rated', remove them")
    if time is not None:
        late, early = time > latest_plausible_time(now), time < EARLIEST
        warn("future", late, "have a time in the future", "check the unit and the zone of times")
        remedy = "check that times are seconds or milliseconds since 1970"
        warn("early", early, "have a time before 1990", remedy)
    counts = np.bincount(user)
    few = int(((counts > 0) & (counts < FEW)).sum())
    everybody = int((counts > 0).sum())
    if few:
        have = "has" if few == 1 else "have"
        text = f"{few:,} of {format_count(everybody, 'user')} ({100 * few / everybody:.0f} %) {have} fewer than {FEW} ratings"
        found.append(DataProblem("few-ratings", text, "little can be learnt about them alone", few))
    return found


def _unreadable(name: str, source: str, error: DataError) -> CheckedSource:
    nobody = pa.array([], TEXT)
    problem = DataProblem("unreadable", str(error), "", 1, fatal=True)
    return CheckedSource(name, source, "row", (problem,), (), None, nobody, np.zeros(0, np.int64), nobody)

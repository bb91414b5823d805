"""Checks of a source of ratings: every kind of problem in one pass, with its count and its first places.

A source is usable exactly when `read_ratings` with the same options reads it. Everything else is a warning.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from verfedgnn.core.errors import DataError, MissingColumns
from verfedgnn.core.option_names import option
from verfedgnn.data.checked_rows import CheckedRows, read_rows
from verfedgnn.data.data_frames import as_ratings, read_columns
from verfedgnn.data.event_ratings import required_columns
from verfedgnn.data.ids import TEXT
from verfedgnn.data.prepared_folder import is_prepared
from verfedgnn.data.rating_distribution import Distribution, describe_ratings
from verfedgnn.data.rating_reader import find_layout, list_tables, locate, read_ratings
from verfedgnn.data.ratings import Ratings
from verfedgnn.data.row_problems import DataProblem, find_problems, find_warnings
from verfedgnn.data.source_address import is_address, redact
from verfedgnn.data.table_sources import is_inter


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
            rows = CheckedRows(read_columns(source, name, options.get("columns") or {}), first=0)
            return _check_rows(name, shown, rows, now, "error", options)
        plain = _plain_table(source, options)
        if plain is None:
            return _check_ratings(name, shown, read_ratings(source, **options), now)
        opening = {
            key: options[key]
            for key in ("columns", "encoding", "delimiter", "query")
            if options.get(key) is not None
        }
        rows = read_rows(plain, required=required_columns(None), **opening)
        return _check_rows(name, redact(plain), rows, now, "first" if is_inter(plain) else "error", options)
    except MissingColumns as error:
        return replace(_unreadable(name, shown, error), columns=error.flags)
    except DataError as error:
        return _unreadable(name, shown, error)


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


def _plain_table(source: str | Path, options: Mapping[str, Any]) -> str | Path | None:
    """Return the table to check row by row, or None for synthetic data, events and publishers' layouts, which have readers."""
    if options.get("events") is not None or (str(source) == "synthetic" and not Path(source).exists()):
        return None
    if is_address(source):
        return source
    path = locate(source)
    if is_prepared(path) or (not options.get("columns") and find_layout(path) is not None):
        return None
    if path.is_dir():
        files = list_tables(path)
        return files[0] if len(files) == 1 else None
    return path


def _check_ratings(name: str, source: str, ratings: Ratings, now: int | None) -> CheckedSource:
    shape = describe_ratings(ratings.user, ratings.item, ratings.rating, ratings.time, now)
    problems = find_warnings(ratings.user, ratings.item, ratings.rating, ratings.time, now)
    counts = np.bincount(ratings.user, minlength=ratings.n_users)
    users = pa.array(ratings.user_ids, TEXT)
    items = pa.array(ratings.item_ids, TEXT)
    return CheckedSource(name, source, "row", tuple(problems), ratings.notes, shape, users, counts, items)


def _check_rows(
    name: str, source: str, rows: CheckedRows, now: int | None, duplicates: str, options: Mapping[str, Any]
) -> CheckedSource:
    """Check rows one by one; `duplicates` says how to treat repeated pairs if the options do not."""
    found = find_problems(
        rows.table,
        scale=options.get("scale"),
        duplicates=options.get("duplicates") or duplicates,
        missing=options.get("missing") or "error",
    )
    good = found.good
    problems = [
        *found.problems,
        *find_warnings(good.user, good.item, good.rating, good.time, now, found.row_of),
    ]
    catalogue = options.get("catalogue")
    if catalogue is not None and len(found.items) > catalogue:
        text = f"{len(found.items):,} items have ratings, more than the declared catalogue of {catalogue:,}"
        problems.append(
            DataProblem("catalogue", text, f"declare a larger {option('catalogue')}", 1, fatal=True)
        )
    placed = rows.placed(problems)
    shape = describe_ratings(good.user, good.item, good.rating, good.time, now)
    counts = np.bincount(good.user)
    return CheckedSource(
        name,
        source,
        rows.unit,
        tuple(placed),
        found.notes,
        shape,
        found.users,
        counts[counts > 0],
        found.items,
    )


def _unreadable(name: str, source: str, error: DataError) -> CheckedSource:
    nobody = pa.array([], TEXT)
    problem = DataProblem("unreadable", str(error), "", 1, fatal=True)
    return CheckedSource(name, source, "row", (problem,), (), None, nobody, np.zeros(0, np.int64), nobody)

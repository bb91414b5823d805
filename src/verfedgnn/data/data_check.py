"""What is wrong with a source of ratings: every kind of problem in one reading, with its count and its first places.

A source is usable exactly when `read_ratings` with the same options reads it; what else is worth knowing is a warning.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from verfedgnn.core.errors import DataError
from verfedgnn.data.checked_rows import read_rows
from verfedgnn.data.event_ratings import required_columns
from verfedgnn.data.ids import TEXT
from verfedgnn.data.rating_distribution import Distribution, describe_ratings
from verfedgnn.data.rating_reader import find_layout, list_tables, locate, read_ratings
from verfedgnn.data.row_problems import DataProblem, find_problems, find_warnings
from verfedgnn.data.source_address import is_address, redact
from verfedgnn.data.table_sources import is_inter


@dataclass(frozen=True, eq=False)
class Checked:
    """A source and what was found."""

    name: str
    source: str
    """Where it is, without a password."""
    unit: str
    """What places count: "line" of a text file, "row" of anything else."""
    problems: tuple[DataProblem, ...]
    notes: tuple[str, ...]
    shape: Distribution | None
    """Of the rows without a problem."""
    users: pa.Array
    """The different ids, for what sources have in common."""
    items: pa.Array

    @property
    def usable(self) -> bool:
        """Whether it can be read as it is."""
        return not any(problem.fatal for problem in self.problems)


@dataclass(frozen=True)
class Common:
    """What several sources have in common."""

    users: int
    """Users who are in every one of them, and would take part in a training."""
    alike: int
    """The same if capitals did not matter; many more of these are ids that are not written in the same way."""
    items: tuple[tuple[str, str, int], ...]
    """Pairs of sources with the number of items in both, where there are some; an item belongs to one party."""

    @property
    def usable(self) -> bool:
        """Whether parties with these sources could train together."""
        return bool(self.users) and not self.items


def check_source(name: str, source: str | Path, *, now: int | None = None, **options: Any) -> Checked:
    """Look at one source, read with the options of `read_ratings`; `now` (seconds since 1970) is for times in the future."""
    try:
        plain = _plain_table(source, options)
        return (
            _check_ratings(name, source, now, options)
            if plain is None
            else _check_table(name, plain, now, options)
        )
    except DataError as error:
        return _unreadable(name, source, error)


def in_common(found: Sequence[Checked]) -> Common:
    """What the sources share, by intersecting their ids here."""
    users, alike = (
        _everywhere([each.users for each in found]),
        _everywhere([pc.utf8_lower(each.users) for each in found]),
    )
    pairs = [(a, b) for k, a in enumerate(found) for b in found[k + 1 :]]
    shared = [
        (a.name, b.name, int(pc.sum(pc.is_in(a.items, value_set=b.items)).as_py() or 0)) for a, b in pairs
    ]
    return Common(len(users), len(alike.unique()), tuple(pair for pair in shared if pair[2]))


def _everywhere(ids: Sequence[pa.Array]) -> pa.Array:
    common = ids[0]
    for other in ids[1:]:
        common = common.filter(pc.is_in(common, value_set=other))
    return common


def _plain_table(source: str | Path, options: Mapping[str, Any]) -> str | Path | None:
    """The table that can be looked at row by row; None: synthetic data, a publisher's layout or events, which have readers."""
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


def _check_ratings(name: str, source: str | Path, now: int | None, options: Mapping[str, Any]) -> Checked:
    ratings = read_ratings(source, **options)
    shape = describe_ratings(ratings.user, ratings.item, ratings.rating, ratings.time, now)
    problems = find_warnings(ratings.user, ratings.item, ratings.rating, ratings.time, now)
    users, items = (pa.array(ids, TEXT) for ids in (ratings.user_ids, ratings.item_ids))
    return Checked(name, redact(source), "row", tuple(problems), ratings.notes, shape, users, items)


def _check_table(name: str, source: str | Path, now: int | None, options: Mapping[str, Any]) -> Checked:
    opening = {
        key: options[key]
        for key in ("columns", "encoding", "delimiter", "query")
        if options.get(key) is not None
    }
    rows = read_rows(source, required=required_columns(None), **opening)
    found = find_problems(
        rows.table,
        scale=options.get("scale"),
        duplicates=options.get("duplicates") or ("first" if is_inter(source) else "error"),
        missing=options.get("missing") or "error",
    )
    good = found.good
    problems = [
        *found.problems,
        *find_warnings(good.user, good.item, good.rating, good.time, now, found.row_of),
    ]
    placed = rows.placed(problems)
    shape = describe_ratings(good.user, good.item, good.rating, good.time, now)
    return Checked(
        name, redact(source), rows.unit, tuple(placed), found.notes, shape, found.users, found.items
    )


def _unreadable(name: str, source: str | Path, error: DataError) -> Checked:
    nobody = pa.array([], TEXT)
    problem = DataProblem("unreadable", str(error), "", 1, fatal=True)
    return Checked(name, redact(source), "row", (problem,), (), None, nobody, nobody)

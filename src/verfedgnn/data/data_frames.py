"""Ratings from memory: Arrow tables, data frames of any library that exports Arrow, and plain arrays."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from verfedgnn.core.errors import DataError
from verfedgnn.data.column_names import RATING_ROLES, match_columns
from verfedgnn.data.rating_reader import read_ratings
from verfedgnn.data.ratings import Ratings, make_ratings
from verfedgnn.data.time_parsing import parse_times


def as_ratings(source: Any, *, name: str = "ratings", keep: Sequence[str] = ()) -> Ratings:
    """Convert a path or data set name, an Arrow table, a data frame, or a tuple (users, items, ratings) to
    `Ratings`.

    A data frame is any object with `__arrow_c_stream__`, for example of pandas, polars or DuckDB. Its columns
    are matched by the same names as those of files (user, item, rating; userId, movieId, stars; ...). `keep`
    names further item columns.
    """
    if isinstance(source, Ratings):
        return source
    if isinstance(source, str | Path):
        return read_ratings(source, keep=keep)
    if hasattr(source, "__arrow_c_stream__"):
        return _from_table(pa.table(source), name, keep)
    if isinstance(source, tuple) and len(source) == 3:
        return make_ratings(*source, name=name)
    raise DataError(
        f"{name}: a {type(source).__name__} is not a table of ratings; give a path, an Arrow table, a data frame, or "
        "three arrays (users, items, ratings)"
    )


def _from_table(table: pa.Table, name: str, keep: Sequence[str]) -> Ratings:
    names = match_columns(
        table.column_names, {}, keep=keep, source=name, remedy="rename them to user, item and rating"
    )
    time, notes = parse_times(table[names["time"]]) if "time" in names else (None, ())
    return make_ratings(
        *(table[names[role]] for role in RATING_ROLES),
        time=time,
        titles=table[names["title"]] if "title" in names else None,
        columns={role: table[names[role]] for role in names if role not in (*RATING_ROLES, "time", "title")},
        name=name,
        notes=notes,
    )

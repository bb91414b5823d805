"""Ratings that are in memory already: Arrow tables, data frames of any library that speaks Arrow, and plain arrays."""

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
    """Ratings from a path or data set's name, an Arrow table, a data frame, or a tuple (users, items, ratings).

    A data frame is anything with `__arrow_c_stream__`: of pandas, polars, DuckDB, ... Its columns are found by the names that
    files may have, too (user, item, rating; userId, movieId, stars; ...); `keep` names further item columns.
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
        f"{name}: a {type(source).__name__} is no table of ratings: give a path, an Arrow table, a data frame, or three arrays "
        "(users, items, ratings)"
    )


def _from_table(table: pa.Table, name: str, keep: Sequence[str]) -> Ratings:
    names = match_columns(
        table.column_names, {}, keep=keep, source=name, remedy="rename yours to user, item and rating"
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

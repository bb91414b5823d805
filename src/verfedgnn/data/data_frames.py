"""Ratings from memory: Arrow tables, data frames of any library that exports Arrow, and plain arrays."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from verfedgnn.core.errors import DataError
from verfedgnn.data.column_names import RATING_ROLES, match_columns
from verfedgnn.data.event_ratings import EventWeights, rate_events, required_columns
from verfedgnn.data.ids import TEXT, as_text, trim
from verfedgnn.data.rating_reader import read_ratings
from verfedgnn.data.ratings import Ratings, make_ratings
from verfedgnn.data.time_parsing import parse_times


def as_ratings(source: Any, *, name: str = "ratings", keep: Sequence[str] = (), **options: Any) -> Ratings:
    """Convert a path or data set name, an Arrow table, a data frame, or a tuple (users, items, ratings) to
    `Ratings`.

    A data frame is any object that exports Arrow (`__arrow_c_stream__` or `__arrow_c_array__`), for example of
    pandas, polars or DuckDB; a lazy frame is collected. Its columns are matched by the same names as those of
    files (user, item, rating; userId, movieId, stars; ...). `keep` names further item columns. `options` are
    those of `read_ratings`; a table in memory takes columns, missing, duplicates, events, scale and catalogue.
    """
    given = {option: value for option, value in options.items() if value is not None}
    if isinstance(source, str | Path):
        return read_ratings(source, keep=keep, **given)
    if isinstance(source, Ratings):
        if given:
            raise DataError(f"{', '.join(given)}: Ratings are read already; pass the option to read_ratings")
        return source
    catalogue = given.pop("catalogue", None)
    unknown = given.keys() - {"columns", "missing", "duplicates", "events", "scale"}
    if unknown:
        raise DataError(
            f"{', '.join(sorted(unknown))}: an option for files; leave it out for the table {name}"
        )
    found = _from_memory(source, name, keep, **given)
    return found if catalogue is None else found.with_catalogue(catalogue)


def _from_memory(
    source: Any,
    name: str,
    keep: Sequence[str],
    *,
    columns: Mapping[str, str] | None = None,
    events: EventWeights | None = None,
    missing: str = "error",
    duplicates: str = "error",
    scale: tuple[float, float] | None = None,
) -> Ratings:
    """Read the columns that are needed from a table in memory."""
    required = required_columns(events)
    there, column = open_columns(source, name, required)
    names = match_columns(there, columns or {}, required=required, keep=keep, source=name)
    found = {role: column(names[role]) for role in names}
    for role in ("user", "item"):
        found[role] = trim(_as_ids(found[role], role))
    if events is not None:
        batch = pa.table({role: _as_column(values) for role, values in found.items()})
        return rate_events(
            lambda: iter(batch.combine_chunks().to_batches()),
            events,
            scale=scale or (1, 5),
            name=name,
            missing=missing,
            where=lambda row: f"row {row} of {name} (counted from 0)",
        )
    time, notes = parse_times(_as_column(found["time"])) if "time" in names else (None, ())
    return make_ratings(
        *(found[role] for role in RATING_ROLES),
        time=time,
        titles=found.get("title"),
        columns={role: found[role] for role in names if role not in (*RATING_ROLES, "time", "title")},
        scale=scale,
        name=name,
        missing=missing,
        duplicates=duplicates,
        notes=notes,
    )


def read_columns(source: Any, name: str, columns: Mapping[str, str]) -> pa.Table:
    """Read the users, items, ratings and times of a table in memory as they are, valid or not."""
    there, column = open_columns(source, name, RATING_ROLES)
    names = match_columns(there, columns, source=name)
    found = {role: column(names[role]) for role in (*RATING_ROLES, "time") if role in names}
    for role in ("user", "item"):
        found[role] = trim(_as_ids(found[role], role))
    return pa.table({role: _as_column(values) for role, values in found.items()})


def open_columns(source: Any, name: str, required: Sequence[str]) -> tuple[list[str], Callable[[str], Any]]:
    """Return the names of the columns of a table in memory, and a function that returns one of them."""
    if isinstance(source, tuple) and len(source) == len(required):
        arrays = dict(zip(required, source, strict=True))
        return list(arrays), arrays.__getitem__
    exports = hasattr(source, "__arrow_c_stream__") or hasattr(source, "__arrow_c_array__")
    if not exports and callable(getattr(source, "collect", None)):  # a lazy frame of polars
        return open_columns(source.collect(), name, required)
    if not exports:
        raise DataError(
            f"{name}: a {type(source).__name__} is not a table of ratings; give a path, an Arrow table, a data frame, or "
            f"{len(required)} arrays ({', '.join(each + 's' for each in required)})"
        )
    try:
        table = pa.table(source)
        # pandas exports an index beside the columns.
        return [each for each in table.column_names if not each.startswith("__index_level_")], table.column
    except (pa.ArrowException, TypeError, OverflowError, UnicodeError):
        if not hasattr(source, "columns"):
            raise
    # A column of mixed types or of integers above 64 bit has no Arrow type; the others have.
    labels = {str(label): label for label in source.columns}
    return list(labels), lambda label: _single_column(source, labels[label])


def tables_by_party(source: Any, column: str | None = None) -> dict[str, pa.Table] | None:
    """Return the rows of each value of a column that names parties, by default "party"; None if there is no such column."""
    if isinstance(source, Ratings):
        return None
    there, _ = open_columns(source, "ratings", RATING_ROLES)
    if column is not None and column not in there:
        shown = ", ".join(there)
        raise DataError(f'columns names party="{column}", which does not exist; the columns are: {shown}')
    column = column or "party"
    if column not in there:
        return None
    table = pa.table(source if hasattr(source, "__arrow_c_stream__") else source.collect())
    owner = trim(as_text(table[column], "party"))
    if owner.null_count:
        raise DataError(f"the column {column} is empty in some rows; fill it in or leave these rows out")
    # Arrow does not filter the text type of polars.
    plain = [field.with_type(TEXT) if field.type == pa.string_view() else field for field in table.schema]
    table = table.cast(pa.schema(plain))
    found = pc.unique(owner).to_pylist()
    return {name: table.filter(pc.equal(owner, name)) for name in sorted(found)}


def _single_column(frame: Any, label: Any) -> Any:
    try:
        return pa.table(frame[[label]]).column(0)
    except (pa.ArrowException, TypeError, OverflowError, UnicodeError):
        return list(frame[label])


def _as_ids(values: Any, role: str) -> pa.Array | pa.ChunkedArray:
    kind = getattr(values, "type", None)
    if kind is not None and (pa.types.is_fixed_size_binary(kind) or kind in (pa.binary(), pa.binary_view())):
        raise DataError(f"the {role} column holds bytes or objects, not ids; convert it to text")
    return as_text(values, role)


def _as_column(values: Any) -> pa.Array | pa.ChunkedArray:
    return values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values, from_pandas=True)

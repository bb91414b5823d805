"""Plain tables: text files, Parquet files and tables in memory, read by one path.

A source yields Arrow record batches with one column per role (user, item, rating, ...). `read_rows` collects them and holds ids,
ratings and other text as codes, so that 100 million rows take 4 bytes a column and row; times stay as they are written.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from verfedgnn.core.errors import DataError
from verfedgnn.data.column_names import RATING_ROLES, match_columns
from verfedgnn.data.ids import (
    CODED_TEXT,
    LONGEST_TITLE,
    TEXT,
    Column,
    as_item_text,
    as_text,
    is_text,
    to_numpy,
    trim,
)
from verfedgnn.data.ratings import Ratings
from verfedgnn.data.text_files import TextTable, read_first_bytes, reading
from verfedgnn.data.value_parsing import as_number_column

TABLE_SUFFIXES = (".csv", ".tsv", ".inter", ".parquet", ".pq")
_ROWS = 1 << 20
"""Number of rows in a batch of a Parquet file."""


@dataclass(frozen=True)
class Table:
    """A table of any source: a file or columns in memory. Rows are read on demand."""

    names: dict[str, str]
    """The table's column of each role."""
    read: Callable[[dict[str, str], list[int] | None], Iterable[pa.RecordBatch]]
    """Function that yields such columns in batches; the list receives the records of a text file that are left out."""
    at: Callable[[int], str]
    """Function that describes the place of a row for messages."""
    unit: str = "row"
    """Unit of places: "line" for text files, "position" for tables in memory, which are counted from 0, else "row"."""
    text: TextTable | None = None
    """The text file, if the table is one."""
    notes: tuple[str, ...] = ()
    """Sentences about how the columns were found."""


def text_source(text: TextTable, names: dict[str, str], time: pa.DataType = TEXT) -> Table:
    """Return a text file as a table; `time` is the type of the column of times."""

    def read(names: dict[str, str], broken: list[int] | None) -> list[pa.RecordBatch]:
        types = {column: time if role == "time" else CODED_TEXT for role, column in names.items()}
        return text.read(types, broken).to_batches()  # type: ignore[no-any-return]

    return Table(names, read, text.at, "line", text)


def read_rows(table: Table, broken: list[int] | None = None) -> pa.Table:
    """Read all rows of a table, with one column per role and ids and text as codes; `broken` is that of `TextTable.read`."""
    parts: dict[str, list[pa.Array]] = {role: [] for role in table.names}
    for batch in table.read(table.names, broken):
        for role, arrays in parts.items():
            arrays.append(_coded(batch.column(table.names[role]), role))
    empty = pa.array([], TEXT)
    return pa.table({role: pa.chunked_array(arrays or [empty]) for role, arrays in parts.items()})


def _coded(column: pa.Array, role: str) -> pa.Array:
    """Return a column with ids and text as codes of trimmed texts."""
    ids = role in ("user", "item", "event")
    if column.type == pa.string_view() or (ids and pa.types.is_binary(column.type)):
        column = as_text(column, role)
    if role == "time":
        return column
    try:
        if (ids or is_text(column.type)) and not pa.types.is_dictionary(column.type):
            column = pc.dictionary_encode(column)
    except pa.ArrowNotImplementedError:
        return column
    if not pa.types.is_dictionary(column.type):
        return column
    words = column.dictionary
    words = trim(pc.cast(words, TEXT)) if is_text(words.type) else words
    return pa.DictionaryArray.from_arrays(column.indices, words)


def open_table(
    source: Any,
    name: str = "ratings",
    *,
    columns: Mapping[str, str] | None = None,
    encoding: str | None = None,
    delimiter: str | None = None,
    keep: Sequence[str] | None = (),
    required: Sequence[str] = RATING_ROLES,
) -> Table:
    """Open a file or a table in memory and match its columns, without reading its rows.

    The first bytes of a file determine its format. `name` is that of a table in memory; `keep` is as in `match_columns`.
    """
    match = partial(match_columns, wanted=columns or {}, required=required, keep=keep)
    if not isinstance(source, str | Path):
        there, column = open_columns(source, name, required)
        read = partial(_read_memory, name, column)
        return Table(
            match(there, source=name), read, lambda row: f"row {row} of {name} (counted from 0)", "position"
        )
    path = Path(source)
    head = read_first_bytes(path)
    if head.startswith(b"PAR1"):
        with _parquet(path) as file:
            names = match(file.schema_arrow.names, source=str(path))
        return Table(names, partial(_read_parquet, path), lambda row: f"row {row + 1} of {path.name}")
    line = head.split(b"\n", 1)[0]
    tabs = plain_name(path).endswith((".tsv", ".inter"))
    likely = "\t" if tabs else max(",\t;|", key=lambda character: line.count(character.encode()))
    text = TextTable(path, delimiter=delimiter or likely, encoding=encoding, quoted=not is_inter(path))
    fields = text.header_names()
    if (
        "rating" in required
        and not columns
        and len(fields) in (3, 4)
        and re.fullmatch(r"\s*-?\d+(\.\d*)?\s*", fields[2])
    ):
        text = replace(text, columns=("user", "item", "rating", "time")[: len(fields)])
        note = f"no header: the columns were read as {', '.join(text.columns)}"
        return replace(text_source(text, {name: name for name in text.columns}), notes=(note,))
    advice = " (or add a header if it has none)"
    return text_source(text, match(fields, source=str(path), advice=advice))


def _read_parquet(path: Path, names: dict[str, str], _: list[int] | None) -> Iterator[pa.RecordBatch]:
    with _parquet(path) as file:
        yield from file.iter_batches(_ROWS, columns=list(names.values()))


def _read_memory(
    name: str, column: Callable[[str], Any], names: dict[str, str], _: list[int] | None
) -> Iterator[pa.RecordBatch]:
    values = {role: _in_arrow(column(label), role) for role, label in names.items()}
    if len({len(array) for array in values.values()}) > 1:
        sizes = ", ".join(f"{len(array):,} of {role}" for role, array in values.items())
        raise DataError(f"{name} has columns of different lengths: {sizes}; give one of each per row")
    yield from pa.table({names[role]: array for role, array in values.items()}).to_batches()


def table_stem(source: str | Path) -> str:
    """Return the name of a table without folder, suffix and .gz."""
    name = Path(source).name.removesuffix(".gz")
    suffix = next((s for s in TABLE_SUFFIXES if name.lower().endswith(s)), "")
    return name[: len(name) - len(suffix)] or name


def is_inter(source: str | Path) -> bool:
    """Return whether a source is a RecBole table: tab separated, with the type after each column name."""
    return plain_name(source).endswith(".inter")


def plain_name(path: str | Path) -> str:
    """Return the name of a file in lower case, without .gz."""
    return Path(path).name.lower().removesuffix(".gz")


def open_columns(source: Any, name: str, required: Sequence[str]) -> tuple[list[str], Callable[[str], Any]]:
    """Return the names of the columns of a table in memory, and a function that returns one of them."""
    if isinstance(source, tuple) and len(source) == len(required):
        arrays = dict(zip(required, source, strict=True))
        return list(arrays), arrays.__getitem__
    table = _export(source)
    if table is None:
        raise DataError(
            f"{name}: a {type(source).__name__} is not a table of ratings; give a path, an Arrow table, a data frame, or "
            f"{len(required)} arrays ({', '.join(role + 's' for role in required)})"
        )
    try:
        table = pa.table(table)
        # pandas exports an index beside the columns.
        return [label for label in table.column_names if not label.startswith("__index_level_")], table.column
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
    table = pa.table(_export(source))
    owner = trim(as_text(table[column], "party"))
    if owner.null_count:
        raise DataError(f"the column {column} is empty in some rows; fill it in or leave these rows out")
    # Arrow does not filter the text type of polars.
    plain = [field.with_type(TEXT) if field.type == pa.string_view() else field for field in table.schema]
    table = table.cast(pa.schema(plain))
    return {name: table.filter(pc.equal(owner, name)) for name in sorted(pc.unique(owner).to_pylist())}


def _export(source: Any) -> Any:
    """Return what Arrow can import: the table itself, or the rows of a lazy or distributed frame; None for other objects."""
    if hasattr(source, "__arrow_c_stream__") or hasattr(source, "__arrow_c_array__"):
        return source
    # Spark's frames have both, and collect() returns Python rows.
    for method in ("toArrow", "collect"):
        if callable(getattr(source, method, None)):
            return getattr(source, method)()
    return None


def _single_column(frame: Any, label: Any) -> Any:
    try:
        return pa.table(frame[[label]]).column(0)
    except (pa.ArrowException, TypeError, OverflowError, UnicodeError):
        return list(frame[label])


def _in_arrow(values: Any, role: str) -> Column:
    """Return a column of a table in memory as one of Arrow."""
    if role in ("user", "item"):
        kind = getattr(values, "type", None)
        if kind is not None and (
            pa.types.is_fixed_size_binary(kind) or kind in (pa.binary(), pa.binary_view())
        ):
            raise DataError(f"the {role} column holds bytes or objects, not ids; convert it to text")
        return values if isinstance(values, Column) else as_text(values, role)
    if role == "rating":
        return as_number_column(values)
    return values if isinstance(values, Column) else pa.array(values, from_pandas=True)


@contextmanager
def _parquet(path: Path) -> Iterator[pa.parquet.ParquetFile]:
    """Open a Parquet file; a damaged one is a `DataError`."""
    try:
        with reading(path), pa.parquet.ParquetFile(path) as file:
            yield file
    except pa.ArrowException as error:
        raise DataError(
            f"{path} is a truncated or damaged Parquet file; write or download it again"
        ) from error


def read_item_texts(path: Path) -> dict[str, dict[str, str]]:
    """Read a table with a column of item ids, and return the text of its other columns by id; that of titles is `title`."""
    rows = read_rows(open_table(path, required=("item",), keep=None))
    ids = to_numpy(as_text(rows["item"], "item"))
    if len(np.unique(ids)) < len(ids) or (ids == "").any():
        raise DataError(f"{path} has rows without item id or with the same one; give one row per item")
    names = [name for name in rows.column_names if name != "item"]
    texts = [to_numpy(as_item_text(rows[name], name), LONGEST_TITLE).tolist() for name in names]
    return {item: dict(zip(names, row, strict=True)) for item, *row in zip(ids.tolist(), *texts, strict=True)}

"""Plain tables: text files, Parquet files, databases and tables in memory, read by one path.

A source yields Arrow record batches with one column per role (user, item, rating, ...). `read_rows` collects them and holds ids,
ratings and other text as codes, so that 100 million rows take 4 bytes a column and row; times stay as they are written.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from verfedgnn.core.errors import DataError
from verfedgnn.core.option_names import option
from verfedgnn.data.column_names import RATING_ROLES, match_columns
from verfedgnn.data.databases import DatabaseTable, is_database, open_database
from verfedgnn.data.event_ratings import rate_events, required_columns
from verfedgnn.data.ids import CODED_TEXT, TEXT, Column, as_text, is_text, trim
from verfedgnn.data.rating_checks import check_options, make_ratings
from verfedgnn.data.ratings import Ratings
from verfedgnn.data.read_options import EventWeights, address_name, is_address, redact
from verfedgnn.data.text_files import TextTable, read_first_bytes, reading
from verfedgnn.data.value_parsing import as_number_column

DATABASE_SUFFIXES = (".duckdb", ".db", ".sqlite", ".sqlite3")
TABLE_SUFFIXES = (".csv", ".tsv", ".inter", ".parquet", ".pq", *DATABASE_SUFFIXES)
_ROWS = 1 << 20
"""Number of rows in a batch of a Parquet file."""


@dataclass(frozen=True)
class TextSource:
    """A text table with its columns by role."""

    text: TextTable
    names: dict[str, str]

    def batches(self, broken: list[int] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches; `broken` receives the numbers of the records that are left out."""
        types = {column: TEXT if role == "time" else CODED_TEXT for role, column in self.names.items()}
        yield from _by_role(self.text.read(types, broken=broken), self.names).to_batches()

    def at(self, row: int) -> str:
        """Describe the place of a row for messages."""
        return self.text.at(row)


@dataclass(frozen=True)
class ParquetSource:
    """A Parquet file with its columns by role."""

    path: Path
    names: dict[str, str]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches."""
        with reading(self.path), _undamaged(self.path), pa.parquet.ParquetFile(self.path) as file:
            for batch in file.iter_batches(_ROWS, columns=list(self.names.values())):
                yield _by_role(batch, self.names)

    def at(self, row: int) -> str:
        """Describe the place of a row for messages."""
        return f"row {row + 1} of {self.path.name}"


@dataclass(frozen=True)
class MemorySource:
    """A table in memory with its columns by role."""

    name: str
    column: Callable[[str], Any]
    names: dict[str, str]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches."""
        columns = {role: _in_arrow(self.column(name), role) for role, name in self.names.items()}
        if len({len(values) for values in columns.values()}) > 1:
            sizes = ", ".join(f"{len(values):,} of {role}" for role, values in columns.items())
            raise DataError(
                f"{self.name} has columns of different lengths: {sizes}; give one of each per row"
            )
        yield from pa.table(columns).to_batches()

    def at(self, row: int) -> str:
        """Describe the place of a row for messages."""
        return f"row {row} of {self.name} (counted from 0)"


PlainTable = TextSource | ParquetSource | DatabaseTable | MemorySource


def read_rows(batches: Iterator[pa.RecordBatch], roles: Sequence[str]) -> pa.Table:
    """Collect the batches of a source in one table, with ids and text as codes."""
    found: dict[str, list[pa.Array]] = {role: [] for role in roles}
    for batch in batches:
        for role in roles:
            found[role].append(_coded(batch.column(role), role))
    empty = pa.array([], TEXT)
    return pa.table({role: pa.chunked_array(parts or [empty]) for role, parts in found.items()})


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
    if pa.types.is_dictionary(column.type):
        words = column.dictionary
        words = trim(pc.cast(words, TEXT) if words.type == pa.string_view() else words)
        return pa.DictionaryArray.from_arrays(column.indices, words)
    return column


def open_table(
    source: str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    encoding: str | None = None,
    delimiter: str | None = None,
    keep: Sequence[str] = (),
    query: str | None = None,
    required: Sequence[str] = RATING_ROLES,
) -> TextSource | ParquetSource | DatabaseTable:
    """Open a table and match its columns, without reading its rows. The first bytes determine its format."""
    head = None if is_address(source) else read_first_bytes(Path(source))
    wanted = columns or {}
    if head is None or is_database(head):
        return open_database(source, head, query=query, columns=wanted, required=required, keep=keep)
    path = Path(source)
    if query is not None:
        raise DataError(
            f"{option('query')} is for databases, and {path} is not one; with several sources, give it for the database only"
        )
    advice = ""
    if head.startswith(b"PAR1"):
        with reading(path), _undamaged(path), pa.parquet.ParquetFile(path) as file:
            there = file.schema_arrow.names
    else:
        text = TextTable(
            path, delimiter=delimiter or _delimiter(path, head), encoding=encoding, quoted=not is_inter(path)
        )
        advice = " (or add a header if it has none)"
        there = text.header_names()
    names = match_columns(there, wanted, required=required, keep=keep, source=str(path), advice=advice)
    return TextSource(text, names) if advice else ParquetSource(path, names)


def open_memory(
    source: Any, name: str, columns: Mapping[str, str], required: Sequence[str], keep: Sequence[str] = ()
) -> MemorySource:
    """Open a table in memory and match its columns."""
    there, column = open_columns(source, name, required)
    return MemorySource(
        name, column, match_columns(there, columns, required=required, keep=keep, source=name)
    )


def read_table(
    source: str | Path,
    *,
    events: EventWeights | None = None,
    duplicates: str | None = None,
    missing: str | None = None,
    scale: tuple[float, float] | None = None,
    name: str | None = None,
    **opening: Any,
) -> Ratings:
    """Read ratings from one table; `opening` holds the options of `open_table`.

    With `events`, each row is an event, and events are converted to ratings (`event_ratings`). By default a repeated (user, item)
    pair is an error, except in .inter files, where the first row is kept. Rows without a user, an item or a rating are an
    error unless `missing` is "drop".
    """
    repeated = duplicates or ("first" if is_inter(source) else "error")
    check_options(repeated, missing or "error")
    opened = open_table(source, required=required_columns(events), **opening)
    return rate_table(
        opened, name or table_stem(source), events=events, duplicates=repeated, missing=missing, scale=scale
    )


def rate_table(
    opened: PlainTable,
    name: str,
    *,
    events: EventWeights | None = None,
    duplicates: str = "error",
    missing: str | None = None,
    scale: tuple[float, float] | None = None,
) -> Ratings:
    """Read all rows of a table and return them as ratings."""
    rows = read_rows(opened.batches(), list(opened.names))
    missing = missing or "error"
    if events is not None:
        return rate_events(rows, events, scale=scale or (1, 5), name=name, missing=missing, where=opened.at)
    if not rows.num_rows and isinstance(opened, TextSource):
        raise DataError(
            f"{redact(opened.text.path)} has a header but no ratings; give a table with at least one row"
        )
    return make_ratings(
        *(rows[role] for role in RATING_ROLES),
        time=rows["time"] if "time" in opened.names else None,
        titles=rows["title"] if "title" in opened.names else None,
        columns={role: rows[role] for role in opened.names if role not in (*RATING_ROLES, "time", "title")},
        scale=scale,
        name=name,
        duplicates=duplicates,
        missing=missing,
        where=opened.at,
    )


def table_stem(source: str | Path) -> str:
    """Return the name of a table without folder, suffix and .gz, or the database of a server."""
    if is_address(source):
        return address_name(str(source))
    name = Path(source).name.removesuffix(".gz")
    suffix = next((s for s in TABLE_SUFFIXES if name.lower().endswith(s)), "")
    return name[: len(name) - len(suffix)] or name


def is_table(path: Path) -> bool:
    """Return whether a file is a table by its name; a database must also start like one."""
    name = path.name.lower().removesuffix(".gz")
    if name.endswith(DATABASE_SUFFIXES):
        with reading(path), path.open("rb") as file:
            return is_database(file.read(16))
    return name.endswith(TABLE_SUFFIXES)


def is_inter(source: str | Path) -> bool:
    """Return whether a source is a RecBole table: tab separated, with the type after each column name."""
    return not is_address(source) and Path(source).name.lower().removesuffix(".gz").endswith(".inter")


def open_columns(source: Any, name: str, required: Sequence[str]) -> tuple[list[str], Callable[[str], Any]]:
    """Return the names of the columns of a table in memory, and a function that returns one of them."""
    if isinstance(source, tuple) and len(source) == len(required):
        arrays = dict(zip(required, source, strict=True))
        return list(arrays), arrays.__getitem__
    table = _export(source)
    if table is None:
        raise DataError(
            f"{name}: a {type(source).__name__} is not a table of ratings; give a path, an Arrow table, a data frame, or "
            f"{len(required)} arrays ({', '.join(each + 's' for each in required)})"
        )
    try:
        table = pa.table(table)
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


def _by_role(rows: Any, names: dict[str, str]) -> Any:
    """Return a table or batch with one column per role, in the order of `names`."""
    columns = [rows.column(column) for column in names.values()]
    return type(rows).from_arrays(columns, names=list(names))


def _delimiter(path: Path, head: bytes) -> str:
    if path.name.lower().removesuffix(".gz").endswith((".tsv", ".inter")):
        return "\t"
    line = head.split(b"\n", 1)[0]
    return max((",", "\t", ";", "|"), key=lambda character: line.count(character.encode()))


@contextmanager
def _undamaged(path: Path) -> Iterator[None]:
    try:
        yield
    except pa.ArrowException as error:
        raise DataError(
            f"{path} is a truncated or damaged Parquet file; write or download it again"
        ) from error

"""Plain tables in text files, Parquet files and databases, with columns for user, item, rating and optionally
more.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from verfedgnn.core.errors import DataError
from verfedgnn.core.option_names import option
from verfedgnn.data.column_names import RATING_ROLES, match_columns
from verfedgnn.data.database_engines import is_database
from verfedgnn.data.database_tables import DatabaseTable, open_database
from verfedgnn.data.event_ratings import EventWeights, rate_events, required_columns
from verfedgnn.data.ids import TEXT, as_text, trim
from verfedgnn.data.number_parsing import parse_numbers
from verfedgnn.data.ratings import Ratings, check_options, find_missing, make_ratings
from verfedgnn.data.source_address import address_name, is_address, redact
from verfedgnn.data.text_files import NumberError, TextTable, read_first_bytes, reading
from verfedgnn.data.time_parsing import parse_times

DATABASE_SUFFIXES = (".duckdb", ".db", ".sqlite", ".sqlite3")
TABLE_SUFFIXES = (".csv", ".tsv", ".inter", ".parquet", ".pq", *DATABASE_SUFFIXES)


@dataclass(frozen=True)
class TextSource:
    """A text table with its columns by role."""

    text: TextTable
    names: dict[str, str]

    @property
    def types(self) -> dict[str, pa.DataType | None]:
        """Type of each column; ids are read as text."""
        kinds = {"rating": pa.float64(), "time": None}
        return {column: kinds.get(role, TEXT) for role, column in self.names.items()}

    def read(self) -> pa.Table:
        """Read all rows, one column per role.

        Ratings are text if Arrow's reader does not accept all of them as numbers.
        """
        try:
            return self.by_role(self.text.read(self.types))
        except NumberError:
            return self.by_role(self.text.read(self.as_written))

    @property
    def as_written(self) -> dict[str, pa.DataType | None]:
        """The same types, with ratings as text."""
        return {
            column: TEXT if role == "rating" else self.types[column] for role, column in self.names.items()
        }

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches.

        Times are text, because the first ones do not determine the format of the others.
        """
        for batch in self.text.batches({column: kind or TEXT for column, kind in self.types.items()}):
            yield self.by_role(batch)

    def by_role(self, rows: Any) -> Any:
        """Return rows of the file with one column per role."""
        return _by_role(rows, self.names)

    def at(self, row: int) -> str:
        """Describe the place of a row for messages."""
        return self.text.at(row)


@dataclass(frozen=True)
class ParquetSource:
    """A Parquet file with its columns by role."""

    path: Path
    names: dict[str, str]

    def read(self) -> pa.Table:
        """Read all rows, one column per role."""
        with reading(self.path), _undamaged(self.path), pa.parquet.ParquetFile(self.path) as file:
            # Reading by row group avoids holding the compressed pages of the whole file in memory.
            columns = list(self.names.values())
            groups = range(file.num_row_groups)
            parts = [file.read_row_group(group, columns=columns) for group in groups]
            return _by_role(pa.concat_tables(parts) if parts else file.read(columns=columns), self.names)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches."""
        with reading(self.path), _undamaged(self.path), pa.parquet.ParquetFile(self.path) as file:
            for batch in file.iter_batches(columns=list(self.names.values())):
                yield _by_role(batch, self.names)

    def at(self, row: int) -> str:
        """Describe the place of a row for messages."""
        return f"row {row + 1} of {self.path.name}"


PlainTable = TextSource | ParquetSource | DatabaseTable


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


def open_table(
    source: str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    encoding: str | None = None,
    delimiter: str | None = None,
    keep: Sequence[str] = (),
    query: str | None = None,
    required: Sequence[str] = RATING_ROLES,
) -> PlainTable:
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
    if head.startswith(b"PAR1"):
        with reading(path), _undamaged(path), pa.parquet.ParquetFile(path) as file:
            there = file.schema_arrow.names
        return ParquetSource(
            path, match_columns(there, wanted, required=required, keep=keep, source=str(path))
        )
    text = TextTable(
        path, delimiter=delimiter or _delimiter(path, head), encoding=encoding, quoted=not is_inter(path)
    )
    advice = " (or add a header if it has none)"
    there = read_header(text, head)
    return TextSource(
        text, match_columns(there, wanted, required=required, keep=keep, source=str(path), advice=advice)
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

    With `events`, each row is an event, and events are converted to ratings (`event_ratings`). By default a
    repeated (user, item) pair is an error, except in .inter files, where the first row is kept. Rows without
    a user, an item or a rating are an error unless `missing` is "drop".
    """
    check_options(duplicates or "error", missing or "error")
    opened = open_table(source, required=required_columns(events), **opening)
    name = name or table_stem(source)
    if events is not None:
        return rate_events(
            opened.batches,
            events,
            scale=scale or (1, 5),
            name=name,
            missing=missing or "error",
            where=opened.at,
        )
    table = opened.read()
    if not table.num_rows:
        raise DataError(f"{redact(source)} has a header but no ratings; give a table with at least one row")
    user, item = (trim(as_text(table[role], role)) for role in ("user", "item"))
    rating = parse_numbers(table["rating"], scale)
    rating.refuse(opened.at)
    table = table.drop_columns(list(RATING_ROLES))
    absent = find_missing(user, item, rating.values) if missing == "drop" else {}
    time, notes = parse_times(table["time"], but=absent.values()) if "time" in opened.names else (None, ())
    return make_ratings(
        user,
        item,
        rating.values,
        time=time,
        titles=table["title"] if "title" in opened.names else None,
        columns={role: table[role] for role in opened.names if role not in (*RATING_ROLES, "time", "title")},
        scale=scale,
        name=name,
        duplicates=duplicates or ("first" if is_inter(source) else "error"),
        missing=missing or "error",
        notes=(*rating.notes, *notes),
        where=opened.at,
    )


def read_header(text: TextTable, head: bytes) -> list[str]:
    """Return the column names in the first line of a text table that starts with `head`."""
    wide = (text.encoding or "").lower().replace("-", "").startswith(("utf16", "utf32"))
    if b"\0" in head and not wide:
        raise DataError(
            f"{text.path} is not a text table; give a CSV, TSV or Parquet file (with or without gzip), or a DuckDB or SQLite file"
        )
    lines = head.decode(text.encoding or "utf-8", "replace").lstrip("\ufeff").splitlines()
    return next(text.records(line for line in lines if line), [])


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

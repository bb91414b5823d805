"""Plain tables: text, Parquet and databases with columns user, item, rating and, if they like, more."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from verfedgnn.core.errors import DataError
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
        """What each column is read as; ids stay as they are written."""
        kinds = {"rating": pa.float64(), "time": None}
        return {column: kinds.get(role, TEXT) for role, column in self.names.items()}

    def read(self) -> pa.Table:
        """All rows, one column a role; ratings as they are written if some are no numbers as Arrow's reader knows them."""
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
        """The rows some at a time; times as they are written, because the first ones do not tell what the others are."""
        for batch in self.text.batches({column: kind or TEXT for column, kind in self.types.items()}):
            yield self.by_role(batch)

    def by_role(self, rows: Any) -> Any:
        """Rows of the file with one column a role."""
        return _by_role(rows, self.names)

    def at(self, row: int) -> str:
        """The place of a row for people."""
        return self.text.at(row)


@dataclass(frozen=True)
class ParquetSource:
    """A Parquet file with its columns by role."""

    path: Path
    names: dict[str, str]

    def read(self) -> pa.Table:
        """All rows, one column a role."""
        with reading(self.path), _undamaged(self.path), pa.parquet.ParquetFile(self.path) as file:
            # By row group: a read of all at once holds the packed pages of all as well.
            columns = list(self.names.values())
            groups = range(file.num_row_groups)
            parts = [file.read_row_group(group, columns=columns) for group in groups]
            return _by_role(pa.concat_tables(parts) if parts else file.read(columns=columns), self.names)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows some at a time."""
        with reading(self.path), _undamaged(self.path), pa.parquet.ParquetFile(self.path) as file:
            for batch in file.iter_batches(columns=list(self.names.values())):
                yield _by_role(batch, self.names)

    def at(self, row: int) -> str:
        """The place of a row for people."""
        return f"row {row + 1} of {self.path.name}"


PlainTable = TextSource | ParquetSource | DatabaseTable


def table_stem(source: str | Path) -> str:
    """The name of a table without its folder, suffix and .gz; of a server, its database."""
    if is_address(source):
        return address_name(str(source))
    name = Path(source).name.removesuffix(".gz")
    suffix = next((s for s in TABLE_SUFFIXES if name.lower().endswith(s)), "")
    return name[: len(name) - len(suffix)] or name


def is_table(path: Path) -> bool:
    """Whether the file's name says that it is a table; that of a database is believed when it starts like one."""
    name = path.name.lower().removesuffix(".gz")
    if name.endswith(DATABASE_SUFFIXES):
        with reading(path), path.open("rb") as file:
            return is_database(file.read(16))
    return name.endswith(TABLE_SUFFIXES)


def is_inter(source: str | Path) -> bool:
    """Whether this is RecBole's kind of table, tab separated and with the type behind each name."""
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
    """A table whose columns are known and whose rows are not read yet; what it is, its first bytes say."""
    head = None if is_address(source) else read_first_bytes(Path(source))
    wanted = columns or {}
    if head is None or is_database(head):
        return open_database(source, head, query=query, columns=wanted, required=required, keep=keep)
    path = Path(source)
    if query is not None:
        raise DataError(
            f"--query is for databases, and {path} is none; with several sources, name the one it is for: --query NAME:SELECT"
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
    """Ratings from one table, which `opening` says how to open (see `open_table`).

    With `events` each row is an event, and ratings are made of them (`data/events.py`). Otherwise a (user, item) pair that
    occurs again is an error, except in .inter files, where the first one is kept. Rows without a user, an item or a rating are
    an error unless `missing` is "drop".
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
        raise DataError(f"{redact(source)} holds no ratings: it has a header but no rows")
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
    """The column names in the first line of a text table whose start is `head`."""
    wide = (text.encoding or "").lower().replace("-", "").startswith(("utf16", "utf32"))
    if b"\0" in head and not wide:
        raise DataError(
            f"{text.path} is not a text table: give a CSV, TSV or Parquet file (gzip or not), or a DuckDB or SQLite one"
        )
    lines = head.decode(text.encoding or "utf-8", "replace").lstrip("\ufeff").splitlines()
    return next(text.records(line for line in lines if line), [])


def _by_role(rows: Any, names: dict[str, str]) -> Any:
    """A table or batch with one column a role, in the order of `names`."""
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
            f"{path} is a Parquet file that is cut off or damaged: write or download it again"
        ) from error

"""Which rows of a database are ratings: those of a query, or of the one table that looks like them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from verfedgnn.core.errors import DataError
from verfedgnn.data.column_names import IF_EVENTS, match_columns
from verfedgnn.data.database_engines import Engine, connect, quote_identifier
from verfedgnn.data.source_address import address_name, redact


@dataclass(frozen=True)
class DatabaseTable:
    """A query with its columns by role; rows are read when asked for."""

    source: str | Path
    head: bytes | None
    """The start of the file; None: a server."""
    query: str
    names: dict[str, str]
    """The query's column for each role."""

    @property
    def label(self) -> str:
        """In front of people."""
        return address_name(str(self.source)) if self.head is None else Path(self.source).name

    def read(self) -> pa.Table:
        """All rows, one column a role."""
        with connect(self.source, self.head) as engine:
            query, schema = self._typed(engine)
            return pa.Table.from_batches(engine.batches(query, schema), schema)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows some at a time."""
        with connect(self.source, self.head) as engine:
            yield from engine.batches(*self._typed(engine))

    def at(self, row: int) -> str:
        """The place of a row for people."""
        return f"row {row + 1} of {self.label}"

    def _typed(self, engine: Engine) -> tuple[str, pa.Schema]:
        """The query for these columns alone, those Arrow has no plain type for (uuid, numeric) made plain, and its schema."""
        columns = {role: quote_identifier(name) for role, name in self.names.items()}
        found = engine.schema(self._select(columns))
        odd = [role for role in columns if not _plain(found.field(role).type)]
        if not odd:
            return self._select(columns), found
        cast = {
            role: f"cast({columns[role]} as {'float8' if role == 'rating' else 'varchar'})" for role in odd
        }
        query = self._select(columns | cast)
        return query, engine.schema(query)

    def _select(self, columns: Mapping[str, str]) -> str:
        chosen = ", ".join(f"{column} as {quote_identifier(role)}" for role, column in columns.items())
        return f"select {chosen} from ({self.query}\n) as asked"


def open_database(
    source: str | Path,
    head: bytes | None,
    *,
    query: str | None,
    columns: Mapping[str, str],
    required: Sequence[str],
    keep: Sequence[str],
) -> DatabaseTable:
    """The table of a query; without one, the only table (or view) with the required columns."""
    label = redact(source)
    with connect(source, head) as engine:
        if query is not None:
            asked = query.strip().rstrip(";").strip()
            if not asked:
                raise DataError('--query is empty: give a select, such as --query "select * from ratings"')
            there = engine.schema(f"select * from ({asked}\n) as asked").names
            names = match_columns(there, columns, required=required, keep=keep, source="the query")
            return DatabaseTable(source, head, asked, names)
        tables = engine.tables()
    if len(tables) == 1:
        ((table, there),) = tables.items()
        names = match_columns(there, columns, required=required, keep=keep, source=f"{label}, table {table}")
        return DatabaseTable(source, head, f"select * from {table}", names)
    suitable = {}
    for table, there in tables.items():
        try:
            suitable[table] = match_columns(there, columns, required=required, keep=keep, source=table)
        except DataError:
            continue
    if len(suitable) == 1:
        ((table, names),) = suitable.items()
        return DatabaseTable(source, head, f"select * from {table}", names)
    if suitable:
        raise DataError(
            f"{label} has {len(suitable)} tables with {', '.join(required)}: {', '.join(suitable)}; choose one with"
            f" --query 'select * from {next(iter(suitable))}'"
        )
    there_are = (
        "; ".join(f"{table} ({', '.join(names[:8])})" for table, names in list(tables.items())[:5]) or "none"
    )
    raise DataError(
        f"{label} has no table with {', '.join(required)}; tables: {there_are}; name the columns with --columns"
        f" {','.join(f'{role}=...' for role in required)}, or write a --query 'select ...'"
        + (f"; {IF_EVENTS}" if "rating" in required else "")
    )


def _plain(kind: pa.DataType) -> bool:
    """Whether the readers of columns know what to do with a type."""
    types = pa.types
    known = (
        types.is_string,
        types.is_large_string,
        types.is_integer,
        types.is_floating,
        types.is_timestamp,
        types.is_date,
    )
    return any(is_known(kind) for is_known in known)

"""Selection of ratings in a database: the rows of a query, or of the only table with suitable columns."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from verfedgnn.core.errors import DataError
from verfedgnn.core.option_names import option
from verfedgnn.data.column_names import if_events, match_columns
from verfedgnn.data.database_engines import Engine, connect, quote_identifier
from verfedgnn.data.source_address import address_name, redact


@dataclass(frozen=True)
class DatabaseTable:
    """A query with its columns by role. Rows are read on demand."""

    source: str | Path
    head: bytes | None
    """First bytes of the file; None for a server."""
    query: str
    names: dict[str, str]
    """Column of the query for each role."""

    @property
    def label(self) -> str:
        """Name of the database in messages."""
        return address_name(str(self.source)) if self.head is None else Path(self.source).name

    def read(self) -> pa.Table:
        """Read all rows, one column per role."""
        with connect(self.source, self.head) as engine:
            query, schema = self._typed(engine)
            return pa.Table.from_batches(engine.batches(query, schema), schema)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches."""
        with connect(self.source, self.head) as engine:
            yield from engine.batches(*self._typed(engine))

    def at(self, row: int) -> str:
        """Describe the place of a row for messages."""
        return f"row {row + 1} of {self.label}"

    def _typed(self, engine: Engine) -> tuple[str, pa.Schema]:
        """Return a query for these columns only, and its schema.

        Columns of types without a plain Arrow equivalent (uuid, numeric) are cast.
        """
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
    """Return the table of a query; without one, the only table or view with the required columns."""
    label = redact(source)
    with connect(source, head) as engine:
        if query is not None:
            asked = query.strip().rstrip(";").strip()
            if not asked:
                raise DataError(
                    '--query is empty; give a select statement, for example --query "select * from ratings"'
                )
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
            f" {option('query')} 'select * from {next(iter(suitable))}'"
        )
    there_are = (
        "; ".join(f"{table} ({', '.join(names[:8])})" for table, names in list(tables.items())[:5]) or "none"
    )
    raise DataError(
        f"{label} has no table with {', '.join(required)}; tables: {there_are}; name the columns with"
        f" {option('columns', dict.fromkeys(required, '...'))}, or write a {option('query')} 'select ...'"
        + (f"; {if_events()}" if "rating" in required else "")
    )


def _plain(kind: pa.DataType) -> bool:
    """Return whether the column readers support a type."""
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

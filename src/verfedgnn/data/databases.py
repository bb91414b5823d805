"""Read-only access to DuckDB files, SQLite files and PostgreSQL servers, as Arrow record batches.

DuckDB and PostgreSQL (by ADBC, which copies rows in binary form) return Arrow data directly. Rows of SQLite are read in batches
by Python's sqlite3 module. Ratings are the rows of a query, or of the only table with suitable columns.
"""

import re
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from verfedgnn.core.errors import DataError
from verfedgnn.core.option_names import option
from verfedgnn.data.column_names import Table, if_events
from verfedgnn.data.read_options import address_name, check_address, redact, remove_secrets

ROWS = 1 << 16
"""Number of rows in a batch."""
_SQLITE = b"SQLite format 3\0"
_DUCKDB = b"DUCK"
# A query may use only the tables of the file: no other files, and no Python variables with the name of a table.
_OWN_FILE_ONLY = {
    "enable_external_access": "false",
    "python_enable_replacements": "false",
    "lock_configuration": "true",
}
_COLUMNS = """select table_schema::text, table_name::text, column_name::text from information_schema.columns
where table_schema not in ('information_schema', 'pg_catalog') order by table_schema, table_name, ordinal_position"""
_NO_TABLE = "the query returns no table: give a select"


def is_database(head: bytes) -> bool:
    """Return whether a file that starts with `head` is a database."""
    return head.startswith(_SQLITE) or head[8:12] == _DUCKDB


class DuckDB:
    """A DuckDB file."""

    def __init__(self, database: Any) -> None:
        self.database = database

    def tables(self) -> dict[str, list[str]]:
        """Return the columns of each table and view, by its name in queries."""
        return _by_table(self.database.sql(_COLUMNS).fetchall(), "main")

    def names(self, query: str) -> list[str]:
        """Return the names of a query's columns."""
        result = self.database.sql(f"select * from ({query}\n) limit 0")
        if result is None:
            raise DataError(_NO_TABLE)
        return list(result.columns)

    def batches(self, query: str, columns: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
        """Yield these columns of a query, by role."""
        yield from self.database.sql(_select(query, columns)).to_arrow_reader(ROWS)


class Sqlite:
    """An SQLite file. A column may hold values of several types, so all are read as text."""

    def __init__(self, file: sqlite3.Connection) -> None:
        self.file = file

    def tables(self) -> dict[str, list[str]]:
        """Return the columns of each table and view, by its name in queries."""
        names = self.file.execute(
            "select name from sqlite_master where type in ('table', 'view') and name not like 'sqlite_%' order by name"
        )
        tables = [_quoted(name) for (name,) in names.fetchall()]
        return {name: self.names(f"select * from {name}") for name in tables}

    def names(self, query: str) -> list[str]:
        """Return the names of a query's columns."""
        with closing(self.file.execute(f"select * from ({query}\n) limit 0")) as cursor:
            if cursor.description is None:
                raise DataError(_NO_TABLE)
            return [column[0] for column in cursor.description]

    def batches(self, query: str, columns: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
        """Yield these columns of a query, by role."""
        rows = self.file.execute(_select(query, columns))
        while part := rows.fetchmany(ROWS):
            texts = [pa.array(map(_sqlite_text, values), pa.string()) for values in zip(*part, strict=True)]
            yield pa.record_batch(texts, names=list(columns))


class Postgres:
    """A PostgreSQL server. Every transaction is read-only."""

    def __init__(self, cursor: Any) -> None:
        self.cursor = cursor

    def tables(self) -> dict[str, list[str]]:
        """Return the columns of each table that the user may read, by its name in queries."""
        self.cursor.execute(_COLUMNS)
        return _by_table(self.cursor.fetchall(), "public")

    def names(self, query: str) -> list[str]:
        """Return the names of a query's columns, from the server's description of a prepared statement."""
        return list(self.cursor.adbc_execute_schema(f"select * from ({query}\n) as asked").names)

    def batches(self, query: str, columns: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
        """Yield these columns of a query, by role, as the batches of a binary COPY arrive."""
        schema = self.cursor.adbc_execute_schema(_select(query, columns))
        # Types without a plain Arrow equivalent, such as uuid and numeric.
        odd = {field.name for field in schema if not _is_plain(field.type)}
        self.cursor.execute(_select(query, columns, odd))
        yield from self.cursor.fetch_record_batch()


Engine = DuckDB | Sqlite | Postgres


@contextmanager
def connect(source: str | Path, head: bytes | None) -> Iterator[Engine]:
    """Open the database at an address (`head` is None), or in a file that starts with `head`, for reading."""
    if head is None:
        secrets = check_address(str(source))
        _load_driver("adbc_driver_postgresql", "PostgreSQL")
        from adbc_driver_postgresql import dbapi

        with (
            _failing(source, secrets, dbapi.Error),
            dbapi.connect(str(source)) as server,
            server.cursor() as cursor,
        ):
            cursor.execute("set session characteristics as transaction read only")
            server.commit()
            yield Postgres(cursor)
    elif head.startswith(_SQLITE):
        with _failing(source, [], sqlite3.Error):
            file = sqlite3.connect(f"file:{quote(str(source))}?mode=ro", uri=True)
            with closing(file):
                yield Sqlite(file)
    else:
        duckdb = _load_driver("duckdb", "DuckDB")
        with (
            _failing(source, [], duckdb.Error),
            duckdb.connect(str(source), read_only=True, config=_OWN_FILE_ONLY) as database,
        ):
            yield DuckDB(database)


def open_database(
    source: str | Path,
    head: bytes | None,
    query: str | None,
    match: Callable[..., dict[str, str]],
    required: Sequence[str],
) -> Table:
    """Return the table of a query; without one, the only table or view with the required columns.

    `match` is `match_columns` with the user's wishes.
    """

    def table_of(query: str, names: dict[str, str]) -> Table:
        def read(columns: dict[str, str]) -> Iterator[pa.RecordBatch]:
            with connect(source, head) as engine:
                yield from engine.batches(query, columns)

        place = address_name(str(source)) if head is None else Path(source).name
        return Table(names, read, lambda row: f"row {row + 1} of {place}")

    label = redact(source)
    with connect(source, head) as engine:
        if query is not None:
            asked = query.strip().rstrip(";").strip()
            if not asked:
                raise DataError(
                    '--query is empty; give a select statement, for example --query "select * from ratings"'
                )
            return table_of(asked, match(engine.names(asked), source="the query"))
        tables = engine.tables()
    suitable = {}
    for table, there in tables.items():
        try:
            suitable[table] = match(there, source=f"{label}, table {table}")
        except DataError:
            if len(tables) == 1:
                raise
    if len(suitable) == 1:
        ((table, names),) = suitable.items()
        return table_of(f"select * from {table}", names)
    if suitable:
        raise DataError(
            f"{label} has {len(suitable)} tables with {', '.join(required)}: {', '.join(suitable)}; choose one with"
            f" {option('query')} 'select * from {next(iter(suitable))}'"
        )
    shown = list(tables.items())[:5]
    there_are = "; ".join(f"{table} ({', '.join(names[:8])})" for table, names in shown) or "none"
    raise DataError(
        f"{label} has no table with {', '.join(required)}; tables: {there_are}; name the columns with"
        f" {option('columns', dict.fromkeys(required, '...'))}, or write a {option('query')} 'select ...'"
        + (f"; {if_events()}" if "rating" in required else "")
    )


def _is_plain(kind: pa.DataType) -> bool:
    """Return whether the parsers support a type."""
    types = pa.types
    text = types.is_string(kind) or types.is_large_string(kind)
    numbers = types.is_integer(kind) or types.is_floating(kind)
    return bool(text or numbers or types.is_timestamp(kind) or types.is_date(kind))


def _quoted(name: str) -> str:
    """Quote a name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def _by_table(rows: list[tuple[str, str, str]], default: str) -> dict[str, list[str]]:
    tables: dict[str, list[str]] = {}
    for schema, table, column in rows:
        name = _quoted(table) if schema == default else f"{_quoted(schema)}.{_quoted(table)}"
        tables.setdefault(name, []).append(column)
    return tables


def _select(query: str, columns: Mapping[str, str], odd: Collection[str] = ()) -> str:
    """Return a query for some columns by role; `odd` ones are cast."""
    chosen = []
    for role, name in columns.items():
        cast = f"cast({_quoted(name)} as {'float8' if role == 'rating' else 'varchar'})"
        chosen.append(f"{cast if role in odd else _quoted(name)} as {_quoted(role)}")
    return f"select {', '.join(chosen)} from ({query}\n) as asked"


def _sqlite_text(value: Any) -> str | None:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return None if value is None else str(value)


def _load_driver(module: str, database: str) -> Any:
    """Return an optional module; raise `DataError` with the package to install if it is absent."""
    try:
        return __import__(module)
    except ImportError:
        raise DataError(f"reading from {database} needs a driver; pip install 'verfedgnn[sql]'") from None


@contextmanager
def _failing(source: str | Path, secrets: list[str], kind: type[Exception]) -> Iterator[None]:
    """Turn a driver's exception into a one-line `DataError` without the password."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{redact(source)}: {error}") from None
    except (kind, pa.ArrowException) as error:
        # Without the chain, because a driver may quote the password.
        raise DataError(f"{redact(source)}: {_reason(remove_secrets(secrets, str(error)))}") from None


def _reason(message: str) -> str:
    """Return a driver's message in one line, with a remedy."""
    reported = re.search(r"(?:ERROR|FATAL|Error):\s+(.*)", message)
    plain = message.removeprefix("IO: [libpq] ").removeprefix("Failed to connect: ").strip().splitlines()[0]
    text = (reported[1] if reported else plain)[:200].rstrip(" .")
    if "Failed to connect" in message:
        return f"no connection ({text}); check host, port, database and user. The password can come from PGPASSWORD or ~/.pgpass"
    if re.search(r"lock", text) and "IO Error" in message:
        return "another process has this database open for writing; close it there, or read a copy"
    if "different configuration" in text:
        return "this process already has the database open with other settings; close that connection, or read a copy"
    return f"the database reports: {text}; correct {option('query')} or the database"

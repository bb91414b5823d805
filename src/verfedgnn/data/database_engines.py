"""Read-only access to DuckDB files, SQLite files and PostgreSQL servers, as Arrow record batches.

DuckDB and PostgreSQL (by ADBC, which copies rows in binary form) return Arrow data directly. Rows of SQLite
are read in batches by Python's sqlite3 module.
"""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import pyarrow as pa

from verfedgnn.core.errors import DataError
from verfedgnn.core.option_names import option
from verfedgnn.data.source_address import check_address, redact, remove_secrets

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


class Engine(Protocol):
    """The interface of a database. Every failure is a `DataError`."""

    def tables(self) -> dict[str, list[str]]:
        """Return the columns of each table and view, by its name in queries."""

    def schema(self, query: str) -> pa.Schema:
        """Return names and types of a query's columns."""

    def batches(self, query: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a query whose columns have this schema."""


def is_database(head: bytes) -> bool:
    """Return whether a file that starts with `head` is a database."""
    return head.startswith(_SQLITE) or head[8:12] == _DUCKDB


@contextmanager
def connect(source: str | Path, head: bytes | None) -> Iterator[Engine]:
    """Open the database at an address (`head` is None), or in a file that starts with `head`, for reading."""
    if head is None:
        with _postgres(str(source)) as server:
            yield server
    elif head.startswith(_SQLITE):
        with _failing(source, [], sqlite3.Error):
            file = sqlite3.connect(f"file:{quote(str(source))}?mode=ro", uri=True)
            with closing(file):
                yield Sqlite(file)
    else:
        duckdb = load_driver("duckdb", "reading from DuckDB")
        with (
            _failing(source, [], duckdb.Error),
            duckdb.connect(str(source), read_only=True, config=_OWN_FILE_ONLY) as database,
        ):
            yield DuckDB(database)


def quote_identifier(name: str) -> str:
    """Quote a name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


class DuckDB:
    """A DuckDB file."""

    def __init__(self, database: Any) -> None:
        self.database = database

    def tables(self) -> dict[str, list[str]]:
        """Return all tables except system tables."""
        rows = self.database.sql(_COLUMNS.format(own="'information_schema', 'pg_catalog'")).fetchall()
        return _by_table(rows, "main")

    def schema(self, query: str) -> pa.Schema:
        """Return the schema as DuckDB converts it to Arrow."""
        return self._result(f"select * from ({query}\n) limit 0").to_arrow_reader(ROWS).schema

    def batches(self, query: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield record batches from DuckDB."""
        yield from self._result(query).to_arrow_reader(ROWS)

    def _result(self, query: str) -> Any:
        result = self.database.sql(query)
        if result is None:
            raise DataError("the query returns no table: give a select")
        return result


class Sqlite:
    """An SQLite file. The type of a column is that of the values in it."""

    def __init__(self, file: sqlite3.Connection) -> None:
        self.file = file

    def tables(self) -> dict[str, list[str]]:
        """Return all tables except system tables."""
        names = self.file.execute(
            "select name from sqlite_master where type in ('table', 'view') and name not like 'sqlite_%' order by name"
        )
        found = [quote_identifier(name) for (name,) in names.fetchall()]
        return {
            name: [column[0] for column in self._description(f"select * from {name} limit 0")]
            for name in found
        }

    def schema(self, query: str) -> pa.Schema:
        """Return the narrowest type that holds all values of each column; mixed columns are text."""
        names = [column[0] for column in self._description(f"select * from ({query}\n) limit 0")]
        asked = ", ".join(f"group_concat(distinct typeof({quote_identifier(name)}))" for name in names)
        kinds = self.file.execute(f"select {asked} from ({query}\n)").fetchone()
        return pa.schema([(name, _sqlite_type(kind)) for name, kind in zip(names, kinds, strict=True)])

    def batches(self, query: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows as record batches."""
        rows = self.file.execute(query)
        while part := rows.fetchmany(ROWS):
            columns = zip(schema, zip(*part, strict=True), strict=True)
            yield pa.record_batch(
                [_sqlite_array(field.type, values) for field, values in columns], schema=schema
            )

    def _description(self, query: str) -> Any:
        with closing(self.file.execute(query)) as cursor:
            if cursor.description is None:
                raise DataError("the query returns no table: give a select")
            return cursor.description


class Postgres:
    """A PostgreSQL server. Every transaction is read-only."""

    def __init__(self, cursor: Any) -> None:
        self.cursor = cursor

    def tables(self) -> dict[str, list[str]]:
        """Return all tables that the user may read, except system tables."""
        self.cursor.execute(_COLUMNS.format(own="'information_schema', 'pg_catalog'"))
        return _by_table(self.cursor.fetchall(), "public")

    def schema(self, query: str) -> pa.Schema:
        """Return the schema from the server's description of a prepared statement."""
        return self.cursor.adbc_execute_schema(query)

    def batches(self, query: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a binary COPY as they arrive."""
        self.cursor.execute(query)
        yield from self.cursor.fetch_record_batch()


@contextmanager
def _postgres(address: str) -> Iterator[Postgres]:
    secrets = check_address(address)
    load_driver("adbc_driver_postgresql", "reading from PostgreSQL")
    from adbc_driver_postgresql import dbapi

    with _failing(address, secrets, dbapi.Error), dbapi.connect(address) as server, server.cursor() as cursor:
        cursor.execute("set session characteristics as transaction read only")
        server.commit()
        yield Postgres(cursor)


_COLUMNS = """select table_schema::text, table_name::text, column_name::text from information_schema.columns
where table_schema not in ({own}) order by table_schema, table_name, ordinal_position"""


def _by_table(rows: list[tuple[str, str, str]], default: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for schema, table, column in rows:
        name = (
            quote_identifier(table)
            if schema == default
            else f"{quote_identifier(schema)}.{quote_identifier(table)}"
        )
        found.setdefault(name, []).append(column)
    return found


def _sqlite_type(kinds: str | None) -> pa.DataType:
    there = set((kinds or "null").split(",")) - {"null"}
    if there <= {"integer"}:
        return pa.int64()
    return pa.float64() if there <= {"integer", "real"} else pa.string()


def _sqlite_array(kind: pa.DataType, values: tuple[Any, ...]) -> pa.Array:
    if pa.types.is_string(kind):
        values = tuple(
            v.decode("utf-8", "replace") if isinstance(v, bytes) else v if v is None else str(v)
            for v in values
        )
    return pa.array(values, kind)


def load_driver(module: str, purpose: str) -> Any:
    """Return an optional module; raise `DataError` with the package to install if it is absent."""
    try:
        return __import__(module)
    except ImportError:
        raise DataError(f"{purpose} needs a driver; pip install 'verfedgnn[sql]'") from None


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
    text = (
        reported[1]
        if reported
        else message.removeprefix("IO: [libpq] ").removeprefix("Failed to connect: ").strip().splitlines()[0]
    )[:200].rstrip(" .")
    if "Failed to connect" in message:
        return f"no connection ({text}); check host, port, database and user. The password can come from PGPASSWORD or ~/.pgpass"
    if re.search(r"lock", text) and "IO Error" in message:
        return "another process has this database open for writing; close it there, or read a copy"
    if "different configuration" in text:
        return "this process already has the database open with other settings; close that connection, or read a copy"
    return f"the database reports: {text}; correct {option('query')} or the database"

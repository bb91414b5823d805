"""The databases ratings are read from: DuckDB and SQLite files and PostgreSQL servers, read-only, as Arrow record batches.

DuckDB and PostgreSQL (by ADBC, which copies rows in their binary form) hand out Arrow themselves; SQLite's rows come through
Python's own module, some at a time.
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
from verfedgnn.data.source_address import check_address, redact, remove_secrets

ROWS = 1 << 16
"""Rows of a batch."""
_SQLITE = b"SQLite format 3\0"
_DUCKDB = b"DUCK"
# A query means the file's tables: no other file, to read or to write, and no variable of this program that has the same name.
_OWN_FILE_ONLY = {
    "enable_external_access": "false",
    "python_enable_replacements": "false",
    "lock_configuration": "true",
}


class Engine(Protocol):
    """What is asked of a database; every failure is a `DataError`."""

    def tables(self) -> dict[str, list[str]]:
        """The columns of each table and view, by the name a query calls it."""

    def schema(self, query: str) -> pa.Schema:
        """Names and types of a query's columns."""

    def batches(self, query: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows of a query with these columns."""


def is_database(head: bytes) -> bool:
    """Whether a file that starts like this is a database."""
    return head.startswith(_SQLITE) or head[8:12] == _DUCKDB


@contextmanager
def connect(source: str | Path, head: bytes | None) -> Iterator[Engine]:
    """The database at an address, or in a file that starts with `head`, for reading; closed at the end."""
    if head is None:
        with _postgres(str(source)) as server:
            yield server
    elif head.startswith(_SQLITE):
        with _failing(source, [], sqlite3.Error):
            file = sqlite3.connect(f"file:{quote(str(source))}?mode=ro", uri=True)
            with closing(file):
                yield Sqlite(file)
    else:
        duckdb = _driver("duckdb", "DuckDB")
        with (
            _failing(source, [], duckdb.Error),
            duckdb.connect(str(source), read_only=True, config=_OWN_FILE_ONLY) as database,
        ):
            yield DuckDB(database)


def quote_identifier(name: str) -> str:
    """A name as an identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'


class DuckDB:
    """A DuckDB file."""

    def __init__(self, database: Any) -> None:
        self.database = database

    def tables(self) -> dict[str, list[str]]:
        """All but DuckDB's own."""
        rows = self.database.sql(_COLUMNS.format(own="'information_schema', 'pg_catalog'")).fetchall()
        return _by_table(rows, "main")

    def schema(self, query: str) -> pa.Schema:
        """As Arrow will hold them."""
        return self._result(f"select * from ({query}\n) limit 0").to_arrow_reader(ROWS).schema

    def batches(self, query: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Straight from DuckDB."""
        yield from self._result(query).to_arrow_reader(ROWS)

    def _result(self, query: str) -> Any:
        result = self.database.sql(query)
        if result is None:
            raise DataError("the query returns no table: give a select")
        return result


class Sqlite:
    """An SQLite file; a column's type is that of the values found in it."""

    def __init__(self, file: sqlite3.Connection) -> None:
        self.file = file

    def tables(self) -> dict[str, list[str]]:
        """All but SQLite's own."""
        names = self.file.execute(
            "select name from sqlite_master where type in ('table', 'view') and name not like 'sqlite_%' order by name"
        )
        found = [quote_identifier(name) for (name,) in names.fetchall()]
        return {
            name: [column[0] for column in self._description(f"select * from {name} limit 0")]
            for name in found
        }

    def schema(self, query: str) -> pa.Schema:
        """The narrowest type that holds all values; a mixture is text."""
        names = [column[0] for column in self._description(f"select * from ({query}\n) limit 0")]
        asked = ", ".join(f"group_concat(distinct typeof({quote_identifier(name)}))" for name in names)
        kinds = self.file.execute(f"select {asked} from ({query}\n)").fetchone()
        return pa.schema([(name, _sqlite_type(kind)) for name, kind in zip(names, kinds, strict=True)])

    def batches(self, query: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Rows as columns, a batch at a time."""
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
    """A PostgreSQL server; nothing is written: every transaction is read-only."""

    def __init__(self, cursor: Any) -> None:
        self.cursor = cursor

    def tables(self) -> dict[str, list[str]]:
        """All that this user may read but the server's own."""
        self.cursor.execute(_COLUMNS.format(own="'information_schema', 'pg_catalog'"))
        return _by_table(self.cursor.fetchall(), "public")

    def schema(self, query: str) -> pa.Schema:
        """As the server describes a prepared statement."""
        return self.cursor.adbc_execute_schema(query)

    def batches(self, query: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """A binary COPY, as it arrives."""
        self.cursor.execute(query)
        yield from self.cursor.fetch_record_batch()


@contextmanager
def _postgres(address: str) -> Iterator[Postgres]:
    secrets = check_address(address)
    _driver("adbc_driver_postgresql", "PostgreSQL")
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


def _driver(module: str, what: str) -> Any:
    try:
        return __import__(module)
    except ImportError:
        raise DataError(f"to read from {what}, install the drivers: pip install 'verfedgnn[sql]'") from None


@contextmanager
def _failing(source: str | Path, secrets: list[str], kind: type[Exception]) -> Iterator[None]:
    """A driver's complaint as one line, without the password."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{redact(source)}: {error}") from None
    except (kind, pa.ArrowException) as error:
        # Without the chain: a driver may quote what it was given.
        raise DataError(f"{redact(source)}: {_reason(remove_secrets(secrets, str(error)))}") from None


def _reason(message: str) -> str:
    """What a driver says, in one line, and what to do about it."""
    told = re.search(r"(?:ERROR|FATAL|Error):\s+(.*)", message)
    text = (
        told[1]
        if told
        else message.removeprefix("IO: [libpq] ").removeprefix("Failed to connect: ").strip().splitlines()[0]
    )[:200].rstrip(" .")
    if "Failed to connect" in message:
        return f"no connection ({text}): check host, port, database and user; the password may come from PGPASSWORD or ~/.pgpass"
    if re.search(r"lock", text) and "IO Error" in message:
        return "another process has this database open for writing: close it there, or read a copy"
    if "different configuration" in text:
        return "this program has the database open already, with other settings: close that connection, or read a copy"
    return f"the database answers: {text}; correct --query, or the database"

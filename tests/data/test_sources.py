"""Ratings where they live: files, DuckDB, SQLite and PostgreSQL give the same table, read-only, and no password away."""

from __future__ import annotations

import csv
import sqlite3
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from verfedgnn.cli.service_commands import read_own_ratings
from verfedgnn.config import Config
from verfedgnn.core.errors import DataError
from verfedgnn.data import Ratings, read_parties, read_ratings
from verfedgnn.data.databases import ROWS
from verfedgnn.data.read_options import ReadOptions, redact
from verfedgnn.data.table_sources import open_table

duckdb = pytest.importorskip("duckdb", reason="DuckDB is not installed (extra sql)")
postgres = pytest.importorskip("postgres", reason="the driver of PostgreSQL is not installed (extra sql)")

Command = Callable[..., tuple[int, str, str]]
ROWS_OF = [
    (user, f"item {item}", round(0.5 + (user * 7 + item * 3) % 46 / 10, 1), 1_700_000_000 + user * 60 + item)
    for user in range(1, 41)
    for item in range(12)
]
HEADER = ("user", "item", "rating", "time")


@pytest.fixture(scope="session")
def server() -> Iterator[Any]:
    """A real server, or a skip that says why there is none."""
    if postgres.missing():
        pytest.skip(postgres.missing())
    with postgres.running_server() as running:
        running.run(
            'create table ratings ("user" bigint, item varchar(20), rating numeric(3, 1), time bigint)'
        )
        values = ", ".join(str(row) for row in ROWS_OF)
        running.run(f"insert into ratings values {values}")
        yield running


@dataclass(frozen=True)
class Files:
    csv: Path
    parquet: Path
    duckdb: Path
    sqlite: Path


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """The same rows in each kind of file; the databases are called .db and told by their content."""
    folder = tmp_path_factory.mktemp("sources")
    made = Files(folder / "ratings.csv", folder / "ratings.parquet", folder / "duck.db", folder / "lite.db")
    with made.csv.open("w", newline="") as file:
        csv.writer(file).writerows([HEADER, *ROWS_OF])
    pq.write_table(
        pa.table(dict(zip(HEADER, map(list, zip(*ROWS_OF, strict=True)), strict=True))), made.parquet
    )
    write_duckdb(
        made.duckdb, "create table ratings (user bigint, item varchar, rating decimal(3, 1), time bigint)"
    )
    with duckdb.connect(str(made.duckdb)) as database:
        database.executemany("insert into ratings values (?, ?, ?, ?)", ROWS_OF)
    write_sqlite(
        made.sqlite, "create table ratings (user integer, item text, rating real, time integer)", ROWS_OF
    )
    return made


def write_duckdb(path: Path, *statements: str) -> Path:
    with duckdb.connect(str(path)) as database:
        for statement in statements:
            database.execute(statement)
    return path


def write_sqlite(path: Path, create: str, rows: list[Any], table: str = "ratings") -> Path:
    file = sqlite3.connect(path)
    file.execute(create)
    file.executemany(f"insert into {table} values ({', '.join('?' * len(rows[0]))})", rows)
    file.commit()
    file.close()
    return path


def same(one: Ratings, other: Ratings) -> None:
    """To the bit."""
    for name in ("user", "item", "rating", "time", "user_ids", "item_ids"):
        a, b = getattr(one, name), getattr(other, name)
        assert a.dtype == b.dtype, name
        assert np.array_equal(a, b), name
    assert one.scale == other.scale


def fails(call: Callable[[], object], *words: str) -> str:
    with pytest.raises(DataError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message
    return message


@pytest.mark.parametrize("kind", ["parquet", "duckdb", "sqlite", "postgresql"])
@pytest.mark.parametrize("query", [None, 'select rating, item, time, "user" from ratings; '])
def test_the_same_bits_from_everywhere(
    files: Files, request: pytest.FixtureRequest, kind: str, query: str | None
) -> None:
    source = request.getfixturevalue("server").owner if kind == "postgresql" else getattr(files, kind)
    options = {} if kind == "parquet" else {"query": query}
    same(read_ratings(files.csv), read_ratings(source, **options))


@pytest.mark.parametrize("kind", ["duckdb", "sqlite", "postgresql"])
def test_a_query_chooses_columns_rows_and_order(
    files: Files, request: pytest.FixtureRequest, kind: str
) -> None:
    source = request.getfixturevalue("server").owner if kind == "postgresql" else getattr(files, kind)
    query = 'select "user" as who, item, rating from ratings where rating > 3 order by item desc, "user" desc -- newest first'
    found = read_ratings(source, query=query, columns={"user": "who"})
    wanted = sorted(((row[1], row[0]) for row in ROWS_OF if row[2] > 3), reverse=True)
    assert (
        list(
            zip(
                found.item_ids[found.item].tolist(),
                found.user_ids[found.user].astype(int).tolist(),
                strict=True,
            )
        )
        == wanted
    )
    assert found.time is None


def test_types_a_database_has_and_arrow_has_not(server: Any, tmp_path: Path) -> None:
    ids = [str(uuid.UUID(int=k * 7919)) for k in range(1, 4)]
    times = ["2024-05-01 10:00:00", "2024-05-01 10:00:01", "2024-05-02 00:00:00"]
    text = tmp_path / "t.csv"
    text.write_text(
        "user,item,rating,time\n"
        + "".join(f"{u},{k},{k}.25,{t}\n" for k, (u, t) in enumerate(zip(ids, times, strict=True)))
    )
    rows = ", ".join(f"('{u}', {k}, {k}.25, '{t}')" for k, (u, t) in enumerate(zip(ids, times, strict=True)))
    server.run("create table odd (who uuid, item numeric, score numeric, time timestamptz)")
    server.run(f"insert into odd values {rows}".replace("')", "+00')"))
    same(read_ratings(text), read_ratings(server.owner, query="select * from odd", columns={"user": "who"}))
    server.run("drop table odd")
    create = "create table odd (who uuid, item hugeint, score decimal(5, 2), time timestamp)"
    file = write_duckdb(tmp_path / "odd.duckdb", create, f"insert into odd values {rows}")
    same(read_ratings(text), read_ratings(file, columns={"user": "who"}))


def test_sqlite_columns_of_mixed_values(tmp_path: Path) -> None:
    rows = [(1, "a", 3, "2024-05-01"), ("two", "b", 2.5, "2024-05-02"), (3, b"c", "4", "2024-05-03")]
    found = read_ratings(
        write_sqlite(tmp_path / "m.sqlite", "create table ratings (user, item, rating, time)", rows)
    )
    assert found.user_ids.tolist() == ["1", "3", "two"]
    assert found.rating.tolist() == [3.0, 2.5, 4.0]
    assert found.time is not None
    assert np.diff(found.time).tolist() == [86_400, 86_400]
    bad = write_sqlite(
        tmp_path / "b.sqlite", "create table ratings (user, item, rating)", [(1, 2, 3), (1, 3, "great")]
    )
    fails(lambda: read_ratings(bad), "'great' in row 2", "is not a number")


def test_the_one_table_that_looks_like_ratings(files: Files, server: Any, tmp_path: Path) -> None:
    wide = "create table ratings (user int, item int, rating int)"
    path = write_duckdb(
        tmp_path / "a.duckdb",
        wide,
        "insert into ratings values (1, 2, 3)",
        "create table people (user int, age int)",
    )
    assert len(read_ratings(path)) == 1
    write_duckdb(path, "create view liked as select * from ratings where rating > 3")
    fails(
        lambda: read_ratings(path),
        "2 tables with user, item, rating",
        '"liked", "ratings"',
        "query 'select * from \"liked\"'",
    )
    server.run("create table other (uid int, isbn int, stars int)")
    message = fails(lambda: read_ratings(server.owner), '"other", "ratings"', "query")
    assert "pg_catalog" not in message
    server.run("drop table other")
    none = write_sqlite(tmp_path / "n.sqlite", "create table people (user, age)", [(1, 2)], "people")
    fails(
        lambda: read_ratings(none), 'table "people"', "no column for item, rating", "user, age", "columns={"
    )
    write_sqlite(none, "create table more (a)", [(1,)], "more")
    fails(
        lambda: read_ratings(none),
        "no table with user, item, rating",
        '"more" (a); "people" (user, age)',
        "query",
        "events=",
    )


@pytest.mark.parametrize("kind", ["duckdb", "sqlite", "postgresql"])
@pytest.mark.parametrize(
    "query",
    [
        "delete from ratings",
        "select * from nowhere",
        "selec",
        " ; ",
        "select 1; drop table ratings",
        "select 1 as one",
    ],
)
def test_a_bad_query_is_one_line_and_changes_nothing(
    files: Files, request: pytest.FixtureRequest, kind: str, query: str
) -> None:
    source = request.getfixturevalue("server").owner if kind == "postgresql" else getattr(files, kind)
    fails(lambda: read_ratings(source, query=query), "query")
    assert len(read_ratings(source)) == len(ROWS_OF)


@pytest.mark.parametrize(
    "statement",
    [
        "copy (select 1 as a) to '{folder}/written.csv'",
        "attach '{folder}/written.csv' as other",
        "set enable_external_access = true",
        "export database '{folder}/written.csv'",
    ],
)
def test_a_duckdb_query_stays_in_its_file(files: Files, tmp_path: Path, statement: str) -> None:
    smuggled = statement.format(folder=tmp_path)
    query = (
        f"select * from ratings) x) limit 0; {smuggled}; select * from (select * from (select * from ratings"
    )
    fails(lambda: read_ratings(files.duckdb, query=query), "query")
    assert not list(tmp_path.iterdir())
    other = f"select * from read_csv('{files.csv}')"
    fails(lambda: read_ratings(files.duckdb, query=other), "disabled by configuration")


def test_a_duckdb_file_that_this_program_has_open(files: Files) -> None:
    with duckdb.connect(str(files.duckdb), read_only=True) as mine:
        fails(lambda: read_ratings(files.duckdb), "close that connection")
        mine.execute("set threads = 1")
    assert len(read_ratings(files.duckdb)) == len(ROWS_OF)


def test_a_server_is_only_read(server: Any) -> None:
    server.run("create sequence counter")
    query = "select \"user\", item, nextval('counter') as rating from ratings"
    fails(lambda: read_ratings(server.owner, query=query), "read-only transaction")
    assert server.run("select last_value, is_called from counter") == [(1, False)]
    server.run("drop sequence counter")


def test_a_party_of_a_federation_reads_like_that(files: Files) -> None:
    table = read_own_ratings(
        str(files.sqlite),
        ReadOptions(query=("select user, item from ratings",), events=("1",), scale=("0,10",)),
        Config.preset("paper"),
    )
    assert (len(table), table.scale) == (len(ROWS_OF), (0, 10))


def test_a_query_is_for_databases(files: Files) -> None:
    fails(
        lambda: read_ratings(files.csv, query="select 1"),
        "query is for databases",
        "give it for the database only",
    )


def test_rows_come_in_batches(tmp_path: Path, server: Any) -> None:
    count = 2 * ROWS + 10
    lite = write_sqlite(
        tmp_path / "x.sqlite", "create table ratings (user, item, rating)", [(k, k, 3) for k in range(count)]
    )
    duck = write_duckdb(
        tmp_path / "x.duckdb",
        f"create table ratings as select range as user, range as item, 3 as rating from range({count})",
    )
    query = f'select k as "user", k as item, 3 as rating from generate_series(1, {count}) as k'
    for source, asked in ((lite, None), (duck, None), (server.owner, query)):
        sizes = [batch.num_rows for batch in open_table(source, query=asked).batches()]
        assert sum(sizes) == count
        assert len(sizes) > 1 or asked  # ADBC sizes batches by bytes
        assert max(sizes) <= count


@pytest.mark.parametrize(
    ("module", "name"),
    [("duckdb", "DuckDB"), ("adbc_driver_postgresql", "PostgreSQL")],
    ids=["duckdb", "postgresql"],
)
def test_a_missing_driver_names_the_extra(
    files: Files, monkeypatch: pytest.MonkeyPatch, module: str, name: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    source = files.duckdb if module == "duckdb" else "postgresql://owner@localhost/db"
    fails(lambda: read_ratings(source), name, "pip install 'verfedgnn[sql]'")


def test_databases_that_cannot_be_opened(tmp_path: Path) -> None:
    for name, head in (
        ("a.duckdb", b"\0" * 8 + b"DUCK" + b"\0" * 100),
        ("a.sqlite", b"SQLite format 3\0" + b"\xff" * 100),
    ):
        (tmp_path / name).write_bytes(head)
        fails(lambda name=name: read_ratings(tmp_path / name), name)


# -- passwords -------------------------------------------------------------------------------------------------------------

RIGHT = quote(postgres.PASSWORD, safe="")


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://reader:geheim@/nowhere?host={folder}",
        "postgresql://reader:geheim@/postgres?host={folder}",
        "postgres://reader@/postgres?host={folder}&password=geheim",
        "postgresql://reader:ge/heim@h/db",
        "postgresql://reader:ge@heim@h/db",
        "postgresql://reader:geheim%zz@h/db",
        "postgresql://reader:geheim@127.0.0.1:1/db",
        "postgresql://reader:geheim@h:port/db",
        "postgresql://reader:geheim?@h/db",
        "postgresql://127.0.0.1:1/db?password=geheim@heim",
        "postgresql://reader@127.0.0.1:1/db?password=ge@heim&sslmode=disable",
        "postgresql://:geheim@127.0.0.1:1",
        "postgres:/reader:geheim@h/db",
        "mysql://reader:geheim@h/db",
    ],
)
def test_an_error_never_shows_the_password(server: Any, command: Command, address: str) -> None:
    source = address.format(folder=server.folder)
    for words in (
        ["train", "--data", source],
        ["train", "--data", f"film={source}", "--data", "x.csv"],
        ["data", "check", source],
    ):
        code, out, err = command(*words)
        assert code == 2
        assert "geheim" not in out + err
        assert "heim" not in out + err
        assert "Traceback" not in err


def test_passwords_as_libpq_has_them(server: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wanted = read_ratings(server.owner)
    same(wanted, read_ratings(server.reader(RIGHT)))
    without = server.reader(None)
    fails(lambda: read_ratings(without), "no connection", "PGPASSWORD or ~/.pgpass")
    monkeypatch.setenv("PGPASSWORD", postgres.PASSWORD)
    same(wanted, read_ratings(without))
    monkeypatch.delenv("PGPASSWORD")
    file = tmp_path / "pgpass"
    file.write_text(f"*:*:*:reader:{postgres.PASSWORD}\n")
    file.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(file))
    same(wanted, read_ratings(without))


@pytest.mark.usefixtures("warm")
def test_no_password_in_what_is_written(server: Any, command: Command, tmp_path: Path) -> None:
    address = server.reader(RIGHT)
    quick = ("--set", "epochs=2")
    code, out, err = command("train", "--data", address, "--parties", 2, "--out", tmp_path / "run", *quick)
    assert code == 0, err
    told = out + err
    code, out, err = command(
        *(
            "compare",
            "--data",
            address,
            "--query",
            "select * from ratings",
            "--parties",
            2,
            "--methods",
            "bias",
        ),
        *("--seeds", 1, "--jobs", 1, "--out", tmp_path / "comparison", *quick),
    )
    assert code == 0, err
    told += out + err
    code, out, err = command("data", "check", address, "--json")
    assert code == 0, err
    told += out + err
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for secret in (RIGHT, postgres.PASSWORD):
        assert secret not in told
        assert secret.encode() not in written
    assert b"postgresql://reader:***@/postgres" in (tmp_path / "comparison" / "cells.jsonl").read_bytes()


def test_what_is_shown_of_a_source() -> None:
    assert redact("postgresql://u:p@h:5432/db?sslmode=require&password=p") == "postgresql://u:***@h:5432/db"
    assert redact("film=postgresql://u:p@h/db") == "film=postgresql://u:***@h/db"
    assert redact("postgresql://u@h/db") == "postgresql://u@h/db"
    assert redact("postgresql://host/db?password=s3cret@x") == "postgresql://host/db"
    assert redact("postgresql://u@host/db?password=s3c@ret") == "postgresql://u@host/db"
    assert redact("postgresql://u:p@host/db?password=s3c@ret") == "postgresql://u:***"
    assert redact("postgresql://u:p@s?s@host/db") == "postgresql://u:***"
    assert redact("host=h password='a b' user=u") == "host=h password=*** user=u"
    assert redact("data/film@home.csv") == "data/film@home.csv"


# -- several sources -------------------------------------------------------------------------------------------------------


@pytest.fixture
def two(tmp_path: Path) -> list[str]:
    """A database with two tables of films, and a file of books with other names in another encoding."""
    film = write_duckdb(
        tmp_path / "film.duckdb",
        "create table ratings as select range % 20 as user, 'f' || range % 6 as item, 1 + range % 5 as rating from range(60)",
        "create table old as select * from ratings limit 1",
    )
    lines = [f"{user};Caf\xe9 {item};{1 + (user + item) % 5}" for user in range(20) for item in range(5)]
    books = tmp_path / "books.csv"
    books.write_bytes(("uid;book;points\n" + "\n".join(lines) + "\n").encode("latin-1"))
    return [f"film={film}", f"books={books}"]


def test_an_option_for_one_of_several(two: list[str], command: Command) -> None:
    options = ["--query", "film:select * from ratings", "--columns", "books:user=uid,item=book,rating=points"]
    options += ["--encoding", "books:latin-1", "--duplicates", "film:first"]
    words = [word for source in two for word in ("--data", source)]
    code, _, err = command("train", *words, *options, "--set", "epochs=1", "--json")
    assert code == 0, err
    assert "2 parties, 20 users" in err
    reading = ReadOptions(
        query=("film:select * from ratings",),
        columns=("books:user=uid,item=book,rating=points",),
        encoding=("latin-1",),
    )
    film, books = read_parties(two, reading=reading)
    assert film.ratings.n_items == 6
    assert "Café 0" in books.ratings.item_ids
    own = {
        "film": {"query": "select * from ratings"},
        "books": {"columns": {"user": "uid", "item": "book", "rating": "points"}},
    }
    again = read_parties(dict(entry.split("=", 1) for entry in two), own=own, encoding="latin-1")
    assert [party.ratings.summary() for party in again] == [
        party.ratings.summary() for party in (film, books)
    ]


def test_options_that_cannot_be_meant(two: list[str]) -> None:
    def read(**options: str | tuple[str, ...]) -> Callable[[], object]:
        texts = {name: (text,) if isinstance(text, str) else text for name, text in options.items()}
        return lambda: read_parties(two, reading=ReadOptions(**texts))

    fails(read(query="flm:select 1"), "--query flm:... names an unknown source", "film, books")
    fails(read(columns="book:user=uid"), "--columns book:...", "film, books")
    fails(read(encoding=("latin-1", "utf-8")), "--encoding is given twice", "--encoding film:...")
    fails(read(encoding=("film:latin-1", "film:utf-8")), "--encoding is given twice for film")
    fails(
        read(query="select * from ratings", encoding="latin-1", columns="books:user=uid"),
        "give it for the database only",
    )
    fails(read(columns="user"), "--columns takes user=...")
    fails(read(scale="5"), "--scale takes", "1,5")


def test_a_folder_of_databases_is_one_party_each(tmp_path: Path) -> None:
    write_duckdb(tmp_path / "film.duckdb", "create table r as select 1 as user, 'f' as item, 3 as rating")
    write_sqlite(tmp_path / "books.sqlite", "create table ratings (user, item, rating)", [(1, "b", 4)])
    (tmp_path / "Thumbs.db").write_bytes(b"no database")
    assert [party.name for party in read_parties(tmp_path)] == ["books", "film"]

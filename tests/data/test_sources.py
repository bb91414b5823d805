"""Options for one of several sources, and folders with one table per party."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from verfedgnn.core.errors import DataError
from verfedgnn.data import read_parties
from verfedgnn.data.data_check import check_source
from verfedgnn.data.read_options import ReadOptions

Command = Callable[..., tuple[int, str, str]]


def fails(call: Callable[[], object], *words: str) -> str:
    with pytest.raises(DataError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message
    return message


@pytest.fixture
def two(tmp_path: Path) -> list[str]:
    """A file of films in which pairs are repeated, and one of books with other names in another encoding."""
    film = tmp_path / "film.parquet"
    rows = [(k % 20, f"f{k % 6}", 1 + k % 5) for k in range(60)]
    columns = dict(
        zip(("user", "item", "rating"), map(list, zip(*[*rows, rows[0]], strict=True)), strict=True)
    )
    pq.write_table(pa.table(columns), film)
    lines = [f"{user};Caf\xe9 {item};{1 + (user + item) % 5}" for user in range(20) for item in range(5)]
    books = tmp_path / "books.csv"
    books.write_bytes(("uid;book;points\n" + "\n".join(lines) + "\n").encode("latin-1"))
    return [f"film={film}", f"books={books}"]


def test_an_option_for_one_of_several(two: list[str], command: Command) -> None:
    options = ["--columns", "books:user=uid,item=book,rating=points"]
    options += ["--read", "books:encoding=latin-1", "--read", "film:duplicates=first"]
    words = [word for source in two for word in ("--data", source)]
    code, _, err = command("train", *words, *options, "--set", "epochs=1", "--json")
    assert code == 0, err
    assert "2 parties, 20 users" in err
    reading = ReadOptions.from_texts(
        columns=("books:user=uid,item=book,rating=points",),
        read=("encoding=latin-1", "film:duplicates=first"),
    )
    film, books = read_parties(two, reading=reading)
    assert film.ratings.n_items == 6
    assert "Café 0" in books.ratings.item_ids
    own = {
        "film": {"duplicates": "first"},
        "books": {"columns": {"user": "uid", "item": "book", "rating": "points"}},
    }
    again = read_parties(dict(entry.split("=", 1) for entry in two), own=own, encoding="latin-1")
    assert [party.ratings.summary() for party in again] == [
        party.ratings.summary() for party in (film, books)
    ]


def test_options_that_cannot_be_meant(two: list[str]) -> None:
    def read(**options: str | tuple[str, ...]) -> Callable[[], object]:
        texts = {name: (text,) if isinstance(text, str) else text for name, text in options.items()}
        return lambda: read_parties(two, reading=ReadOptions.from_texts(**texts))

    fails(read(read="flm:scale=1,5"), "--read flm:scale=... names an unknown source", "film, books")
    fails(read(columns="book:user=uid"), "--columns book:...", "film, books")
    fails(
        read(read=("encoding=latin-1", "encoding=utf-8")),
        "--read encoding=... is given twice",
        "--read film:encoding=...",
    )
    fails(
        read(read=("film:encoding=latin-1", "film:encoding=utf-8")),
        "--read film:encoding=... is given twice; leave one out",
    )
    for mistake in ("colour=blue", "encoding", "film:scle=1,5"):
        fails(read(read=mistake), "--read takes NAME=VALUE with one of the names missing,", mistake)
    fails(read(columns="user"), "--columns takes user=...")
    fails(read(read="scale=5"), "--read scale takes", "scale=1,5")


def test_options_are_printed_as_they_were_given() -> None:
    given = ["--columns", "books:user=uid", "--read", "delimiter=:", "--read", "books:encoding=latin-1"]
    given += ["--read", "missing=drop"]
    texts = {
        name: [v for n, v in zip(given[::2], given[1::2], strict=True) if n == f"--{name}"]
        for name in ("columns", "read")
    }
    assert ReadOptions.from_texts(**texts).to_arguments() == [*given]


def test_a_folder_of_tables_is_one_party_each(tmp_path: Path) -> None:
    (tmp_path / "film.csv").write_text("user,item,rating\n1,f,3\n")
    pq.write_table(pa.table({"user": [1], "item": ["b"], "rating": [4]}), tmp_path / "books.parquet")
    (tmp_path / "Thumbs.db").write_bytes(b"no table")
    assert [party.name for party in read_parties(tmp_path)] == ["books", "film"]


def test_a_folder_with_a_single_file_is_that_table(tmp_path: Path) -> None:
    for name in ("books", "music"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "ratings.dat").write_text(
            "".join(f"{user}\t{user % 7}\t{1 + user % 5}\n" for user in range(40))
        )
        (tmp_path / name / "README.md").write_text("How it was made.")
    books, music = read_parties([tmp_path / "books", tmp_path / "music"])
    assert [(books.name, books.ratings.name), (music.name, music.ratings.n_items)] == [
        ("books", "books"),
        ("music", 7),
    ]
    assert check_source("books", tmp_path / "books").usable

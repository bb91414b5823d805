"""Bad input: each a DataError of one line that names the cause, the place and the remedy."""

import gzip
from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers import make_ratings
from verfedgnn.core.errors import DataError
from verfedgnn.data import (
    PartyData,
    align_users,
    check_parties,
    read_parties,
    read_ratings,
    split_by_date,
    split_items,
    synthetic_ratings,
)


def fails(call, *words):
    """The one line a call fails with, after checking that it has these words."""
    with pytest.raises(DataError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message
    return message


def table(tmp_path, text, name="t.csv"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


HEAD = "user,item,rating\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "user,film,rating\n1,2,3\n",
            [
                "no column for item",
                "user, film, rating",
                'did you mean columns={"item": "film"}?',
            ],
        ),
        (
            "1,2,good\n4,5,bad\n",
            ["no column for user, item, rating (tables of purchases need no rating)", "add a header"],
        ),
        (
            HEAD + "1,2,3\n\n1,4,great\n",
            ["'great'", "line 4 of", "is not a number", "correct or remove them"],
        ),
        (
            HEAD + "1,2,3\n1,4,\n",
            ["1 row has a rating that is missing or NaN", "line 3 of t.csv", 'missing="drop"'],
        ),
        (HEAD + "1,2,nan\n1,4,NaN\n", ["2 rows have a rating that is missing or NaN", "line 2 of t.csv"]),
        (
            HEAD + "1,2,3\n1,4,1e300\n",
            ["1 row has a rating that is infinite (more than 3.4e38)", "line 3 of t.csv"],
        ),
        (HEAD + "1,2,3\n1,4,inf\n", ["1 row has a rating that is infinite", "line 3 of t.csv"]),
        (
            HEAD + ",2,3\n",
            ["1 row has no user", "line 2 of t.csv", "fill it in", 'missing="drop"'],
        ),
        (HEAD + '"a\nb",2,3\n1,  ,3\n', ["1 row has no item", "line 4 of t.csv"]),
        (
            HEAD + "1,2,3\n1,5,4\n1,2,4\n1,2,5\n",
            [
                "2 rows repeat a (user, item) pair",
                "line 2 of t.csv and line 4",
                'duplicates="first"',
            ],
        ),
        (HEAD + "1,2\n", ["line 2 of", "has 2 fields instead of 3", "the delimiter with delimiter"]),
        (HEAD, ["has no ratings", "at least one row"]),
        ("", ["is empty", "downloaded completely"]),
        (
            HEAD.encode() + b"1,2,3\nJos\xe9,2,3\n",
            ["line 3 of", "is not utf-8", 'encoding="latin-1"'],
        ),
        (HEAD + f"1,{'x' * 300},3\n", ["300 characters", 'columns={"item": ...}']),
        (b"\x00\x01\x02\x03" * 50, ["is not a text table", "CSV, TSV or Parquet"]),
        (b"PAR1" + b"junk" * 20, ["truncated or damaged Parquet file", "download it again"]),
    ],
)
def test_bad_tables(tmp_path, text, words):
    fails(lambda: read_ratings(table(tmp_path, text)), *words)


def test_an_error_of_ratings_names_no_customer(tmp_path):
    """Logs and the history of nights keep errors, and `forget` does not look there."""
    text = fails(lambda: read_ratings(table(tmp_path, HEAD + "alice,secret,3\nalice,secret,4\n")), "line 3")
    assert "alice" not in text
    assert "secret" not in text


@pytest.mark.parametrize(
    "text",
    [
        '{"user": "customer17", "item": "secret"}\n',
        '\ufeff [{"user": "customer17", "item": "secret"}]\n',
        "customer17,secret,4,9,2024\n",
        "alice@customer.org,secret\n",
    ],
)
def test_an_error_of_a_table_without_header_shows_no_cell(tmp_path, text):
    message = fails(lambda: read_ratings(table(tmp_path, text)), "Parquet" if "{" in text else "add a header")
    assert "customer" not in message
    assert "secret" not in message


def test_columns_that_are_not_there(tmp_path):
    file = table(tmp_path, "a,b,c\n1,2,3\n")
    fails(
        lambda: read_ratings(file, columns={"user": "x", "item": "b", "rating": "c"}),
        "user=x",
        "a, b, c",
        "columns names",
    )


@pytest.mark.parametrize("keep", [0.5, 0.02])
def test_truncated_gzip(tmp_path, keep):
    lines = "".join(f"{k},{k * 7919 % 1000},3\n" for k in range(50_000))
    packed = gzip.compress((HEAD + lines).encode())
    file = table(tmp_path, packed[: int(len(packed) * keep)], "t.csv.gz")
    fails(lambda: read_ratings(file), "truncated or damaged", "download or compress it again")


def test_gzip_that_is_none(tmp_path):
    fails(lambda: read_ratings(table(tmp_path, b"\x1f\x8bnonsense", "t.csv.gz")), "truncated or damaged")


def test_files_that_cannot_be_read(tmp_path, monkeypatch):
    fails(lambda: read_ratings(tmp_path / "none.csv"), "none.csv does not exist", "check the path")
    file = table(tmp_path, HEAD + "1,2,3\n")

    def denied(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    fails(lambda: read_ratings(file), "cannot be read", "permission denied", "change its mode")


def test_unknown_folder(tmp_path):
    (tmp_path / "photo.jpg").write_bytes(b"x")
    (tmp_path / "second.jpg").write_bytes(b"x")
    fails(
        lambda: read_ratings(tmp_path),
        "no known layout",
        "it holds photo.jpg",
        "Give the path of a file",
    )


def test_unknown_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VERFEDGNN_DATA", raising=False)
    fails(
        lambda: read_ratings("ml-1m"),
        "VERFEDGNN_DATA is not set",
        "files.grouplens.org/datasets/movielens/ml-1m.zip",
    )
    monkeypatch.setenv("VERFEDGNN_DATA", str(tmp_path))
    fails(
        lambda: read_ratings("ml-100k"), "ml-100k is not in VERFEDGNN_DATA", "unpack it there", "ml-100k.zip"
    )
    fails(lambda: read_ratings("nonsense"), "known names: synthetic, ml-100k")


def test_options(tmp_path):
    file = table(tmp_path, HEAD + "1,2,3\n")
    fails(lambda: read_ratings(file, duplicates="both"), "'both'", "error, first, last, mean")
    fails(lambda: read_ratings(file, missing="no"), "missing='no'", "error, drop")
    fails(lambda: read_ratings(file, encoding="klingon"), "'klingon'", "utf-8 or latin-1")
    fails(lambda: read_ratings(file, delimiter="::"), "'::'", "one character")
    fails(lambda: read_ratings(file, users=3), "users", "options are for synthetic data")
    fails(lambda: read_ratings("synthetic", colour=3), "colour", "users, items, ratings")
    fails(lambda: read_ratings(file, scale=(4, 5)), "outside the scale 4 to 5", "line 2 of t.csv")


def test_publisher_files_that_are_damaged(tmp_path):
    fails(lambda: read_ratings(table(tmp_path, "1\t2\tx\t4\n", "u.data")), "'x'", "line 1 of")
    fails(lambda: read_ratings(table(tmp_path, "1::2::3::4\n1::2\n", "ratings.dat")), "line 2 of", "fields")
    fails(
        lambda: read_ratings(table(tmp_path, "1::2::3::4\n1::5::3::later\n", "ratings.dat")),
        "line 2 of",
        "'later'",
    )
    fails(lambda: read_ratings(table(tmp_path, "", "ratings.dat")), "is empty")
    fails(lambda: read_ratings(table(tmp_path, "User;ISBN\n1;2\n", "BX-Book-Ratings.csv")), "Book-Rating")


def test_parquet_contents(tmp_path):
    def write(**columns):
        pq.write_table(pa.table(columns), tmp_path / "t.parquet")
        return tmp_path / "t.parquet"

    file = write(user=["a", "b"], item=["x", "y"], rating=["3", "good"])
    fails(lambda: read_ratings(file), "'good' in row 2", "is not a number")
    file = write(user=["a", None], item=["x", "y"], rating=[3.0, 4.0])
    fails(lambda: read_ratings(file), "1 row has no user", "row 2 of t.parquet")
    file = write(user=[0.5, 1.0], item=["x", "y"], rating=[3.0, 4.0])
    fails(lambda: read_ratings(file), "user column holds fractions", 'columns={"user": ...}')
    file = write(user=["a"], item=[["x"]], rating=[3.0])
    fails(lambda: read_ratings(file), "item column holds a value of type list", "convert it to text")


def test_arrays():
    fails(lambda: make_ratings(["a"], ["x"], ["good"]), "is not a number")
    fails(lambda: make_ratings(["a"], ["x"], [1.0, 2.0]), "give one of each per row")
    fails(lambda: make_ratings([b"a"], ["x"], [1.0]), "holds a value of type bytes", "convert it to text")
    fails(lambda: make_ratings([], [], []), "has no ratings")
    fails(lambda: make_ratings(["a", None], ["x", "y"], [1.0, 2.0]), "no user", "row 1 of ratings")


@pytest.mark.parametrize("column", ["title", "time"])
def test_a_column_of_mixed_types(column):
    frame = pd.DataFrame({"user": ["a", "b"], "item": ["x", "y"], "rating": [1, 2], column: [1, "x"]})
    fails(lambda: read_ratings(frame), f"the {column} column mixes incompatible types")


def test_a_frame_of_parties_may_have_mixed_ids():
    columns = {"party": ["f", "f", "b", "b"], "user": ["a", 1, "a", 1], "item": ["x", "y", "z", "w"]}
    found = read_parties(pd.DataFrame({**columns, "rating": [1, 2, 3, 4]}))
    assert [party.ratings.user_ids.tolist() for party in found] == [["1", "a"], ["1", "a"]]


def test_splits():
    ratings = make_ratings(["a", "b"], ["x", "y"], [1.0, 2.0])
    dates = (date(2025, 1, 1), date(2025, 2, 1))
    fails(lambda: split_by_date(ratings, dates), "has no times", 'columns={"time": ...}')
    fails(lambda: split_items(ratings, 3), "2 items cannot go to 3 parties", "use parties from 1 to 2")
    fails(lambda: split_items(ratings, by="genre"), "no item column 'genre'", "there is none")
    fails(lambda: synthetic_ratings(items=2), "cannot generate", "5 items")


def test_parties():
    a = PartyData("a", make_ratings(["1", "2"], ["x", "y"], [1.0, 2.0]))
    other = PartyData("c", make_ratings(["3"], ["w"], [1.0]))
    nothing = np.zeros(0, np.int64)
    fails(lambda: check_parties([]), "no parties", "at least one")
    fails(
        lambda: check_parties([a, PartyData("a", other.ratings)]),
        "two parties are called 'a'",
        "for example NAME=FILE",
    )
    fails(lambda: check_parties([a, other]), "'a' and 'c' have different users", "align_users")
    fails(
        lambda: check_parties([PartyData("e", a.ratings.select_items(nothing))]),
        "party 'e' has no items",
        "leave it out",
    )
    fails(
        lambda: check_parties([PartyData("e", a.ratings.take(nothing))]),
        "party 'e' has no ratings",
        "leave it out",
    )
    message = fails(
        lambda: check_parties([PartyData("a", a.ratings.take(np.array([0])))]),
        "without a rating at any party",
        "'2'",
    )
    assert message.startswith("1 user without")
    fails(
        lambda: check_parties([PartyData("e", a.ratings.select_users(nothing))]), "the parties have no users"
    )
    fails(lambda: align_users([a, other]), "a shares 0 of its", "in the same way")
    fails(lambda: align_users([]), "no parties")


def test_party_files(tmp_path):
    one = table(tmp_path, HEAD + "1,x,5\n", "one.csv")
    two = table(tmp_path, HEAD + "2,y,5\n", "two.csv")
    fails(lambda: read_parties([f"{one}", f"{two}"]), "one shares 0 of its")
    fails(lambda: read_parties([f"a={one}", f"a={two}"]), "two parties are called 'a'")
    fails(lambda: read_parties([]), "no data given", "use data with")
    fails(lambda: read_parties({}), "no parties")
    fails(lambda: read_parties([f"a={one}", "b=gone.csv"]), "gone.csv does not exist")


def test_gzip_of_nothing(tmp_path):
    fails(lambda: read_ratings(table(tmp_path, gzip.compress(b""), "t.csv.gz")), "is empty")

"""Tables in memory: ids of any type, frames of any library, and the options of files."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import verfedgnn as vf
from verfedgnn.data.rating_reader import read_ratings

Make = Callable[[list[Any]], Any]

WHOLE = st.integers(-(2**53), 2**53)
IDS = st.one_of(
    st.integers(-(10**40), 10**40),
    WHOLE.map(float),
    WHOLE.map(Decimal),
    st.integers(0, 2**31 - 1).map(np.int32),
    st.integers(0, 2**24).map(np.float32),
    st.uuids(),
    st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=12),
    st.sampled_from([None, math.nan, pd.NA]),
)


def written(value: Any) -> str:
    """The text that an id becomes."""
    return str(value) if isinstance(value, str | UUID) else str(int(value))


def of_arrays(users: list[Any]) -> Any:
    return users, [*range(len(users))], [3] * len(users)


def of_pandas(users: list[Any]) -> Any:
    column = pd.Series(users, dtype=object)
    return pd.DataFrame({"user": column, "item": [*range(len(users))], "rating": [3] * len(users)})


@pytest.mark.parametrize("make", [of_arrays, of_pandas])
@settings(max_examples=60, deadline=None)
@given(users=st.lists(IDS, min_size=1, max_size=8))
def test_ids_become_text(make: Make, users: list[Any]) -> None:
    there = [not (user is None or user is pd.NA or user != user) for user in users]
    if not all(there):
        with pytest.raises(vf.DataError, match=r'no user.*missing="drop"'):
            read_ratings(make(users))
    if not any(there):
        return
    found = read_ratings(make(users), missing="drop")
    wanted = [written(user) for user, known in zip(users, there, strict=True) if known]
    assert found.user_ids[found.user].tolist() == wanted


NOT_IDS = {
    "bytes": [b"a", b"b"],
    "fractions such as 1.5": [1.5, "b"],
    "fractions such as inf": [math.inf, 1.0],
    "type list": [["a"], ["b"]],
    "more than 256 digits": [10**5000, 1],
    "lone surrogates": ["\ud800", "b"],
    "a zero character": ["a\0", "a"],
}


@pytest.mark.parametrize("what", NOT_IDS)
def test_values_that_are_no_ids_are_named(what: str) -> None:
    with pytest.raises(vf.DataError, match=rf"the user column holds .*{what}.*; convert it to text"):
        read_ratings((NOT_IDS[what], ["x", "y"], [1, 2]))


COLUMNS: dict[str, list[Any]] = {"user": [1, 2, 2], "item": ["a", "a", "b"], "rating": [1.0, 5.0, 3.0]}


class FakeSpark:
    """What is used of a frame of Spark 4, whose `collect` returns rows of Python."""

    def toArrow(self) -> pa.Table:
        return pa.table(COLUMNS)

    def collect(self) -> list[Any]:
        raise AssertionError("rows of Python are slow")


TABLES: dict[str, Callable[[], Any]] = {
    "spark": FakeSpark,
    "arrow table": lambda: pa.table(COLUMNS),
    "record batch": lambda: pa.RecordBatch.from_pydict(COLUMNS),
    "reader": lambda: pa.table(COLUMNS).to_reader(),
    "pandas": lambda: pd.DataFrame(COLUMNS),
    "pandas nullable": lambda: pd.DataFrame(COLUMNS).astype({"user": "Int64", "rating": "Float32"}),
    "pandas categorical": lambda: pd.DataFrame(COLUMNS).astype({"user": "category", "item": "category"}),
    "pandas after a join": lambda: pd.DataFrame(COLUMNS).astype({"user": "float64"}),
    "polars": lambda: pl.DataFrame(COLUMNS),
    "polars lazy": lambda: pl.LazyFrame(COLUMNS),
    "polars 128 bit": lambda: pl.DataFrame(COLUMNS).cast({"user": pl.Int128}),
    "polars categorical": lambda: pl.DataFrame(COLUMNS).cast({"item": pl.Categorical}),
    "polars decimal": lambda: pl.DataFrame(COLUMNS).cast({"user": pl.Decimal(10, 2)}),
}


@pytest.mark.parametrize("kind", TABLES)
def test_frames_of_every_library_are_the_same_ratings(kind: str) -> None:
    found = read_ratings(TABLES[kind]())
    assert found.user_ids[found.user].tolist() == ["1", "2", "2"]
    assert found.item_ids[found.item].tolist() == ["a", "a", "b"]
    assert found.rating.tolist() == [1, 5, 3]


def test_objects_of_polars_are_refused() -> None:
    frame = pl.DataFrame({**COLUMNS, "user": pl.Series([1, "x", None], dtype=pl.Object)})
    with pytest.raises(vf.DataError, match="user column holds bytes or objects"):
        read_ratings(frame)


def test_a_frame_is_read_with_the_options_of_a_file(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "who": ["a", "a ", "b", None, "c"],
            "what": ["x", "x", "x", "y", "y"],
            "mark": [7, 3, 0, 4, 10],
            "when": [1, 2, 3, 4, 5],
        }
    )
    options: dict[str, Any] = {
        "columns": {"user": "who", "item": "what", "rating": "mark", "time": "when"},
        "missing": "drop",
        "duplicates": "mean",
        "scale": (0, 10),
        "catalogue": 9,
    }
    frame.to_csv(tmp_path / "film.csv", index=False)
    tables = [read_ratings(source, name="film", **options) for source in (frame, tmp_path / "film.csv")]
    for found in tables:
        assert found.user_ids.tolist() == ["a", "b", "c"]
        assert found.rating.tolist() == [5, 0, 10]
        assert (found.scale, found.catalogue) == ((0, 10), 9)
    assert tables[0].notes == tables[1].notes
    with pytest.raises(vf.DataError, match="encoding: an option for files; leave it out for the table film"):
        read_ratings(frame, name="film", encoding="latin-1")


def test_events_in_memory_are_those_of_a_file(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {"user": [1, 1, 2, None], "item": [5, 5, 6, 6], "event": ["view", "buy", "view", "buy"]}
    )
    frame.astype({"user": "Int64"}).to_csv(tmp_path / "shop.csv", index=False)
    options: dict[str, Any] = {"events": {"view": 1, "buy": 5}, "missing": "drop"}
    one, other = (read_ratings(source, name="shop", **options) for source in (frame, tmp_path / "shop.csv"))
    assert one.rating.tolist() == other.rating.tolist()
    assert one.notes == other.notes
    arrays = read_ratings(([1, 1, 2], ["x", "x", "y"]), events=5)
    assert arrays.user_ids.tolist() == ["1", "2"]


def test_one_door_for_parties(tmp_path: Path) -> None:
    frame = pd.DataFrame(COLUMNS)
    frame.rename(columns={"user": "uid2"}).to_csv(tmp_path / "books.csv", index=False)
    film, books = vf.read_parties(
        {"film": frame, "books": tmp_path / "books.csv"},
        own={"books": {"columns": {"user": "uid2"}, "scale": (0, 5)}},
    )
    assert (film.name, books.name) == ("film", "books")
    assert film.ratings.user_ids.tolist() == books.ratings.user_ids.tolist() == ["1", "2"]
    with pytest.raises(vf.DataError, match="own names 'book', which is no party; use film"):
        vf.read_parties({"film": frame}, own={"book": {}})
    with pytest.raises(vf.DataError, match="give tables by name"):
        vf.read_parties([frame, frame])


def test_a_column_of_parties_divides_a_frame() -> None:
    frame = pd.concat([pd.DataFrame(COLUMNS).assign(party=name) for name in ("film", "books")])
    for table in (frame, pl.DataFrame(frame), pl.LazyFrame(frame), pa.table(frame)):
        found = vf.read_parties(table)
        assert [(party.name, len(party.ratings), party.ratings.n_items) for party in found] == [
            ("books", 3, 2),
            ("film", 3, 2),
        ]
    assert [party.name for party in vf.read_parties(frame, parties=1, duplicates="first")] == ["party-0"]

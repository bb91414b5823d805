"""`data check`: every kind of problem with its lines in one go, usable exactly when it can be read, and a picture."""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers import make_ratings
from verfedgnn.cli.next_step import add_columns
from verfedgnn.core.errors import DataError, MissingColumns
from verfedgnn.core.option_names import on_command_line
from verfedgnn.data import read_ratings
from verfedgnn.data.data_check import (
    CheckedSource,
    OverlapRegion,
    check_source,
    conclude,
    describe_ratings,
    fitting_parties,
    foresee,
    measure_overlap,
)
from verfedgnn.data.parties import read_parties
from verfedgnn.data.text_files import TextTable

Command = Callable[..., tuple[int, str, str]]
LATEST = 5_000_000_000
"""A time far in the future."""

BAD = """user,item,rating,time
1,a,3,1700000000
1,b,great,1700000001

2,a,4,1700000002
2,a,4,1700000003
"x
y",c,5,4700000003
3,c
,c,2,1700000003
4,  ,2,1700000003
5,e,nan,1700000003
6,f,7,1700000003
7,g,1,2,3,4
8, h ,1,1700000003
8,h,3,1700000003
9,i,,10
"""


def put(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def kinds(found: CheckedSource) -> dict[str, tuple[int, tuple[int, ...]]]:
    return {problem.kind: (problem.count, problem.places) for problem in found.problems}


@pytest.mark.parametrize("packed", [False, True])
def test_every_kind_of_problem_with_its_lines(tmp_path: Path, packed: bool) -> None:
    text = gzip.compress(BAD.encode()) if packed else BAD
    path = put(tmp_path / f"bad.csv{'.gz' if packed else ''}", text)
    found = check_source("bad", path, scale=(1, 5))
    assert found.unit == "line"
    assert not found.usable
    assert kinds(found) == {
        "broken": (2, (9, 14)),
        "no-user": (1, (10,)),
        "no-item": (1, (11,)),
        "not-a-number": (1, (3,)),
        "no-rating": (2, (12, 17)),
        "off-scale": (1, (13,)),
        "repeated": (2, (6, 16)),
        "future": (1, (8,)),
        "few-ratings": (4, ()),
    }
    assert found.shape is not None
    assert (found.shape.ratings, found.shape.users, found.shape.items) == (4, 4, 3)
    assert found.shape.last == "2023-11-14"  # what is in the future is no part of the picture


def test_only_the_first_few_lines_of_many(tmp_path: Path) -> None:
    path = put(tmp_path / "t.csv", "user,item,rating\n" + "".join(f"{k},{k},bad\n" for k in range(3000)))
    assert kinds(check_source("t", path))["not-a-number"] == (3000, (2, 3, 4, 5, 6))


def test_duplicates_are_no_error_once_it_is_said_what_becomes_of_them(tmp_path: Path) -> None:
    path = put(tmp_path / "t.csv", "user,item,rating\n1,a,3\n1,a,4\n2,a,4\n")
    assert not check_source("t", path).usable
    found = check_source("t", path, duplicates="last")
    assert found.usable
    assert "the last one is kept" in found.problems[0].text
    assert check_source("t", put(tmp_path / "t.inter", "user_id\titem_id\trating\n1\ta\t3\n1\ta\t4\n")).usable


def test_the_check_describes_what_training_will_use_and_counts_zeros_in_all_rows(tmp_path: Path) -> None:
    text = "user,item,rating,time\n1,a,0,2001-01-05\n1,a,4,2001-01-09\n2,a,0,2001-01-02\n2,a,0,2001-01-03\n3,a,5,2001-01-04\n"
    path = put(tmp_path / "t.csv", text)
    ways = {"first": (5, 5 / 3), "last": (9, 3.0), "mean": (5, 7 / 3)}
    for way, (day, mean) in ways.items():
        found = check_source("t", path, duplicates=way)
        assert found.shape is not None
        read = read_ratings(path, duplicates=way)
        assert found.shape == describe_ratings(read)
        assert found.shape.mean == pytest.approx(mean)
        assert found.shape.last == f"2001-01-0{day}", way
        assert kinds(found)["zeros"] == (3, (2, 4, 5))
        assert kinds(found)["few-ratings"][0] == 3
    assert kinds(check_source("t", path))["zeros"] == (3, (2, 4, 5))


def test_the_check_adds_up_the_events_of_a_pair_as_training_does(tmp_path: Path) -> None:
    path = put(tmp_path / "t.csv", "user,item,event\n1,a,view\n1,a,buy\n2,a,view\n")
    found = check_source("t", path, events={"view": 1, "buy": 5})
    assert found.shape == describe_ratings(read_ratings(path, events={"view": 1, "buy": 5}))
    assert "repeated" not in kinds(found)


def test_the_columns_that_are_guessed_have_times_and_titles(tmp_path: Path) -> None:
    path = put(tmp_path / "t.csv", "client,film_no,points,seen_date,film_title\n1,a,3,2001-01-05,Alien\n")
    with on_command_line():
        (flag,) = check_source("t", path).columns
    assert flag == "user=client,item=film_no,rating=points,time=seen_date,title=film_title"
    read = read_ratings(path, columns=dict(each.split("=") for each in flag.split(",")))
    assert read.time is not None
    assert read.titles is not None
    assert read.titles.tolist() == ["Alien"]


def test_wrong_encoding(tmp_path: Path) -> None:
    path = put(tmp_path / "t.csv", "user,item,rating\nJosé,a,3\n1,b,x\nRené,b,2\n".encode("latin-1"))
    (problem,) = check_source("t", path).problems
    assert problem.text.startswith(f"line 2 of {path} is not utf-8 text")
    assert 'encoding="latin-1"' in problem.text
    assert set(kinds(check_source("t", path, encoding="latin-1"))) == {"not-a-number", "few-ratings"}


def test_what_is_worth_knowing(tmp_path: Path) -> None:
    equal = check_source("t", put(tmp_path / "a.csv", "user,item,rating\n1,a,3\n2,a,3\n"))
    assert equal.usable
    assert "all-equal" in kinds(equal)
    zeros = check_source("t", put(tmp_path / "b.csv", "user,item,rating\n1,a,0\n2,a,3\n3,a,0\n"))
    assert kinds(zeros)["zeros"] == (2, (2, 4))
    early = check_source("t", put(tmp_path / "c.csv", "user,item,rating,time\n1,a,1,19000\n2,a,3,19001\n"))
    assert kinds(early)["early"] == (2, (2, 3))
    lines = "user,item,rating,time\n1,a,1,0\n2,a,3,1700000000\n3,a,2,1700090000\n"
    unset = check_source("t", put(tmp_path / "e.csv", lines))
    assert kinds(unset)["early"] == (1, (2,))
    assert unset.shape is not None
    assert (unset.shape.first, unset.shape.last) == ("2023-11-14", "2023-11-15"), (
        "not 1970, which means no time"
    )
    gaps = check_source("t", put(tmp_path / "d.csv", "user,item,rating,time\n1,a,1,1700000000\n2,a,3,\n"))
    assert gaps.usable
    assert kinds(gaps)["time"] == (1, (3,))
    lines = "user,item,rating,time\n1,a,1,1700000000\n2,a,3,x\n"
    wrong = check_source("t", put(tmp_path / "f.csv", lines))
    assert (wrong.usable, kinds(wrong)["time"]) == (True, (1, (3,)))
    (note,) = read_ratings(tmp_path / "f.csv").notes
    assert note.endswith("all times are left out; check line 3 of f.csv")


def test_a_lone_rating_far_from_all_others_stands_out(tmp_path: Path) -> None:
    rows = [f"{n},a,{1 + n % 5}" for n in range(20)]
    slip = put(tmp_path / "a.csv", "\n".join(["user,item,rating", *rows, "x,a,50", ""]))
    assert kinds(check_source("t", slip))["lone"] == (1, (22,))
    assert read_ratings(slip).notes == (
        "1 row has the rating 50, where the others lie from 1 to 5; check line 22 of a.csv",
    )
    for more in (["x,a,9"], ["x,a,50", "y,a,50"]):  # near the others, and not alone
        usual = put(tmp_path / "b.csv", "\n".join(["user,item,rating", *rows, *more, ""]))
        assert "lone" not in kinds(check_source("t", usual))


@pytest.mark.parametrize(("limit", "line"), [(csv.field_size_limit(), 4), (1 << 12, 3)])
def test_lines_after_a_long_field(tmp_path: Path, limit: int, line: int) -> None:
    """A field of any length is passed; one that Python's reader refuses leaves the number of the record."""
    long = "x" * 140_000
    text = TextTable(put(tmp_path / "t.csv", f'user,item,rating,review\n1,a,3,"{long}\n"\n1,b,great,\n'))
    before = csv.field_size_limit(limit)
    try:
        assert text.lines([2])[2] == line
    finally:
        csv.field_size_limit(before)
    if line == 4:
        assert kinds(check_source("t", text.path))["not-a-number"] == (1, (line,))
        with pytest.raises(DataError, match="'great' in line 4 of"):
            read_ratings(text.path)
    if line == 4:
        assert kinds(check_source("t", text.path))["not-a-number"] == (1, (line,))
        with pytest.raises(DataError, match="'great' in line 4 of"):
            read_ratings(text.path)


@pytest.mark.parametrize(
    ("values", "kind", "seconds", "future"),
    [
        (
            [1_700_000_000_123_456_789, 1_700_000_001_000_000_001],
            pa.timestamp("ns"),
            [1_700_000_000, 1_700_000_001],
            0,
        ),
        ([19_675, 2**30], pa.date32(), [1_699_920_000, 2**30 * 86_400], 1),
        ([2**29, 2**30], pa.date32(), [2**29 * 86_400, 2**30 * 86_400], 2),
        ([1_700_000_000_000, 2**60], pa.timestamp("ms", "Europe/Berlin"), [1_700_000_000, 2**60 // 1000], 1),
        ([1_700_000_000.5, float("nan")], pa.float64(), None, 0),
    ],
)
def test_times_of_every_unit_and_year(
    tmp_path: Path, values: list[int], kind: pa.DataType, seconds: list[int] | None, future: int
) -> None:
    """A time that cannot be is one of the future, which is a warning, and never a failure."""
    table = pa.table(
        {"user": ["a", "b"], "item": [1, 2], "rating": [1.0, 2.0], "time": pa.array(values, kind)}
    )
    pq.write_table(table, tmp_path / "t.parquet")
    found = check_source("t", tmp_path / "t.parquet")
    assert found.usable
    assert kinds(found).get("future", (0, ()))[0] == future
    time = read_ratings(tmp_path / "t.parquet").time
    assert (None if time is None else time.tolist()) == seconds


def test_rows_of_parquet(tmp_path: Path) -> None:
    table = pa.table(
        {"user": ["a", None, "c", " a "], "item": [1, 2, 3, 1], "rating": [1.0, 2.0, float("nan"), 4.0]}
    )
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=2)
    found = check_source("t", tmp_path / "t.parquet")
    assert found.unit == "row"
    assert kinds(found) == {
        "no-user": (1, (2,)),
        "no-rating": (1, (3,)),
        "repeated": (1, (4,)),
        "few-ratings": (1, ()),
    }


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("user,thing,rating\n1,2,3\n", "no column for item"),
        ("", "is empty"),
        (b"PAR1junk", "truncated or damaged"),
        (b"\0\1\2\3" * 9, "is not a text table"),
    ],
)
def test_what_cannot_be_read_at_all(tmp_path: Path, content: str | bytes, words: str) -> None:
    (problem,) = check_source("t", put(tmp_path / "t.csv", content)).problems
    assert problem.kind == "unreadable"
    assert words in problem.text


@pytest.mark.parametrize("events", [None, 5.0])
@pytest.mark.parametrize(
    ("values", "texts"),
    [
        (pa.array([["Drama", "War"], None]), ["Drama|War", ""]),
        (pa.array([[1, 2], []], pa.large_list(pa.int64())), ["1|2", ""]),
        (pa.array([0.5, float("nan")]), ["0.5", ""]),
        (pa.array([17.0, None]), ["17", ""]),
        (pa.array([{"a": 1}, None]), ["{'a': 1}", ""]),
        (pa.array([b"\xff", b"x"]), ["b'\\xff'", "b'x'"]),
        (pa.array([True, None]), ["true", ""]),
        (pa.array([7, 8]).dictionary_encode(), ["7", "8"]),
        (pa.array(["x", "y"]).dictionary_encode(), ["x", "y"]),
    ],
)
def test_no_column_about_items_is_refused(
    tmp_path: Path, values: pa.Array, texts: list[str], events: float | None
) -> None:
    columns = {"user": ["a", "b"], "item": [1, 2], "rating": [1.0, 2.0], "title": values, "genre": values}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    assert check_source("t", tmp_path / "t.parquet", events=events).usable
    ratings = read_ratings(tmp_path / "t.parquet", events=events)
    assert ratings.titles is not None
    assert ratings.titles.tolist() == ratings.columns["genre"].tolist() == texts


@pytest.mark.parametrize(("rating", "usable"), [("٣", False), (" 3 ", True), ("NA", False), ("3", True)])
def test_ratings_as_text_in_parquet_and_csv(tmp_path: Path, rating: str, usable: bool) -> None:
    put(tmp_path / "t.csv", f"user,item,rating\n1,a,{rating}\n")
    pq.write_table(pa.table({"user": ["1"], "item": ["a"], "rating": [rating]}), tmp_path / "t.parquet")
    for path in (tmp_path / "t.csv", tmp_path / "t.parquet"):
        assert check_source("t", path).usable == usable
        if usable:
            assert read_ratings(path).rating.tolist() == [3.0]
        else:
            with pytest.raises(DataError, match="rating"):
                read_ratings(path)


FIELDS = st.sampled_from(
    [
        "1",
        "2",
        "",
        " 2 ",
        "a",
        "nan",
        "NA",
        "+3",
        "1e1",
        "4.5",
        ".5",
        "5.",
        "inf",
        "x",
        "0x1",
        "1_0",
        '"q"',
        "-2",
        "٣",
        "1e300",
        '"3,5"',
        '"1,234"',
    ]
)
LINES = st.lists(st.lists(FIELDS, min_size=2, max_size=4), max_size=12)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    LINES,
    st.sampled_from([None, "first", "mean"]),
    st.sampled_from([None, (1.0, 5.0)]),
    st.sampled_from([None, "drop"]),
)
def test_usable_is_what_can_be_read(
    tmp_path: Path,
    lines: list[list[str]],
    duplicates: str | None,
    scale: tuple[float, float] | None,
    missing: str | None,
) -> None:
    path = put(tmp_path / "t.csv", "user,item,rating\n" + "".join(",".join(line) + "\n" for line in lines))
    try:
        ratings = read_ratings(path, duplicates=duplicates, scale=scale, missing=missing)
    except DataError:
        ratings = None
    found = check_source("t", path, duplicates=duplicates, scale=scale, missing=missing)
    assert found.usable == (ratings is not None)
    if ratings is not None:
        assert found.shape is not None
        assert (found.shape.ratings, found.shape.users, found.shape.items) == (
            len(ratings),
            ratings.n_users,
            ratings.n_items,
        )


def test_real_layouts_have_their_own_readers(real_data: Path) -> None:
    if not (real_data / "ml-100k").exists():
        pytest.skip("ml-100k is not in VERFEDGNN_DATA")
    found = check_source("ml-100k", "ml-100k")
    assert found.usable
    assert found.shape is not None
    assert found.shape.ratings == 100_000
    assert sum(count for _, count in found.shape.values) == 100_000


# -- the picture -----------------------------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 5), st.floats(-10, 10, width=32), st.integers(0, LATEST)),
        min_size=1,
        max_size=60,
    )
)
def test_bars_count_every_rating_once(rows: list[tuple[int, int, float, int]]) -> None:
    user, item, rating, time = zip(*rows, strict=True)
    table = make_ratings(user, item, rating, time=time, duplicates="last")
    shape = describe_ratings(table)
    assert shape is not None
    assert sum(count for _, count in shape.values) == len(table)
    assert shape.users == len(set(user))
    assert shape.first is not None
    assert shape.last is not None
    assert shape.first <= shape.last


# -- the command -----------------------------------------------------------------------------------------------------------


def test_the_command_and_its_exit_codes(command: Command, tmp_path: Path) -> None:
    code, out, err = command("data", "check", put(tmp_path / "bad.csv", BAD), "--read", "scale=1,5")
    assert code == 2
    assert "diagnosis: This cannot be trained, because bad cannot be used" in err
    assert "next, once the data are corrected: " in err
    assert "(lines 9, 14)" in out
    assert "1 row has a rating that is not a number (line 3): correct or remove them" in out
    assert "not usable" in out
    good = put(
        tmp_path / "good.csv",
        "user,item,rating\n" + "".join(f"{u},{i},{1 + (u + i) % 5}\n" for u in range(9) for i in range(9)),
    )
    code, out, _ = command("data", "check", good)
    assert code == 0
    for words in ("81 ratings by 9 users on 9 items", "█", "usable"):
        assert words in out
    code, out, err = command("data", "check", tmp_path / "gone.csv")
    assert code == 2
    assert "gone.csv does not exist" in out + err


def test_json_is_one_line(command: Command, tmp_path: Path) -> None:
    code, out, _ = command("data", "check", put(tmp_path / "bad.csv", BAD), "--read", "scale=1,5", "--json")
    assert code == 2
    assert out.count("\n") == 1
    told = json.loads(out)
    assert not told["usable"]
    (source,) = told["sources"]
    assert {p["kind"]: p["places"] for p in source["problems"]}["broken"] == [9, 14]
    assert source["distribution"]["ratings"] == 4
    assert told["overlap"] is None


def ratings_of(users: Sequence[str], prefix: str) -> str:
    lines = (f"{user},{prefix}{n % 3},{1 + n % 5}\n" for n, user in enumerate(users))
    return "user,item,rating\n" + "".join(lines)


def test_several_sources_show_their_overlap(command: Command, tmp_path: Path) -> None:
    film = put(tmp_path / "film.csv", ratings_of([f"Anna{u}" for u in range(10)], "f"))
    books = put(tmp_path / "books.csv", ratings_of([f"Anna{u}" for u in range(5, 20)], "b"))
    code, out, _ = command("data", "check", f"film={film}", f"books={books}")
    assert code == 0
    picture = [line.split() for line in out.split("exactly these parties")[1].splitlines()]
    assert ["10", "█" * 24, "·", "●"] in picture
    assert ["5", "█" * 12, "●", "·"] in picture
    assert ["5", "█" * 12, "●", "●"] in picture
    assert ["all", "5", "25", "%", "10", "40", "%"] in picture
    assert ["2", "5", "25", "%", "10", "40", "%"] in picture
    assert ["any", "20", "100", "%", "25", "100", "%"] in picture
    code, out, _ = command("data", "check", tmp_path, "--json")
    overlap = json.loads(out)["overlap"]
    assert overlap["regions"][0] == {"parties": ["books"], "users": 10, "ratings": 10}
    assert {"parties": ["books", "film"], "users": 5, "ratings": 10} in overlap["regions"]
    assert overlap["rules"]["any"] == {"users": 20, "ratings": 25}
    assert overlap["shared"] == 5


def test_different_spellings_are_pointed_out(command: Command, tmp_path: Path) -> None:
    film = put(tmp_path / "film.csv", ratings_of([f"Anna{u}" for u in range(10)], "f"))
    music = put(tmp_path / "music.csv", ratings_of([f"anna{u}" for u in range(10)], "b"))
    code, out, err = command("data", "check", film, music)
    assert code == 2
    assert "film shares 0 of its 10 users" in err
    next_line = err.strip().splitlines()[-1]
    assert next_line.startswith("next: ")
    assert next_line.endswith("--read ids=lower")
    assert "10 if ids differ only in capitals or spaces" in err
    books = put(tmp_path / "books.csv", ratings_of([f"Anna{u}" for u in range(5, 20)], "b"))
    code, out, _ = command("data", "check", film, music, books)
    assert code == 2, "music shares nobody"
    assert "item ids" not in out, "those of two parties coincide by chance"


def test_many_parties_are_listed_by_name_and_small_combinations_summed_up(
    command: Command, tmp_path: Path
) -> None:
    """Ten parties, and user n at the parties of n's bits: 40 combinations."""
    for party in range(10):
        users = [f"u{n}" for n in range(1, 1 + 40) if n >> party & 1] or ["u1"]
        put(tmp_path / f"p{party}.csv", ratings_of(users, f"i{party}-"))
    code, out, _ = command("data", "check", tmp_path)
    assert code == 0
    assert "in 24 other combinations" in out
    assert re.search(r"p\d, p\d", out)


@given(st.lists(st.sets(st.integers(0, 9)), min_size=2, max_size=4))
def test_regions_are_those_of_the_sets(sets: list[set[int]]) -> None:
    """Against Python's sets; each user has as many ratings at a party as its number says, plus one."""
    found = []
    for number, users in enumerate(sets):
        ids = np.array([str(user) for user in sorted(users)], np.str_)
        counts = np.array([1 + user for user in sorted(users)], np.int64)
        found.append(CheckedSource(f"p{number}", "", "row", (), (), None, ids, counts))
    overlap = measure_overlap(found)
    at = {user: tuple(f"p{p}" for p, one in enumerate(sets) if user in one) for user in set().union(*sets)}
    expected = {
        OverlapRegion(
            where, len(own := [u for u in at if at[u] == where]), sum(len(where) * (1 + u) for u in own)
        )
        for where in set(at.values())
    }
    assert set(overlap.regions) == expected
    assert overlap.shared == sum(len(where) > 1 for where in at.values())


def test_overlap_with_an_unreadable_source(tmp_path: Path) -> None:
    gone = check_source("a", tmp_path / "gone.csv")
    overlap = measure_overlap([gone, check_source("b", put(tmp_path / "t.csv", "user,item,rating\n1,a,3\n"))])
    assert overlap.shared == 0


def test_the_page_shows_what_is_printed(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text("utf-8")
    (printed,) = (block.split("```")[0] for block in page.split("```text\n")[1:])
    table = (
        "user,item,rating,time\nanna,Alien,5,1577000000\nanna,Brazil,4,1577100000\nanna,Casablanca,great,1577200000\n"
        "ben,Alien,4,1595000000\nben,Alien,3,1595000001\nben,Dune\n,Alien,4,1590000000\ncleo,Alien,5,4700000003\n"
        "cleo,Brazil,2,1630000000\ndora,Dune,3,1655000000\n"
    )
    put(tmp_path / "film.csv", table)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "110")
    _, out, _ = command("data", "check", "film.csv")
    lines = iter([line.rstrip() for line in out.strip().splitlines()])
    assert all(line in lines for line in printed.strip().splitlines() if line.strip() != "..."), "in order"


def test_a_training_is_foreseen(tmp_path: Path) -> None:
    for name, users, scale in (("film", range(40), 1), ("book", range(30, 100), 20)):
        rows = [
            f"u{user},{name}{item},{scale * (1 + (user + item) % 5)}" for user in users for item in range(4)
        ]
        (tmp_path / f"{name}.csv").write_text("user,item,rating\n" + "\n".join(rows) + "\n")
    found = [check_source(name, tmp_path / f"{name}.csv") for name in ("film", "book")]
    overlap = measure_overlap(found)
    two, scales, shared = foresee(found, overlap)
    assert two.startswith("there are two parties")
    assert scales.startswith("film rates from 1 to 5, book rates from 20 to 100")
    assert "90 of 100 users are at one party only" in shared
    assert "10 of 100 users (10 %) are at two or more parties" in conclude(found, overlap)[2]


SMALL_TABLES = {
    "one user": ([(0, i, 1 + i % 5) for i in range(60)], "has 1 user", 2),
    "few items": ([(u, i, 1 + (u + i) % 5) for u in range(60) for i in range(4)], "pass parties=4", 4),
    "few ratings": ([(u, i, 1 + (u + i) % 5) for u in range(3) for i in range(4)], "may be empty", 1),
    "enough": ([(u, i, 1 + (u + i) % 5) for u in range(40) for i in range(12)], "", None),
}


@pytest.mark.parametrize("case", SMALL_TABLES)
def test_a_small_source_is_foreseen(tmp_path: Path, case: str) -> None:
    """The warnings come with as many parties as `train` accepts."""
    rows, words, parties = SMALL_TABLES[case]
    file = tmp_path / "small.csv"
    file.write_text("user,item,rating\n" + "".join(f"u{u},i{i},{r}\n" for u, i, r in rows))
    found = [check_source("small", file)]
    assert words in "; ".join(foresee(found, None))
    assert bool(foresee(found, None)) == (case != "enough")
    assert fitting_parties(found) == parties
    assert "learns lists" not in conclude(found, None)[2]


def test_equal_ratings_are_for_lists(tmp_path: Path) -> None:
    file = tmp_path / "likes.csv"
    file.write_text("user,item,rating\n" + "".join(f"u{u},i{i},1\n" for u in range(40) for i in range(12)))
    found = [check_source("likes", file)]
    assert "training learns lists" in conclude(found, None)[2]


@pytest.mark.parametrize(
    ("columns", "flag"),
    [
        ("client,film,genre_of_film,stars", "user=client,item=film"),
        ("user,song_id,length,stars", "item=song_id"),
        ("user,title,year,stars", "item=title"),
        ("member_no,year,book,grade", "user=member_no,item=book,rating=grade"),
    ],
)
def test_a_column_named_after_its_things_is_guessed(tmp_path: Path, columns: str, flag: str) -> None:
    put(tmp_path / "shop.csv", f"{columns}\n1,2,3,4\n")
    with on_command_line(), pytest.raises(MissingColumns) as caught:
        read_parties([f"shop={tmp_path / 'shop.csv'}"])
    assert f"did you mean --columns {flag}?" in str(caught.value).replace("shop:", "")


def test_missing_columns_are_named_with_a_flag_that_works(tmp_path: Path) -> None:
    """Of all tables at once."""
    put(tmp_path / "films.csv", "customer_id,film,stars,when\n1,7,5,959756400\n")
    put(tmp_path / "books.csv", "k;v;score\n1;2;3\n")
    put(tmp_path / "games.csv", "user,item,rating_value,date_added\n1,2,3,2024-01-01\n")
    sources = [f"{name}={tmp_path / name}.csv" for name in ("films", "books", "games")]
    with on_command_line(), pytest.raises(MissingColumns) as caught:
        read_parties(sources)
    text = str(caught.value)
    for words in (
        "did you mean --columns films:item=film?",
        "name them with --columns books:user=...,item=...",
        "did you mean --columns games:rating=rating_value?",
    ):
        assert words in text
    assert caught.value.flags == ()  # one table cannot be guessed
    with on_command_line(), pytest.raises(MissingColumns) as caught:
        read_parties([sources[0], sources[2]])
    assert caught.value.flags == ("films:item=film", "games:rating=rating_value")
    words = ["train", "--columns", "films:user=x", "--columns", "a:user=b", "--json"]
    mended = [*words[:1], *words[3:], "--columns", "films:item=film"]
    assert add_columns(words, ["films:item=film"]) == mended
    assert add_columns(words, ["item=film"]) == ["train", "--json", "--columns", "item=film"], "one table"
    read = check_source("films", tmp_path / "films.csv", columns={"item": "film"})
    assert read.usable
    assert read.shape is not None
    assert read.shape.first == "2000-05-31"


@pytest.mark.parametrize("line", ["1\t1630\t4", "1\t1630\t4\t978300760"])
@pytest.mark.parametrize("name", ["ratings.dat", "shop.csv"])
def test_a_table_without_a_header_is_read_by_its_order(tmp_path: Path, line: str, name: str) -> None:
    """Also under a name that MovieLens uses; the note says how the columns were read."""
    other = line.replace("1630", "7").replace("4", "2", 1)
    put(tmp_path / name, f"{line}\n{other}\n\n{line.replace('1630', '9')}\n")
    read = read_ratings(tmp_path / name)
    assert (read.user_ids.tolist(), read.item_ids.tolist()) == (["1"], ["7", "9", "1630"])
    assert read.notes[0].startswith("no header: the columns were read as user, item, rating")
    assert (read.time is not None) == (line.count("\t") == 3)
    checked = check_source("shop", tmp_path / name)
    assert checked.usable
    assert checked.notes == read.notes
    put(tmp_path / name, f"{line}\n{line}\n")
    assert check_source("shop", tmp_path / name).problems[0].places == (2,)

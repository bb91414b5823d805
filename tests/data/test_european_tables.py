"""Tables as European organisations export them: decimal commas, the day first, gaps; nothing ambiguous is guessed."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from helpers import make_ratings
from verfedgnn.core.errors import DataError
from verfedgnn.data import read_ratings
from verfedgnn.data.data_check import check_source

Command = Callable[..., tuple[int, str, str]]
HEAD = "user;item;rating;time\n"


def put(path: Path, text: str) -> Path:
    path.write_text(text, "utf-8")
    return path


def columns(texts: list[str]) -> dict[str, list[str]]:
    return {
        "user": [f"u{k}" for k in range(len(texts))],
        "item": [f"i{k % 3}" for k in range(len(texts))],
        "rating": texts,
    }


def written(folder: Path, texts: list[str], kind: str) -> Path:
    """A table with these ratings, as text, in one kind of file."""
    path = folder / f"t.{kind}"
    path.unlink(missing_ok=True)
    table = columns(texts)
    rows = list(zip(*table.values(), strict=True))
    if kind in ("csv", "tsv", "semicolon.csv"):
        with path.open("w", newline="") as file:
            csv.writer(file, delimiter={"csv": ",", "tsv": "\t"}.get(kind, ";")).writerows(
                [tuple(table), *rows]
            )
    elif kind == "parquet":
        pq.write_table(pa.table(table), path)
    else:
        pq.write_table(pa.table({**table, "rating": pa.array(texts).dictionary_encode()}), path)
    return path


KINDS = ["csv", "tsv", "semicolon.csv", "parquet", "categories.parquet"]


# -- decimal commas --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_decimal_commas_are_read_alike_everywhere(tmp_path: Path, kind: str) -> None:
    path = written(tmp_path, ["3,5", "4", " 2,25 ", "-1,0", ",5"], kind)
    assert read_ratings(path).rating.tolist() == [3.5, 4.0, 2.25, -1.0, 0.5]
    found = check_source("t", path)
    assert found.usable
    assert found.shape is not None
    assert (found.shape.lowest, found.shape.highest) == (-1.0, 4.0)


def test_decimal_commas_in_memory() -> None:
    table = columns(["3,5", "4"])
    assert read_ratings(pa.table(table)).rating.tolist() == [3.5, 4.0]
    assert make_ratings(*table.values()).rating.tolist() == [3.5, 4.0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("texts", "first", "remedy"),
    [
        (
            ["5", "1,234", "2,500"],
            "'1,234'",
            "a comma before three digits may be a decimal comma or a thousands separator",
        ),
        (["4.5", "5", "3,5"], "'3,5'", "some ratings have a decimal comma and others a point"),
        (["3,5", "1,2,3"], "'1,2,3'", "correct or remove"),
        (["3,5", "1.234,5"], "'1.234,5'", "correct or remove"),
        (["3,5", "4", "great"], "'great'", "correct or remove"),
    ],
)
def test_what_may_be_something_else_is_an_error(
    tmp_path: Path, kind: str, texts: list[str], first: str, remedy: str
) -> None:
    path = written(tmp_path, texts, kind)
    with pytest.raises(DataError, match="is not a number") as caught:
        read_ratings(path)
    assert f"the rating {first} in " in str(caught.value)
    assert remedy in str(caught.value)
    found = check_source("t", path)
    assert not found.usable
    assert [p.kind for p in found.problems if p.fatal] == ["not-a-number"]


def test_a_scale_tells_decimals_from_thousands(tmp_path: Path) -> None:
    path = written(tmp_path, ["4,125", "3,333"], "csv")
    assert read_ratings(path, scale=(1, 5)).rating.tolist() == pytest.approx([4.125, 3.333])
    assert check_source("t", path, scale=(1, 5)).usable
    with pytest.raises(DataError, match=r"scale=\(1, 5\)"):
        read_ratings(path)
    with pytest.raises(DataError, match="thousands"):
        read_ratings(path, scale=(0, 10_000))
    # Here another rating tells: no thousands end in two digits, or begin with a zero.
    assert read_ratings(written(tmp_path, ["4,125", "3,33"], "csv")).rating.tolist() == pytest.approx(
        [4.125, 3.33]
    )
    assert read_ratings(written(tmp_path, ["4,125", "0,125"], "csv")).rating.tolist() == pytest.approx(
        [4.125, 0.125]
    )


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.decimals(-20, 2000, places=2) | st.decimals(0, 5, places=3), min_size=1, max_size=12),
    st.sampled_from(["csv", "parquet"]),
)
def test_a_comma_is_worth_a_point_or_refused(tmp_path: Path, values: list[object], kind: str) -> None:
    """Never another number; and refused only where every comma stands before three digits."""
    texts = [str(value) for value in values]
    points = read_ratings(written(tmp_path, texts, kind))
    path = written(tmp_path, [text.replace(".", ",") for text in texts], kind)
    if all(len(text.partition(".")[2]) == 3 for text in texts):
        assume(any(text.lstrip("-").startswith("0") for text in texts))
    commas = read_ratings(path)
    assert commas.rating.tolist() == points.rating.tolist()
    assert check_source("t", path).usable


# -- the day first ---------------------------------------------------------------------------------------------------------


def times_of(folder: Path, times: list[str]) -> tuple[list[str] | None, tuple[str, ...]]:
    lines = "".join(f"u{k};i;{1 + k % 5};{time}\n" for k, time in enumerate(times))
    ratings = read_ratings(put(folder / "t.csv", HEAD + lines))
    return None if ratings.time is None else np.array(ratings.time, "datetime64[s]").astype(
        str
    ).tolist(), ratings.notes


@pytest.mark.parametrize(
    ("times", "iso"),
    [
        (["31.12.2025", "1.2.2025"], ["2025-12-31T00:00:00", "2025-02-01T00:00:00"]),
        (["01.02.2025 18:05", "03.04.2025 9:05:59"], ["2025-02-01T18:05:00", "2025-04-03T09:05:59"]),
        (["1.2.2025, 18:05:00", "2025-02-03"], ["2025-02-01T18:05:00", "2025-02-03T00:00:00"]),
        (["01/02/2025", "31/12/2025 18:05"], ["2025-02-01T00:00:00", "2025-12-31T18:05:00"]),
        (["01/02/2025", "12/31/2025"], ["2025-01-02T00:00:00", "2025-12-31T00:00:00"]),
        (["01-02-2025", "31-12-2025"], ["2025-02-01T00:00:00", "2025-12-31T00:00:00"]),
    ],
)
def test_dates_that_can_be_one_thing(tmp_path: Path, times: list[str], iso: list[str]) -> None:
    assert times_of(tmp_path, times) == (iso, ())


@pytest.mark.parametrize(
    ("times", "words"),
    [
        (
            ["03/04/2025", "12/12/2025"],
            "the day or the month may come first in times such as '03/04/2025': left out, write",
        ),
        (["03-04-2025 10:00"], "such as '03-04-2025 10:00': left out, write them as 2025-12-31 18:05"),
        (["31/12/2025", "12/31/2025"], "the time '12/31/2025' cannot be read like those before it"),
        (["01.02.2025", "31.02.2025"], "the time '31.02.2025' cannot be read like those before it"),
        (["1700000000", "31.12.2025"], "the time '31.12.2025' cannot be read like those before it"),
        (["2025-01-01", "\x1b[31mlater"], r"the time '\x1b[31mlater' cannot"),
        (["anna@example.org", "2025-01-01"], "the times are neither numbers nor dates: left out"),
    ],
)
def test_times_that_are_left_out_say_why(tmp_path: Path, times: list[str], words: str) -> None:
    found, (note,) = times_of(tmp_path, times)
    assert found is None
    assert words in note
    assert "anna" not in note
    found = check_source("t", tmp_path / "t.csv")
    assert note.partition("; check line")[0] in (*found.notes, *(problem.text for problem in found.problems))


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.datetimes(datetime(1990, 1, 1), datetime(2030, 1, 1)), min_size=1, max_size=12),
    st.sampled_from("./-"),
)
def test_a_date_is_read_as_it_was_written_or_not_at_all(
    tmp_path: Path, days: list[datetime], mark: str
) -> None:
    found, _ = times_of(tmp_path, [day.strftime(f"%d{mark}%m{mark}%Y %H:%M:%S") for day in days])
    certain = mark == "." or any(day.day > 12 for day in days)
    assert found == ([day.replace(microsecond=0).isoformat() for day in days] if certain else None)


@pytest.mark.parametrize(
    ("last", "newest"), [("31/12/2024", "2025-02-01"), ("12/31/2024", "2025-01-02"), ("11/12/2024", None)]
)
def test_events_learn_the_order_from_all_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str, newest: str | None
) -> None:
    """The row that tells may come after many batches that do not."""
    monkeypatch.setattr("verfedgnn.data.text_files._BLOCK", 1 << 12)
    path = put(tmp_path / "t.csv", "user,item,time\n" + "1,2,01/02/2025\n" * 2000 + f"1,2,{last}\n")
    ratings = read_ratings(path, events=1.0)
    if newest is None:
        assert ratings.time is None
        assert "'01/02/2025'" in ratings.notes[-1] or "'11/12/2024'" in ratings.notes[-1]
    else:
        assert ratings.time is not None
        assert datetime.fromtimestamp(ratings.time[0], UTC).date().isoformat() == newest


# -- rows that lack something ----------------------------------------------------------------------------------------------

GAPS = (
    HEAD + "anna;x;3,5;31.12.2025\nben;y;;\n;z;4;soon\nanna;;4;1.1.2025\ncleo;y;NA;\ncleo;x;4,5;30.12.2025\n"
)


def test_rows_with_gaps_are_left_out_when_it_is_said(tmp_path: Path) -> None:
    path = put(tmp_path / "t.csv", GAPS)
    with pytest.raises(DataError, match='missing="drop"'):
        read_ratings(path)
    ratings = read_ratings(path, missing="drop")
    assert ratings.rating.tolist() == [3.5, 4.5]
    assert ratings.user_ids.tolist() == ["anna", "cleo"]
    assert ratings.time is not None
    assert np.diff(ratings.time).tolist() == [-86_400]
    assert ratings.notes == (
        "ratings were read with a decimal comma",
        "4 rows have no user, item or rating: left out",
    )


def test_lines_are_still_those_of_the_file(tmp_path: Path) -> None:
    path = put(tmp_path / "t.csv", GAPS + "cleo;x;1;30.12.2025\ncleo;w;1e300;30.12.2025\n")
    with pytest.raises(DataError, match=r"infinite .* in line 9 of t\.csv"):
        read_ratings(path, missing="drop")
    path.write_text(GAPS + "cleo;x;1;30.12.2025\n")
    with pytest.raises(DataError, match=r"line 7 of t\.csv and line 8"):
        read_ratings(path, missing="drop")


def test_every_row_has_a_gap(tmp_path: Path) -> None:
    path = put(tmp_path / "t.csv", "user,item,rating\n1,2,\n,3,4\n")
    with pytest.raises(DataError, match="has no ratings"):
        read_ratings(path, missing="drop")
    assert not check_source("t", path, missing="drop").usable


def test_gaps_in_parquet_with_titles(tmp_path: Path) -> None:
    table = {
        "user": [1, None, 3],
        "item": ["a", "b", "c"],
        "rating": [1.0, 2.0, float("nan")],
        "title": ["A", "B", "C"],
    }
    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    ratings = read_ratings(tmp_path / "t.parquet", missing="drop")
    assert ratings.titles is not None
    assert (ratings.user_ids.tolist(), ratings.titles.tolist()) == (["1"], ["A"])


def test_gaps_in_events(tmp_path: Path) -> None:
    path = put(
        tmp_path / "t.csv", "user,item,event,time\n1,2,view,5\n,2,view,\n1,,view,6\n1,2,,7\n1,2,view,8\n"
    )
    with pytest.raises(DataError, match=r'no user, the first in line 3 of t\.csv.*missing="drop"'):
        read_ratings(path, events={"view": 1.0})
    ratings = read_ratings(path, events={"view": 1.0}, missing="drop")
    assert ratings.notes[1] == "3 rows have no user, item or event: left out"
    assert ratings.notes[0].startswith("2 events became 1 rating ")
    assert ratings.time is not None
    assert ratings.time.tolist() == [8]


def test_gaps_in_a_publishers_layout(tmp_path: Path) -> None:
    path = put(tmp_path / "u.data", "1\t2\t3\t881250949\n1\t3\t\t881250949\n2\t\t4\t881250949\n")
    ratings = read_ratings(path, missing="drop")
    assert len(ratings) == 1
    assert ratings.scale == (1.0, 5.0)
    assert ratings.notes == ("2 rows have no user, item or rating: left out",)


CELLS = st.sampled_from(["1", "2", "", "  ", "3", "NA"])


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(CELLS, CELLS, st.sampled_from(["1", "4,5", "", "nan"]), st.sampled_from(["", "31.12.2025"]))
    )
)
def test_leaving_out_is_reading_the_table_without_them(tmp_path: Path, rows: list[tuple[str, ...]]) -> None:
    full = [row for row in rows if row[0].strip() and row[1].strip() and row[2] not in ("", "nan")]
    assume(full)
    parts = [HEAD + "".join(";".join(row) + "\n" for row in part) for part in (rows, full)]
    dropped = read_ratings(put(tmp_path / "a.csv", parts[0]), missing="drop", duplicates="mean")
    without = read_ratings(put(tmp_path / "b.csv", parts[1]), duplicates="mean")
    for name in ("user", "item", "rating", "user_ids", "item_ids"):
        assert np.array_equal(getattr(dropped, name), getattr(without, name)), name
    assert (dropped.time is None) == (without.time is None)
    assert any("left out" in note and "no user" in note for note in dropped.notes) == (len(full) < len(rows))


# -- the commands ----------------------------------------------------------------------------------------------------------


def test_check_names_the_option_and_says_how_many(command: Command, tmp_path: Path) -> None:
    path = put(tmp_path / "t.csv", GAPS)
    code, out, _ = command("data", "check", path)
    assert code == 2
    assert (
        "2 rows have a rating that is missing or NaN (lines 3, 6): fill it in, or leave them out with --read missing=drop"
        in out
    )
    code, out, _ = command("data", "check", path, "--read", "missing=drop")
    assert code == 0
    assert "warning 2 rows have a rating that is missing or NaN: left out (lines 3, 6)" in out
    assert "2 ratings by 2 users on 1 item" in out
    code, _, err = command("data", "check", path, "--read", "films:missing=drop")
    assert code == 2
    assert "names an unknown source" in err


def test_a_run_remembers_what_was_left_out(command: Command, tmp_path: Path) -> None:
    rows = "".join(
        f"u{u};i{i};{1 + (u + i) % 5},5;{1 + u}.{1 + i}.2025\n" for u in range(9) for i in range(6)
    )
    path = put(tmp_path / "t.csv", HEAD + rows + ";i1;3;1.1.2025\n")
    words = (
        "--data",
        path,
        "--parties",
        2,
        "--set",
        "epochs=1",
        "--set",
        "split.fractions=[0.6, 0.2, 0.2]",
        "--set",
        "final=false",
        "--out",
        tmp_path / "run",
    )
    code, _, err = command("train", *words)
    assert code == 2
    assert "--read missing=drop" in err
    code, _, err = command("train", *words, "--read", "missing=drop")
    assert code == 0, err
    about = json.loads((tmp_path / "run" / "metrics.json").read_text())["data"]
    assert all("1 row has no user, item or rating: left out" in party["notes"] for party in about)


def test_check_names_lines_and_shows_no_values(command: Command, tmp_path: Path) -> None:
    lines = [
        "anna,Alien,4,2025-01-01",
        "anna,Brazil,\x1b[31mgreat\u202e[bold],2025-01-01",
        "ben,Alien,anna,2025-01-01",
        f"ben,Dune,{'x' * 99},2025-01-01",
        "cleo,Dune,7,2025-01-01",
        "cleo,Alien,5,2175-01-01 10:00:00",
        *(f"dora,film {k},3,2025-01-01" for k in range(5)),
    ]
    path = put(tmp_path / "t.csv", "user,item,rating,time\n" + "\n".join(lines) + "\n")
    _, out, _ = command("data", "check", path, "--read", "scale=1,5")
    assert "\x1b[31m" not in out
    assert "\u202e" not in out
    problems = out.split("ratings   ")[0]
    assert "(lines 3, 4, 5)" in problems
    assert "(line 6)" in problems
    assert "(line 7)" in problems
    for name in ("anna", "ben", "cleo", "Alien", "Dune"):
        assert name not in problems
    _, out, _ = command("data", "check", path, "--read", "scale=1,5", "--json")
    places = {p["kind"]: p["places"] for p in json.loads(out)["sources"][0]["problems"]}
    assert places["off-scale"] == [6]
    assert places["not-a-number"] == [3, 4, 5]
    assert "anna" not in out


def test_a_column_that_is_none_of_ratings_is_not_shown(command: Command, tmp_path: Path) -> None:
    path = put(tmp_path / "t.csv", "user,item,name\n1,2,Anna Example\n2,3,Ben Example\n3,3,4\n")
    code, out, _ = command("data", "check", path, "--columns", "rating=name")
    assert code == 2
    assert "name the column of ratings with --columns rating=..." in out
    assert "Example" not in out


def test_a_blank_time_is_a_missing_one(tmp_path: Path) -> None:
    for first in ("2025-12-31", "31.12.2025", "1767139200"):
        table = read_ratings(put(tmp_path / "t.csv", f"{HEAD}u;a;3;{first}\nv;b;4; \n"))
        assert table.time is None
        assert table.notes == ("1 row has no time: all times are left out; check line 3 of t.csv",)


def test_times_in_categories_are_read_like_others(tmp_path: Path) -> None:
    table = pa.table(
        columns(["3", "4", "5"])
        | {"time": pa.array(["31.12.2025", "1.2.2025", "1.2.2025"]).dictionary_encode()}
    )
    pq.write_table(table, tmp_path / "t.parquet")
    found = read_ratings(tmp_path / "t.parquet")
    assert found.time is not None
    assert found.time[0] - found.time[1] == 333 * 86_400


def test_ids_that_programs_write_for_nobody_are_warned_of(tmp_path: Path) -> None:
    found = check_source("t", put(tmp_path / "t.csv", "user,item,rating\nNA,a,3\nNULL,b,4\nbob,b,4\n"))
    (warning,) = [problem for problem in found.problems if problem.kind == "named-nothing-user"]
    assert (warning.count, warning.places, warning.fatal) == (2, (2, 3), False)


def test_numbers_of_python_are_numbers() -> None:
    assert make_ratings(["a", "b"], ["x", "y"], [Fraction(1, 2), 2]).rating.tolist() == [0.5, 2.0]
    assert make_ratings(["a", "b"], ["x", "y"], [10**30, 2]).rating.tolist() == [np.float32(1e30), 2.0]


@pytest.mark.parametrize("missing", ["error", "drop"])
def test_every_column_has_an_entry_for_each_rating(missing: str) -> None:
    for about in ({"time": [1]}, {"titles": ["t"]}, {"columns": {"kind": ["k"]}}):
        with pytest.raises(DataError, match="give one of each per row"):
            make_ratings(
                ["a", None if missing == "drop" else "b"], ["x", "y"], [1, 2.0], missing=missing, **about
            )


def test_that_a_comma_was_taken_for_a_point_is_noted(tmp_path: Path) -> None:
    found = read_ratings(put(tmp_path / "t.csv", f"{HEAD}u;a;3,5;1\nv;b;4;2\n"))
    assert "ratings were read with a decimal comma" in found.notes

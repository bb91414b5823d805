"""A prepared folder holds the same table as the files it was made from, to the bit, with the same errors and notes."""

import ast
import os
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import verfedgnn.data.preparation as preparation
from verfedgnn.config import Config
from verfedgnn.core.errors import DataError
from verfedgnn.data import Ratings, read_parties, read_ratings, split_by_rating, split_by_time
from verfedgnn.data.preparation import ChunkSizes, prepare_ratings
from verfedgnn.data.prepared_folder import DESCRIPTION, WORK
from verfedgnn.training.train import train

SMALL = ChunkSizes(engine=256 << 20, piece=3, shard=4)
WEIGHTS = {"view": 1.0, "cart": 2.5, "purchase": 5.0, "hover": 0.0}
REUSED = settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divide small tables into many chunks and shards."""
    monkeypatch.setattr(ChunkSizes, "for_memory", classmethod(lambda cls, memory, threads: SMALL))


def assert_same(one: Ratings, other: Ratings) -> None:
    for name in ("user", "item", "rating", "time", "user_ids", "item_ids"):
        a, b = getattr(one, name), getattr(other, name)
        assert (a is None) == (b is None), name
        if a is not None:
            assert a.dtype == b.dtype
            assert a.tobytes() == b.tobytes(), name
    texts = [{"title": table.titles, **table.columns} for table in (one, other)]
    assert texts[0].keys() == texts[1].keys()
    for name, values in texts[0].items():
        assert (values is None) == (texts[1][name] is None)
        assert values is None or values.tolist() == texts[1][name].tolist()
    for name in ("scale", "scale_declared", "catalogue"):
        assert getattr(one, name) == getattr(other, name), name
    # Which time cannot be read, and why, depends on how many rows are looked at together.
    notes = [
        [re.sub("^(the times? .*|the day or .*)", "unreadable", note) for note in t.notes]
        for t in (one, other)
    ]
    assert notes[0] == notes[1]


def attempt(read: Any) -> Ratings | str:
    try:
        return read()
    except DataError as error:
        return str(error)


def assert_prepared_alike(path: Path, out: Path, **options: Any) -> None:
    """Compare what both ways return or report."""
    expected = attempt(lambda: read_ratings(path, **options))
    found = attempt(lambda: prepare_ratings([path], out, **options))
    if isinstance(expected, Ratings):
        assert isinstance(found, Ratings), found
        assert_same(expected, found)
        assert not (out / WORK).exists()
    else:
        assert found == expected
        assert not out.exists()


def fresh(folder: Path) -> Path:
    return folder / f"out-{len(list(folder.iterdir()))}"


NUMBERS = st.integers(-3, 12)
TEXTS = st.sampled_from(["7", "007", "a", "b ", " b", "é", "Zoë", "", None, "10"])
TIMES = st.one_of(
    st.lists(st.integers(0, 3 * 10**11), min_size=12, max_size=12),
    st.lists(st.one_of(st.none(), st.integers(0, 50)), min_size=12, max_size=12),
    st.lists(st.sampled_from(["2025-01-02", "2024-12-31 18:05", "2025-06-07"]), min_size=12, max_size=12),
    st.lists(st.sampled_from(["3/4/2025", "13/4/2025", "soon"]), min_size=12, max_size=12),
    st.lists(st.floats(0, 2e12), min_size=12, max_size=12),
)
COLUMNS = {
    "user": st.one_of(st.lists(NUMBERS, min_size=12, max_size=12), st.lists(TEXTS, min_size=12, max_size=12)),
    "item": st.one_of(st.lists(NUMBERS, min_size=12, max_size=12), st.lists(TEXTS, min_size=12, max_size=12)),
    "time": TIMES,
    "title": st.lists(st.sampled_from(["Lamp", "", None, "Ähre"]), min_size=12, max_size=12),
}


@REUSED
@given(
    st.fixed_dictionaries(
        {**COLUMNS, "event": st.lists(st.sampled_from([*WEIGHTS, " view"]), min_size=12, max_size=12)}
    ),
    st.sampled_from([WEIGHTS, 2.0, {"view": 1.0, "cart": 2.0}]),
    st.sampled_from(["drop", "error"]),
)
def test_events(tmp_path: Path, columns: dict[str, Any], events: Any, missing: str) -> None:
    path = tmp_path / "events.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=5)
    assert_prepared_alike(path, fresh(tmp_path), events=events, missing=missing)


@REUSED
@given(
    st.fixed_dictionaries(
        {
            **COLUMNS,
            "rating": st.one_of(
                st.lists(st.sampled_from([1.0, 2.5, 5.0]), min_size=12, max_size=12),
                st.lists(st.sampled_from([1.0, float("nan"), None, 1e39]), min_size=12, max_size=12),
                st.lists(st.sampled_from(["1,5", "2", "NA", "4,0"]), min_size=12, max_size=12),
                st.lists(st.sampled_from(["1", "two"]), min_size=12, max_size=12),
            ),
        }
    ),
    st.sampled_from(["error", "first", "last", "mean"]),
    st.sampled_from(["drop", "error"]),
    st.sampled_from([None, (1.0, 5.0), (2.0, 5.0)]),
)
def test_ratings(
    tmp_path: Path, columns: dict[str, Any], duplicates: str, missing: str, scale: tuple[float, float] | None
) -> None:
    path = tmp_path / "ratings.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=5)
    assert_prepared_alike(path, fresh(tmp_path), duplicates=duplicates, missing=missing, scale=scale)


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    rng = np.random.default_rng(0)
    return pa.table(
        {
            "user": rng.integers(0, 9, 60),
            "item": [f"i{k}" for k in rng.integers(0, 8, 60)],
            "rating": rng.integers(1, 6, 60).astype(float),
            "time": rng.integers(0, 1000, 60),
        }
    )


class KilledError(BaseException):
    """A kill of the process, as far as files can tell."""


@pytest.mark.parametrize("events", [None, 1.0])
def test_a_killed_preparation_looks_unfinished_and_is_resumed(
    tmp_path: Path, rows: pa.Table, events: float | None
) -> None:
    path, parts = tmp_path / "shop.parquet", tmp_path / "parts"
    pq.write_table(rows, path)
    parts.mkdir()
    for k in range(10):
        pq.write_table(rows.slice(6 * k, 6), parts / f"{k}.parquet")
    options: dict[str, Any] = {"duplicates": "mean"} if events is None else {"events": events}
    expected = read_ratings(path, **options)
    out = tmp_path / "out"
    steps: list[str] = []
    kills = {"ids": 1, "rows": 6, "shards": 2}
    for step, at in kills.items():

        def watch(now: str, done: int, total: int | None, step: str = step, at: int = at) -> None:
            steps.append(now)
            if steps.count(step) == at and now == step:
                raise KilledError

        with pytest.raises(KilledError):
            prepare_ratings([parts], out, progress=watch, **options)
        assert not (out / DESCRIPTION).exists()
        with pytest.raises(DataError, match="has not finished; run the same"):
            read_ratings(out)
        steps.clear()
    found = prepare_ratings([parts], out, progress=lambda now, done, total: steps.append(now), **options)
    assert_same(expected, found)
    assert set(steps) == {"shards"}, "finished steps were taken again"
    assert_same(expected, read_ratings(out))


def test_other_options_do_not_continue_an_unfinished_preparation(tmp_path: Path, rows: pa.Table) -> None:
    path = tmp_path / "shop.parquet"
    pq.write_table(rows, path)

    def stop(step: str, done: int, total: int | None) -> None:
        if step == "shards":
            raise KilledError

    with pytest.raises(KilledError):
        prepare_ratings([path], tmp_path / "out", events=1.0, progress=stop)
    with pytest.raises(DataError, match="unfinished preparation of other files or options"):
        prepare_ratings([path], tmp_path / "out", events=2.0)
    assert len(prepare_ratings([path], tmp_path / "out", events=1.0)) > 0


def test_several_files_are_one_table(tmp_path: Path, rows: pa.Table) -> None:
    whole, parts = tmp_path / "whole.parquet", tmp_path / "parts"
    parts.mkdir()
    pq.write_table(rows, whole)
    pq.write_table(rows.slice(0, 25), parts / "0.parquet")
    pq.write_table(rows.slice(25), parts / "1.parquet")
    assert_same(
        read_ratings(whole, duplicates="last"),
        prepare_ratings([parts], tmp_path / "out", duplicates="last"),
    )
    with pytest.raises(DataError, match=r"in row \d+ of 0\.parquet and row \d+ of"):
        prepare_ratings([parts], tmp_path / "other")
    pq.write_table(rows.drop_columns(["time"]), parts / "2.parquet")
    with pytest.raises(DataError, match="only some have one for time"):
        prepare_ratings([parts], tmp_path / "other")


def test_options_belong_to_the_preparation(tmp_path: Path, rows: pa.Table) -> None:
    path, out = tmp_path / "shop.parquet", tmp_path / "out"
    pq.write_table(rows, path)
    prepare_ratings([path], out, events=1.0, catalogue=30)
    assert read_ratings(out).catalogue == 30
    assert read_ratings(out, catalogue=40).catalogue == 40
    with pytest.raises(DataError, match=r"cannot change .* which is prepared"):
        read_ratings(out, scale=(0, 5))
    with pytest.raises(DataError, match="holds prepared data already"):
        prepare_ratings([path], out)
    with pytest.raises(DataError, match="is prepared already"):
        prepare_ratings([out], tmp_path / "again")
    with pytest.raises(DataError, match="more than the declared catalogue of 3"):
        prepare_ratings([path], tmp_path / "small", events=1.0, catalogue=3)
    assert not (tmp_path / "small").exists()


def test_arrays_stay_on_disk(tmp_path: Path, rows: pa.Table) -> None:
    path = tmp_path / "shop.parquet"
    pq.write_table(rows, path)
    found = prepare_ratings([path], tmp_path / "out", events=1.0)
    for array in (found.user, found.item, found.rating, found.time, found.user_ids, found.item_ids):
        assert array is not None
        assert isinstance(array.base, np.memmap)
        assert not array.flags.writeable


def test_threads_parse_no_headers(tmp_path: Path, rows: pa.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Python 3.11.8, two threads that parse literals can fail with "AST constructor recursion depth mismatch"."""
    parsed: set[threading.Thread] = set()
    parse = ast.literal_eval

    def watched(text: Any) -> Any:
        parsed.add(threading.current_thread())
        return parse(text)

    monkeypatch.setattr(ast, "literal_eval", watched)
    pq.write_table(rows, tmp_path / "rows.parquet")
    for name, options in {"events": {"events": 1.0}, "ratings": {"duplicates": "mean"}}.items():
        prepare_ratings([tmp_path / "rows.parquet"], tmp_path / name, **options)
    assert parsed == {threading.current_thread()}


def test_a_damaged_folder_is_refused(tmp_path: Path, rows: pa.Table) -> None:
    path, out = tmp_path / "shop.parquet", tmp_path / "out"
    pq.write_table(rows, path)
    prepare_ratings([path], out, events=1.0)
    (out / "rating.npy").write_bytes((out / "rating.npy").read_bytes()[:-8])
    with pytest.raises(DataError, match=r"is damaged .*; prepare it again"):
        read_ratings(out)


def test_little_memory_makes_small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    large, small = (ChunkSizes.for_memory(memory, 2) for memory in (4 << 30, 1 << 30))
    assert small.engine == large.engine // 4
    assert small.piece == large.piece // 4
    with pytest.raises(DataError, match="is too little"):
        ChunkSizes.for_memory(preparation.LEAST_MEMORY - 1, 2)


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """ML-100K as a plain table, and the folder that is prepared from it."""
    folder = os.environ.get("VERFEDGNN_DATA")
    if not folder or not (Path(folder) / "ml-100k").exists():
        pytest.skip("ml-100k is not in VERFEDGNN_DATA")
    place = tmp_path_factory.mktemp("film")
    ratings = read_ratings("ml-100k")
    columns = {
        "user": ratings.user_ids[ratings.user].astype(np.int64),
        "item": ratings.item_ids[ratings.item],
        "rating": ratings.rating,
        "time": ratings.time,
    }
    pq.write_table(pa.table(columns), place / "film.parquet")
    with pytest.MonkeyPatch.context() as patch:
        sizes = ChunkSizes(engine=256 << 20, piece=5_000, shard=30_000)
        patch.setattr(ChunkSizes, "for_memory", classmethod(lambda cls, memory, threads: sizes))
        prepare_ratings([place / "film.parquet"], place / "prepared")
    return place / "film.parquet", place / "prepared"


def test_a_training_from_the_folder_equals_one_from_the_file(film: tuple[Path, Path]) -> None:
    config = Config.preset("best", epochs=1, gate=False, lists=False)
    public = [train(read_parties(str(source), parties=2), config).public for source in film]
    assert public[0].numpy().tobytes() == public[1].numpy().tobytes()


def test_the_parts_of_a_split_are_those_of_the_file(film: tuple[Path, Path]) -> None:
    tables = [read_ratings(source) for source in film]
    assert_same(*tables)
    for split in (split_by_rating, split_by_time):
        assert split(tables[0]).tobytes() == split(tables[1]).tobytes()

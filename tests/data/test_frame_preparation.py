"""A data frame of any engine becomes the same prepared folder as a Parquet file with its rows, to the bit."""

import importlib.util
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

import verfedgnn as vf
from verfedgnn.core.errors import DataError
from verfedgnn.data import frame_preparation
from verfedgnn.data.preparation import ChunkSizes
from verfedgnn.data.prepared_folder import WORK

ROWS = 3_000
EVENTS = {"view": 1.0, "buy": 5.0}


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divide small tables into many chunks, shards and row groups."""
    sizes = ChunkSizes(engine=256 << 20, piece=50, shard=400)
    monkeypatch.setattr(ChunkSizes, "for_memory", classmethod(lambda cls, memory, threads: sizes))
    monkeypatch.setattr(frame_preparation, "_GROUP", 700)


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    rng = np.random.default_rng(0)
    item = rng.integers(0, 90, ROWS)
    return pa.table(
        {
            "pages": rng.integers(0, 900, ROWS),
            "customer": [f"c{k}" for k in rng.integers(0, 200, ROWS)],
            "item.no": item,
            "stars": rng.integers(1, 6, ROWS).astype(float),
            "event": np.array(["view", "buy"])[rng.integers(0, 2, ROWS)],
            "time": pa.array(1_700_000_000_000_000 + 10**6 * np.arange(ROWS), pa.timestamp("us", "UTC")),
            "title": [f"Title {k}" for k in item],
        }
    )


@pytest.fixture(scope="module")
def parquet(rows: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "shop.parquet"
    pq.write_table(rows, path, row_group_size=800)
    return path


OPTIONS: list[dict[str, Any]] = [
    {"columns": {"item": "item.no", "rating": "stars"}, "duplicates": "last", "keep": ["pages"]},
    {"columns": {"item": "item.no"}, "events": EVENTS, "catalogue": 500},
]


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


OF_FILES: dict[tuple[str, str], dict[str, bytes]] = {}
"""What a preparation of a file writes, by file and options."""


def assert_alike(frame: Any, parquet: Path, place: Path, options: dict[str, Any]) -> None:
    """Compare the folders of a frame and of the file, byte by byte. A file is prepared once with the same options."""
    made, found = (str(parquet), str(options)), place / "of-frame"
    if made not in OF_FILES:
        vf.prepare(parquet, place / "of-file", **options)
        OF_FILES[made] = files_of(place / "of-file")
    ratings = vf.prepare(frame, found, **options)
    assert files_of(found) == OF_FILES[made]
    assert len(vf.read_ratings(found)) == len(ratings)
    assert not (found / WORK).exists()


class FakeSpark:
    """What the adapter uses of a Spark frame: two partitions, whose batches go through pickled code."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows
        self.columns = rows.column_names

    def select(self, *quoted: str) -> "FakeSpark":
        return FakeSpark(self._rows.select([name.strip("`") for name in quoted]))

    def toDF(self, *names: str) -> "FakeSpark":
        return FakeSpark(self._rows.rename_columns(list(names)))

    def mapInArrow(self, encode: Any, schema: str) -> "FakeSpark":
        assert schema == "batch binary"
        self._encode = encode
        return self

    def toLocalIterator(self) -> Iterator[tuple[bytearray]]:
        half = self._rows.num_rows // 2
        for part in (self._rows.slice(0, half), self._rows.slice(half)):
            for batch in self._encode(iter(part.to_batches(max_chunksize=100))):
                yield from ((bytearray(value),) for value in batch.column("batch").to_pylist())


class FakeRay:
    """What the adapter uses of a data set of Ray."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows

    def columns(self) -> list[str]:
        return list(self._rows.column_names)

    def select_columns(self, columns: list[str]) -> "FakeRay":
        return FakeRay(self._rows.select(columns))

    def iter_batches(self, *, batch_size: int | None, batch_format: str) -> Iterator[pa.Table]:
        assert (batch_size, batch_format) == (None, "pyarrow")
        yield self._rows.slice(0, 0)
        yield from (self._rows.slice(start, 450) for start in range(0, ROWS, 450))


FRAMES = {
    "spark": FakeSpark,
    "ray": FakeRay,
    "polars": pl.from_arrow,
    "lazy polars": lambda rows: pl.from_arrow(rows).lazy(),
    "pandas": lambda rows: rows.to_pandas(),
    "reader": lambda rows: rows.to_reader(max_chunksize=40),
    "table": lambda rows: rows,
    "dataset": pa.dataset.dataset,
}


@pytest.mark.parametrize("options", OPTIONS, ids=["ratings", "events"])
@pytest.mark.parametrize("engine", FRAMES)
def test_a_frame_equals_a_file(
    rows: pa.Table, parquet: Path, tmp_path: Path, engine: str, options: dict[str, Any]
) -> None:
    assert_alike(FRAMES[engine](rows), parquet, tmp_path, options)


def test_the_engine_filters_and_joins(rows: pa.Table, tmp_path: Path) -> None:
    frame = pl.from_arrow(rows)
    assert isinstance(frame, pl.DataFrame)
    stock = pl.LazyFrame({"item.no": range(40)})
    query = frame.lazy().join(stock, on="item.no", maintain_order="left").filter(pl.col("stars") > 2)
    query.sink_parquet(tmp_path / "query.parquet")
    assert_alike(query, tmp_path / "query.parquet", tmp_path, OPTIONS[0])


def test_only_the_needed_columns_are_stored(rows: pa.Table, tmp_path: Path) -> None:
    seen: set[str] = set()

    def watch(step: str, done: int, total: int | None) -> None:
        if step == "ids":
            seen.update(pq.read_schema(tmp_path / "out" / WORK / frame_preparation.STORED).names)

    vf.prepare(FakeSpark(rows), tmp_path / "out", progress=watch, **OPTIONS[1])
    assert seen == {"user", "item", "event", "time", "title"}


class KilledError(BaseException):
    """A kill of the process, as far as files can tell."""


@pytest.mark.parametrize("step", ["frame", "ids", "rows", "shards"])
def test_a_killed_preparation_of_a_frame_starts_over(
    rows: pa.Table, parquet: Path, tmp_path: Path, step: str
) -> None:
    out = tmp_path / "of-frame"

    def kill(now: str, done: int, total: int | None) -> None:
        if now == step:
            raise KilledError

    with pytest.raises(KilledError):
        vf.prepare(rows.slice(0, 2_000), out, progress=kill, **OPTIONS[0])
    with pytest.raises(DataError, match="has not finished"):
        vf.read_ratings(out)
    assert_alike(rows, parquet, tmp_path, OPTIONS[0])


def test_a_frame_does_not_replace_other_files(rows: pa.Table, parquet: Path, tmp_path: Path) -> None:
    def kill(now: str, done: int, total: int | None) -> None:
        raise KilledError

    with pytest.raises(KilledError):
        vf.prepare(parquet, tmp_path / "out", progress=kill, **OPTIONS[0])
    with pytest.raises(DataError, match="unfinished preparation of other files"):
        vf.prepare(rows, tmp_path / "out", **OPTIONS[0])
    home = tmp_path / "home"
    (home / WORK).mkdir(parents=True)
    (home / "thesis.npy").write_bytes(b"precious")
    with pytest.raises(DataError, match="holds other files"):
        vf.prepare(rows, home, **OPTIONS[0])
    assert (home / "thesis.npy").exists()


def test_mistakes_are_named(rows: pa.Table, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(DataError, match="a pyarrow Table: no column for item"):
        vf.prepare(rows.drop_columns(["item.no"]), out, events=1.0)
    with pytest.raises(DataError, match="has no rows"):
        vf.prepare(rows.slice(0, 0), out, **OPTIONS[0])
    with pytest.raises(DataError, match=r"row \d+ of the data frame and row \d+ of"):
        vf.prepare(rows, out, columns=OPTIONS[0]["columns"])
    with pytest.raises(DataError, match="a builtins set does not deliver Arrow batches"):
        vf.prepare({1, 2}, out)
    with pytest.raises(DataError, match="delimiter: an option for files"):
        vf.prepare(rows, out, delimiter=";")
    with pytest.raises(DataError, match="memory takes a size"):
        vf.prepare(rows, out, memory="much")
    mixed = FakeRay(rows)
    other = rows.set_column(2, "item.no", pa.array(["A"] * ROWS))
    mixed.iter_batches = lambda **_: iter([rows, other])  # type: ignore[assignment, method-assign]
    mixed.select_columns = lambda columns: mixed  # type: ignore[method-assign]
    with pytest.raises(DataError, match="batches of the data frame have different types"):
        vf.prepare(mixed, out, **OPTIONS[0])
    assert not out.exists()


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    if importlib.util.find_spec("pyspark") is None or shutil.which("java") is None:
        pytest.skip("needs pyspark and Java")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = builder.config("spark.sql.execution.arrow.maxRecordsPerBatch", "300").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("options", OPTIONS, ids=["ratings", "events"])
def test_a_local_spark_session(spark: Any, parquet: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    frame = spark.read.parquet(str(parquet)).repartition(5).sortWithinPartitions("time")
    ordered = frame.sort("time")  # Four partitions or more, in the order of the file.
    assert_alike(ordered, parquet, tmp_path, options)


@pytest.mark.filterwarnings("default")
def test_executors_of_spark_need_pyarrow_alone(rows: pa.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    cloudpickle = pytest.importorskip("pyspark.cloudpickle", reason="needs pyspark")
    sent: list[Any] = []
    monkeypatch.setattr(FakeSpark, "mapInArrow", lambda frame, encode, schema: sent.append(encode) or frame)
    monkeypatch.setattr(FakeSpark, "toLocalIterator", lambda frame: iter(()))
    assert not list(frame_preparation._spark_batches(FakeSpark(rows), ["stars"]))
    program = (
        "import sys, pickle, pyarrow as pa; sys.modules['verfedgnn'] = None; "
        "encode = pickle.loads(bytes.fromhex(sys.stdin.read())); "
        "print(next(encode([pa.record_batch({'a': [1]})])).num_rows)"
    )
    code = cloudpickle.dumps(sent[0])
    assert pickle.loads(code) is not None
    done = subprocess.run(
        [sys.executable, "-c", program], input=code.hex(), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "1"


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("options", OPTIONS, ids=["ratings", "events"])
def test_a_local_ray_cluster(parquet: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("needs ray[data]")
    import ray

    ray.init(num_cpus=2, include_dashboard=False, ignore_reinit_error=True, log_to_driver=False)
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    assert_alike(ray.data.read_parquet(str(parquet)), parquet, tmp_path, options)
    ray.shutdown()

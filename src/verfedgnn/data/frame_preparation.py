"""Preparation of data frames that are larger than memory, from any engine that delivers Arrow batches.

The engine (Spark, Ray Data, polars, pyarrow) joins and filters, and delivers each batch once. The columns that are
needed are stored in a Parquet file in the work folder, and `prepare_ratings` goes on from there: it reads rows more than
once, and an engine may order or compute them differently the second time.
"""

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from verfedgnn.core.errors import DataError
from verfedgnn.core.files import check_writable, lock_folder, writing
from verfedgnn.data.column_names import match_columns
from verfedgnn.data.event_ratings import required_columns
from verfedgnn.data.ids import TEXT
from verfedgnn.data.preparation import (
    PLAN,
    Progress,
    check_out,
    no_progress,
    other_preparation,
    parse_memory,
    prepare_ratings,
)
from verfedgnn.data.prepared_folder import WORK
from verfedgnn.data.ratings import Ratings

STORED = "the data frame"
"""File of the stored rows. Messages name its rows: row 3 of the data frame."""
_GROUP = 1 << 18
"""Rows of a row group of the stored file; so many are in memory at a time."""

Batches = Iterable[Any]
"""Batches or tables that export Arrow."""


def prepare(
    source: Any,
    out: str | Path,
    *,
    memory: str | int = "4GB",
    threads: int = 2,
    progress: Progress = no_progress,
    **options: Any,
) -> Ratings:
    """Prepare the ratings or events of one party in the folder `out`, and return them, mapped from there.

    The result equals `read_ratings` of a Parquet file with the same rows, to the bit. `read_ratings` and all commands
    accept the folder. Files are resumed after a kill; a data frame is read again from its start. Needs DuckDB:
    `pip install 'verfedgnn[sql]'`.

    Args:
        source: A DataFrame of Spark, a Dataset of Ray or pyarrow, a LazyFrame of polars, any object that exports an Arrow
            stream (`__arrow_c_stream__`), or one or several files or folders of files.
        out: A new folder.
        memory: Most memory to use, such as "4GB"; the engine's own comes on top.
        threads: Number of threads.
        progress: Function that is told how far each step is.
        **options: Options of `read_ratings`: columns, events, duplicates, missing, scale, catalogue and keep.
    """
    limit = parse_memory(memory) if isinstance(memory, str) else memory
    go_on = partial(prepare_ratings, out=out, memory=limit, threads=threads, progress=progress)
    if isinstance(source, str | Path):
        return go_on([source], **options)
    if isinstance(source, list | tuple) and all(isinstance(each, str | Path) for each in source):
        return go_on(source, **options)
    given = {name: value for name, value in options.items() if value is not None}
    keep = given.pop("keep", ())
    unknown = given.keys() - {"columns", "missing", "duplicates", "events", "scale", "catalogue"}
    if unknown:
        raise DataError(f"{', '.join(sorted(unknown))}: an option for files; leave it out for a data frame")
    there, read = open_frame(source)
    required = required_columns(given.get("events"))
    names = match_columns(
        there, given.get("columns", {}), required=required, keep=keep, source=f"a {_kind(source)}"
    )
    folder = Path(out)
    check_writable(folder)
    check_out(folder)
    stored = folder / WORK / STORED
    with writing(folder), lock_folder(folder):
        _clear_unfinished(folder)
        try:
            _store(read(list(names.values())), names, stored, progress)
        except DataError:
            shutil.rmtree(folder)
            raise
    return go_on([stored], **given | {"columns": {role: role for role in names}})


def open_frame(frame: Any) -> tuple[list[str], Callable[[list[str]], Batches]]:
    """Return the names of a frame's columns, and a function that yields the rows of some of them in batches."""
    kind = type(frame)  # A frame has its columns as attributes.
    if hasattr(kind, "mapInArrow"):  # Spark
        return list(frame.columns), partial(_spark_batches, frame)
    if hasattr(kind, "iter_batches") and hasattr(kind, "select_columns"):  # Ray
        return list(frame.columns()), partial(_ray_batches, frame)
    if hasattr(kind, "collect_batches"):  # a lazy frame of polars
        return frame.collect_schema().names(), lambda columns: frame.select(columns).collect_batches()
    if hasattr(kind, "scanner"):  # a data set of pyarrow
        return frame.schema.names, lambda columns: frame.scanner(columns=columns).to_reader()
    if hasattr(kind, "__arrow_c_stream__"):
        try:
            reader = pa.RecordBatchReader.from_stream(frame)
        except (pa.ArrowException, TypeError) as error:
            raise DataError(
                f"a {_kind(frame)} has columns without an Arrow type ({error}); convert them"
            ) from error
        return reader.schema.names, lambda columns: (batch.select(columns) for batch in reader)
    raise DataError(
        f"a {_kind(frame)} does not deliver Arrow batches; give a frame of Spark, Ray, polars or pyarrow, or files"
    )


def _kind(frame: Any) -> str:
    """Return what a frame is, for messages: a pyspark DataFrame."""
    return f"{type(frame).__module__.split('.')[0]} {type(frame).__name__}"


def _spark_batches(frame: Any, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Spark frame partition by partition, so that the driver holds one partition at a time.

    Spark's own `toArrow` collects all of them. Executors encode each batch as one row of bytes, in Arrow's format and
    compressed, because the driver copies a partition several times.
    """

    # A local function travels to executors as code, so that they need pyarrow alone.
    def encode(batches):  # type: ignore[no-untyped-def]
        import pyarrow

        packed = pyarrow.ipc.IpcWriteOptions(compression="zstd")
        for batch in batches:
            sink = pyarrow.BufferOutputStream()
            with pyarrow.ipc.new_stream(sink, batch.schema, options=packed) as writer:
                writer.write_batch(batch)
            yield pyarrow.record_batch({"batch": [sink.getvalue().to_pybytes()]})

    # mapInArrow does not find columns with a point in their name.
    quoted = [f"`{name.replace('`', '``')}`" for name in columns]
    plain = frame.select(*quoted).toDF(*(f"c{k}" for k in range(len(columns))))
    for row in plain.mapInArrow(encode, "batch binary").toLocalIterator():
        with pa.ipc.open_stream(pa.py_buffer(row[0])) as reader:
            yield from (batch.rename_columns(columns) for batch in reader)


def _ray_batches(frame: Any, columns: list[str]) -> Batches:
    """Return the blocks of a Ray data set, as they are computed."""
    found: Batches = frame.select_columns(columns).iter_batches(batch_size=None, batch_format="pyarrow")
    return found


def _clear_unfinished(folder: Path) -> None:
    """Delete what an interrupted preparation of a frame left in a locked folder; raise if it was one of files."""
    work = folder / WORK
    if (work / PLAN).exists():
        if not (work / STORED).exists():
            raise other_preparation(folder)
        for array in folder.glob("*.npy"):
            array.unlink()
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()


def _store(batches: Batches, names: dict[str, str], path: Path, progress: Progress) -> None:
    """Store all rows in a Parquet file with one column per role."""
    rows = 0
    with ExitStack() as closing:
        writer: pq.ParquetWriter | None = None
        for table in _groups(batches):
            roles = pa.table([table[column] for column in names.values()], names=list(names))
            if writer is None:
                schema = _stored_schema(roles.schema)
                writer = closing.enter_context(pq.ParquetWriter(path, schema, compression="zstd"))
            writer.write_table(_cast(roles, writer.schema))
            rows += table.num_rows
            progress("frame", rows, None)
    if not rows:
        raise DataError(f"{STORED} has no rows; give one with at least one row")


def _groups(batches: Batches) -> Iterator[pa.Table]:
    """Yield the rows in tables of about a row group each. Empty batches are left out: they may lack types."""
    waiting: list[pa.Table] = []
    for batch in batches:
        table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else pa.table(batch)
        if table.num_rows:
            waiting.append(table)
        if sum(each.num_rows for each in waiting) >= _GROUP:
            yield _join(waiting)
            waiting = []
    if waiting:
        yield _join(waiting)


def _join(tables: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables([tables[0], *(_cast(table, tables[0].schema) for table in tables[1:])])


def _cast(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a table with the types of the first rows."""
    try:
        return table if table.schema.equals(schema) else table.cast(schema)
    except pa.ArrowException as error:
        raise DataError(
            f"the batches of the data frame have different types ({error}); cast its columns first"
        ) from error


def _stored_schema(schema: pa.Schema) -> pa.Schema:
    """Return the types to store: Parquet has no views of text."""
    return pa.schema([field.with_type(TEXT) if field.type == pa.string_view() else field for field in schema])

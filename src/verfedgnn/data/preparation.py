"""Preparation of ratings or events that are larger than memory: a folder of arrays that a training maps.

The steps, each of which a second call resumes after a kill:

1. *ids*: read all rows once; DuckDB finds the different ids and sorts them (`id_numbers`).
2. *rows*: read them again in chunks; DuckDB replaces ids by numbers.
3. *shards*: ranges of users that fit into memory; events become ratings, repeated pairs are found.
4. *description*: written last, which finishes the folder (`prepared_folder`).
"""

import json
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from numpy.typing import DTypeLike, NDArray

from verfedgnn.core.errors import DataError
from verfedgnn.core.files import check_writable, lock_folder, write_bytes, writing
from verfedgnn.core.option_names import option
from verfedgnn.data.event_ratings import EventWeights, note_counts, required_columns
from verfedgnn.data.id_numbers import IdNumbers
from verfedgnn.data.prepared_folder import (
    DESCRIPTION,
    WORK,
    column_file,
    describe_folder,
    growing_array,
    is_prepared,
    read_prepared,
    write_array,
    write_prepared,
)
from verfedgnn.data.rating_reader import find_layout, list_tables, locate, read_ratings
from verfedgnn.data.rating_shards import ChunkFiles, EventShard, divide_users, find_repeated, rate_shard
from verfedgnn.data.ratings import Ratings, check_catalogue, check_options, note_repeated, repeated_pairs
from verfedgnn.data.row_stream import EventRows, RatingRows, RowTables, TimeCounts
from verfedgnn.data.source_address import is_address, redact
from verfedgnn.data.table_sources import ParquetSource, is_inter, open_table, table_stem
from verfedgnn.data.time_parsing import AS_MILLISECONDS, note_missing_times

LEAST_MEMORY = 256 << 20
_BYTES_A_PIECE_ROW = 64
_BYTES_A_SHARD_ROW = 96
_PIECES = 8
"""Pieces of a chunk, after which a preparation can be resumed. For each chunk DuckDB reads all ids again."""
_PART = 1 << 20
"""Number of entries that are copied at once."""

PLAN = "plan.json"
"""File in the work folder that says what is prepared, and in parts of which sizes."""
Progress = Callable[[str, int, int | None], None]
"""Called with the step, the rows done in it, and all rows of it, None if unknown."""


@dataclass(frozen=True)
class ChunkSizes:
    """Sizes of the parts that are in memory at a time."""

    engine: int
    """Memory of DuckDB in bytes."""
    piece: int
    """Rows that are numbered and stored at a time."""
    shard: int
    """About how many rows a shard of users has; they are sorted in memory."""

    @classmethod
    def for_memory(cls, memory: int, threads: int) -> "ChunkSizes":
        """Return the sizes for a limit of memory in bytes: half for DuckDB, the other half for our arrays."""
        if memory < LEAST_MEMORY:
            raise DataError(
                f"{option('memory', f'{memory >> 20}MB')} is too little; give at least {LEAST_MEMORY >> 20}MB"
            )
        half = memory // 2
        return cls(half, half // 2 // _BYTES_A_PIECE_ROW, half // threads // _BYTES_A_SHARD_ROW)


def no_progress(step: str, done: int, total: int | None) -> None:
    """Do not show how far a step is."""


def parse_memory(text: str) -> int:
    """Parse `4GB` or `800MB` to bytes."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([GM])i?B?", text.strip(), re.IGNORECASE)
    if found is None:
        raise DataError(f"{option('memory')} takes a size such as 4GB or 800MB, not '{text}'")
    return int(float(found[1]) * (1 << (30 if found[2].upper() == "G" else 20)))


def prepare_ratings(
    sources: Sequence[str | Path],
    out: str | Path,
    *,
    memory: int = 4 << 30,
    threads: int = 2,
    progress: Progress = no_progress,
    **options: Any,
) -> Ratings:
    """Prepare the ratings of one party in the folder `out`, and return them, mapped from there.

    The result equals `read_ratings` of the same rows to the bit. If an earlier call for the same sources and
    options was interrupted, it is resumed.

    Args:
        sources: Files, databases or folders of files, whose rows are read as one table, in order; or one data set.
        out: A new folder.
        memory: Most memory to use, in bytes.
        threads: Number of threads.
        progress: Function that is told how far each step is.
        **options: Options of `read_ratings`: columns, events, duplicates, missing, scale, catalogue, ...
    """
    folder = Path(out)
    given = {name: value for name, value in options.items() if value is not None}
    sizes = ChunkSizes.for_memory(memory, threads)
    if not sources:
        raise DataError("no data given; name at least one file")
    check_writable(folder)
    check_out(folder)
    tables = _list_sources(sources, given)
    whole = read_ratings(sources[0], **given) if tables is None else None
    preparation = None if tables is None else Preparation(folder, tables, threads, progress, given)
    with writing(folder), lock_folder(folder):
        if whole is not None:
            write_prepared(whole, folder)
        if preparation is not None:
            preparation.begin(sizes)
            try:
                preparation.run()
            except DataError:
                shutil.rmtree(folder)
                raise
            shutil.rmtree(preparation.work)
    return read_prepared(folder, {})


def check_out(folder: Path) -> None:
    """Raise `DataError` if `folder` holds anything but an unfinished preparation."""
    if (folder / DESCRIPTION).exists():
        raise DataError(f"{folder} holds prepared data already; delete it, or choose another {option('out')}")
    there = {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
    others = sorted(there - {".lock", WORK})
    if others and not (folder / WORK / PLAN).exists():
        raise DataError(f"{folder} holds other files ({others[0]}); choose a new folder as {option('out')}")


def other_preparation(folder: Path) -> DataError:
    """Return the error for a folder in which something else is being prepared."""
    return DataError(
        f"{folder} holds an unfinished preparation of other files or options; delete it, or choose another "
        f"{option('out')}"
    )


def _list_sources(sources: Sequence[str | Path], given: dict[str, Any]) -> list[str | Path] | None:
    """Return the tables to read, or None for one data set in a publisher's layout, which fits into memory."""
    plain = "columns" in given or "events" in given
    found: list[str | Path] = []
    for source in sources:
        if is_address(source):
            found.append(source)
            continue
        path = locate(source) if str(source) != "synthetic" or Path(source).exists() else None
        if path is not None and is_prepared(path):
            raise DataError(f"{path} is prepared already; give the files that it was made from")
        if path is None or (not plain and find_layout(path) is not None):
            if len(sources) > 1:
                raise DataError(f"{source} is a data set of its own; prepare it without other files")
            return None
        found += list_tables(path) if path.is_dir() else [path]
    return found


class Preparation:
    """One preparation of tables, with its files."""

    def __init__(
        self,
        folder: Path,
        sources: Sequence[str | Path],
        threads: int,
        progress: Progress,
        options: dict[str, Any],
    ) -> None:
        options = dict(options)
        self.folder = folder
        self.work = folder / WORK
        self.threads = threads
        self.progress = progress
        self.events: EventWeights | None = options.pop("events", None)
        self.scale: tuple[float, float] | None = options.pop("scale", None)
        self.catalogue: int | None = options.pop("catalogue", None)
        missing = options.pop("missing", None) or "error"
        given = options.pop("duplicates", None)
        self.duplicates: str = given or ("first" if all(map(is_inter, sources)) else "error")
        check_options(self.duplicates, missing)
        required = required_columns(self.events)
        opened = [open_table(source, required=required, **options) for source in sources]
        tables = RowTables(opened, redact(sources[0]))
        self.name = table_stem(sources[0])
        self.rows: EventRows | RatingRows = (
            RatingRows(tables, self.scale, missing=missing, name=self.name)
            if self.events is None
            else EventRows(tables, self.events, missing=missing, name=self.name)
        )
        self.total = _count_rows(opened)
        about = [
            [redact(source), *([] if is_address(source) else _stamp(Path(source)))] for source in sources
        ]
        options |= {"missing": missing, "duplicates": self.duplicates}
        self.identity = repr((about, sorted(options.items()), self.events, self.scale))

    def begin(self, sizes: ChunkSizes) -> None:
        """Begin a preparation, or resume an interrupted one of the same rows, with the sizes of its parts."""
        self.sizes = sizes
        plan = self.work / PLAN
        if plan.exists():
            stored = json.loads(plan.read_text("utf-8"))
            if stored["identity"] != self.identity:
                raise other_preparation(self.folder)
            self.sizes = ChunkSizes(sizes.engine, stored["piece"], stored["shard"])
            return
        self.work.mkdir(parents=True, exist_ok=True)
        write_bytes(plan, json.dumps({"identity": self.identity, **asdict(sizes)}).encode())

    def run(self) -> None:
        """Take all steps that are not done yet, and describe the folder."""
        shutil.rmtree(self.work / "spilled", ignore_errors=True)
        numbers = IdNumbers(self.work, memory=self.sizes.engine, threads=self.threads)
        try:
            found = self._number_ids(numbers)
            if self.catalogue is not None:
                check_catalogue(self.name, found["items"], self.catalogue)
            chunks = ChunkFiles(self.work, np.array(found["starts"]), self._row_kind(found["form"]))
            self._number_rows(numbers, chunks, found)
        finally:
            numbers.close()
        notes = (
            self._resolve_pairs(chunks, found) if self.events is None else self._rate_events(chunks, found)
        )
        scale = self.scale or ((1, 5) if self.events is not None else tuple(found["scale"]))
        describe_folder(
            self.folder,
            columns=[name for name in self.rows.item_columns if name != "title"],
            scale=(float(scale[0]), float(scale[1])),
            scale_declared=self.scale is not None or self.events is not None,
            catalogue=self.catalogue,
            notes=notes,
        )

    # Step 1

    def _number_ids(self, numbers: IdNumbers) -> dict[str, Any]:
        """Survey all rows and write the ids; return what was found."""
        done = self.work / "survey.json"
        if not done.exists():
            columns = self.rows.item_columns
            batches = self._watched("ids", self.rows.survey(), self.total)
            numbers.collect(batches, columns, first=self.events is None)
            found = self.rows.finish_survey()
            np.save(self.work / "gone.npy", found.pop("gone", np.zeros(0, np.int64)))
            counts = numbers.write("user", [self.folder / "user_ids.npy"])
            others = iter(column_file(k) for k in range(len(columns)))
            files = ["titles.npy" if name == "title" else next(others) for name in columns]
            items = numbers.write("item", [self.folder / f for f in ("item_ids.npy", *files)])
            numbers.forget_found()
            starts = divide_users(counts, self.sizes.shard).tolist()
            write_bytes(done, json.dumps({**found, "items": len(items), "starts": starts}).encode())
        found = json.loads(done.read_text("utf-8"))
        return {**found, "gone": np.load(self.work / "gone.npy")}

    def _watched(
        self, step: str, batches: Iterator[pa.RecordBatch], total: int | None
    ) -> Iterator[pa.RecordBatch]:
        rows = 0
        for batch in batches:
            yield batch
            rows += batch.num_rows
            self.progress(step, rows, total)

    # Step 2

    def _number_rows(self, numbers: IdNumbers, chunks: ChunkFiles, found: dict[str, Any]) -> None:
        """Write the rows with numbers instead of ids in chunks."""
        done = self.work / "rows.complete"
        if done.exists():
            return
        for chunk, some in groupby(self._divide(), key=lambda part: part[0]):
            if chunks.is_complete(chunk):
                continue
            converted = (
                batch
                for _, first, batch in some
                for batch in self.rows.convert(first, batch, found).combine_chunks().to_batches()
            )
            chunks.begin(chunk)
            self._write_chunk(chunks, chunk, numbers.look_up(converted), found)
            chunks.complete(chunk)
        write_bytes(done, b"")

    def _divide(self) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        """Yield all rows in batches of one chunk each: the chunk, the number of rows before, and the batch."""
        size = self.sizes.piece * _PIECES
        for first, batch in self.rows.tables.batches():
            start = 0
            while start < batch.num_rows:
                chunk, before = divmod(first + start, size)
                rows = min(size - before, batch.num_rows - start)
                yield chunk, first + start, batch.slice(start, rows)
                start += rows
            self.progress("rows", first + batch.num_rows, self.total)

    def _write_chunk(
        self, chunks: ChunkFiles, chunk: int, batches: Iterator[pa.RecordBatch], found: dict[str, Any]
    ) -> None:
        rows = np.empty(self.sizes.piece, chunks.kind)
        arrays = {} if self.events is not None else self._arrays(found)
        size = piece = 0
        for batch in _cut(batches, len(rows)):
            if size + batch.num_rows > len(rows):
                chunks.write(chunk, piece, rows[:size])
                size = 0
                piece += 1
            place = slice(size, size + batch.num_rows)
            for name in chunks.kind.names or ():
                rows[name][place] = batch.column(name).to_numpy()
            for name, array in arrays.items():
                array[rows["position"][place]] = batch.column(name).to_numpy()
            size += batch.num_rows
        for array in arrays.values():
            array.flush()
        chunks.write(chunk, piece, rows[:size])

    def _row_kind(self, form: str) -> np.dtype[Any]:
        """Return the type of a row in a chunk."""
        kinds = [("user", "<i4"), ("item", "<i4")]
        if self.events is None:
            return np.dtype([*kinds, ("position", "<i8")])
        time = [] if form == "none" else [("time", "<f8" if form == "fraction" else "<i8")]
        return np.dtype([*kinds, ("kind", "i1"), *time])

    def _arrays(self, found: dict[str, Any]) -> dict[str, np.memmap[Any, Any]]:
        """Return the arrays of ratings, which are in the order of rows."""
        kinds: dict[str, DTypeLike] = {"user": np.int32, "item": np.int32, "rating": np.float32}
        if found["form"] != "none":
            kinds["time"] = np.int64
        return {name: self._array(name, kind, found["used"]) for name, kind in kinds.items()}

    def _array(self, name: str, kind: Any, size: int) -> np.memmap[Any, Any]:
        path = self.folder / f"{name}.npy"
        mode = "r+" if path.exists() else "w+"
        return np.lib.format.open_memmap(
            path, mode, **({} if mode == "r+" else {"dtype": kind, "shape": (size,)})
        )

    # Step 3, for events

    def _rate_events(self, chunks: ChunkFiles, found: dict[str, Any]) -> list[str]:
        """Write the ratings of all shards and return the notes."""
        assert isinstance(self.rows, EventRows)
        assert self.events is not None
        rows = self.rows
        events = self.events
        scale = self.scale or (1, 5)
        shards = len(chunks.starts) - 1
        done = self._finished()
        size = sum(each["ratings"] for each in done)
        kinds: dict[str, DTypeLike] = {"user": np.int32, "item": np.int32, "rating": np.float32}
        places = {name: self.folder / f"{name}.npy" for name in kinds}
        if found["form"] != "none":
            kinds["time"] = np.int64
            places["time"] = self.work / "time.npy"

        def make(shard: int) -> EventShard:
            return rate_shard(chunks.read(shard), found["items"], rows.kinds, events, scale)

        if len(done) < shards:
            with ExitStack() as stack:
                arrays = {
                    name: stack.enter_context(growing_array(places[name], kind, size))
                    for name, kind in kinds.items()
                }
                for shard in self._in_order(make, range(len(done), shards)):
                    for name, array in arrays.items():
                        array.append(getattr(shard, name))
                        array.flush()
                    done.append({"ratings": len(shard.user), "times": asdict(shard.time_counts)})
                    self._finish_shard(done)
                    self.progress("shards", len(done), shards)
        times = TimeCounts()
        for each in done:
            times.join(TimeCounts(**each["times"]))
        ratings = sum(each["ratings"] for each in done)
        notes = [note_counts(found["used"], ratings, found["left_out"], events), *found["notes"]]
        return notes + self._store_times(found["form"], times)

    def _store_times(self, form: str, counts: TimeCounts) -> list[str]:
        """Store the newest times of events if all have one, and return the notes about them."""
        raw = self.work / "time.npy"
        if form == "none":
            return []
        if counts.missing:
            return [note_missing_times(counts.missing)]
        milliseconds = form != "date" and counts.milliseconds
        if raw.exists():
            if milliseconds:
                values = np.load(raw, mmap_mode="r")
                part = self.work / "seconds.npy"
                write_array(
                    part, (values[k : k + _PART] // 1000 for k in range(0, len(values), _PART)), np.int64
                )
                part.replace(self.folder / "time.npy")
                raw.unlink()
            else:
                raw.replace(self.folder / "time.npy")
        return [AS_MILLISECONDS] * milliseconds

    # Step 3, for ratings

    def _resolve_pairs(self, chunks: ChunkFiles, found: dict[str, Any]) -> list[str]:
        """Find repeated pairs in all shards, treat them as `duplicates` says, and return the notes."""
        shards = len(chunks.starts) - 1
        done = self._finished()
        rating = np.load(self.folder / "rating.npy", mmap_mode="r")

        def make(shard: int) -> tuple[int, Any]:
            repeated = find_repeated(chunks.read(shard), found["items"], rating, self.duplicates)
            if repeated is not None:
                arrays = {name: getattr(repeated, name) for name in ("dropped", "changed", "means")}
                np.savez(self.work / f"repeated-{shard}.npz", **arrays)
            return (0, None) if repeated is None else (repeated.count, repeated.first)

        for repeats, first in self._in_order(make, range(len(done), shards)):
            done.append({"repeats": repeats, "first": first})
            self._finish_shard(done)
            self.progress("shards", len(done), shards)
        repeats = sum(each["repeats"] for each in done)
        if repeats and self.duplicates == "error":
            one, two, user, item = min(tuple(each["first"]) for each in done if each["first"] is not None)
            ids = [np.load(self.folder / f"{what}_ids.npy", mmap_mode="r") for what in ("user", "item")]
            places = tuple(self.rows.tables.at(_row_of(position, found["gone"])) for position in (one, two))
            raise repeated_pairs(repeats, (str(ids[0][user]), str(ids[1][item])), (places[0], places[1]))
        if repeats:
            self._drop_rows([k for k, each in enumerate(done) if each["repeats"]], found["used"])
        return [*found["notes"], *[note_repeated(repeats, self.duplicates)] * bool(repeats)]

    def _drop_rows(self, shards: Sequence[int], size: int) -> None:
        """Change and drop ratings as the shards say. Arrays that are done already are left alone."""
        repeated = [np.load(self.work / f"repeated-{shard}.npz") for shard in shards]
        dropped = np.sort(np.concatenate([each["dropped"] for each in repeated]))
        rating = np.lib.format.open_memmap(self.folder / "rating.npy", "r+")
        if len(rating) == size:
            for each in repeated:
                rating[each["changed"]] = each["means"]
            rating.flush()
        for name in ("user", "item", "rating", "time"):
            path = self.folder / f"{name}.npy"
            if not path.exists():
                continue
            values = np.load(path, mmap_mode="r")
            if len(values) == size:
                part = self.work / "kept.npy"
                write_array(part, _without(values, dropped), values.dtype)
                part.replace(path)

    # Steps in general

    def _finished(self) -> list[Any]:
        """Return what is known about the shards that are finished."""
        path = self.work / "shards.json"
        return list(json.loads(path.read_text("utf-8"))) if path.exists() else []

    def _finish_shard(self, done: list[Any]) -> None:
        write_bytes(self.work / "shards.json", json.dumps(done).encode())

    def _in_order(self, make: Callable[[int], Any], shards: range) -> Iterator[Any]:
        """Yield the shards in order; as many as there are threads are made at a time."""
        with ThreadPoolExecutor(self.threads) as pool:
            rest = iter(shards)
            waiting = [pool.submit(make, shard) for shard in islice(rest, self.threads)]
            while waiting:
                yield waiting.pop(0).result()
                waiting += [pool.submit(make, shard) for shard in islice(rest, 1)]


def _cut(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield batches of at most `rows` rows."""
    for batch in batches:
        yield from (batch.slice(start, rows) for start in range(0, batch.num_rows, rows))


def _count_rows(tables: Sequence[Any]) -> int | None:
    """Return the number of rows if the tables say it."""
    if not all(isinstance(table, ParquetSource) for table in tables):
        return None
    return sum(int(pa.parquet.read_metadata(table.path).num_rows) for table in tables)


def _stamp(path: Path) -> list[int]:
    about = path.stat()
    return [about.st_size, about.st_mtime_ns]


def _row_of(position: int, gone: NDArray[np.int64]) -> int:
    """Return the row of a position among the rows that were not left out."""
    return position + int(np.searchsorted(gone - np.arange(len(gone)), position, "right"))


def _without(values: NDArray[Any], dropped: NDArray[np.int64]) -> Iterator[NDArray[Any]]:
    """Yield the values in parts, without those at the dropped positions."""
    for start in range(0, len(values), _PART):
        part = values[start : start + _PART]
        low, high = np.searchsorted(dropped, (start, start + len(part)))
        yield np.delete(part, dropped[low:high] - start)

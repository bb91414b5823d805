"""Numbering of ids that are too many for memory, by DuckDB, which moves what does not fit to disk."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from numpy.typing import NDArray

from verfedgnn.core.errors import DataError, RunError
from verfedgnn.data.database_engines import load_driver, quote_identifier
from verfedgnn.data.ids import LONGEST_ID, LONGEST_TITLE, TEXT, as_text, overlong_id, to_numpy, zero_character
from verfedgnn.data.prepared_folder import growing_array

_ROWS = 1 << 17
"""Number of rows in a batch of results."""
_MOST = 2**31 - 1
"""Largest number of users or items, whose numbers have 32 bits."""
_NUMERIC = "-?[0-9]{1,18}"


class IdNumbers:
    """Tables of users and items in a folder, with their numbers: the order of ids, as `ids.order_ids` defines it."""

    def __init__(self, folder: Path, *, memory: int, threads: int) -> None:
        self.folder = folder
        duckdb = load_driver("duckdb", "preparing data")
        self._failure: type[Exception] = duckdb.Error
        self._database = duckdb.connect(
            config={
                "memory_limit": f"{memory >> 20}MiB",
                "threads": str(threads),
                "temp_directory": str(folder / "spilled"),
                "preserve_insertion_order": "false",
            }
        )

    def close(self) -> None:
        """Close the engine and remove what it moved to disk."""
        self._database.close()

    def collect(self, batches: Iterable[pa.RecordBatch], item_columns: Sequence[str], *, first: bool) -> None:
        """Find the different ids in rows with `user`, `item` and further columns of items.

        The value of an item in a column is the first one that is not empty by `row` if `first` is given,
        otherwise the largest one.
        """
        chosen = [_chosen(quote_identifier(column), first) for column in item_columns]
        about = "".join(f", {value} as c{k}" for k, value in enumerate(chosen))
        with self._reading("given", batches) as empty:
            if empty:
                return
            self._database.execute(
                f'create or replace temp table found as select grouping("user") as of_item, "user", item, '
                f'count(*) as n{about} from given group by grouping sets (("user"), (item))'
            )

    def write(self, what: str, files: Sequence[Path]) -> NDArray[np.int64]:
        """Write the ids of "user" or "item" in order, as a table for `look_up` and to the first of `files`.

        The other files are for the item columns. Return the number of rows of each id.
        """
        columns = len(files) - 1
        role = quote_identifier(what)
        rows = f"from found where of_item = {int(what == 'item')}"
        text = f"cast({role} as varchar)"
        more = "".join(f", max(length(c{k}))" for k in range(columns))
        (about_ids,) = self._database.sql(
            f"select count(*), max(length({text})), bool_and(regexp_full_match({text}, '{_NUMERIC}')), "
            f"bool_or(contains({text}, chr(0))){more} {rows}"
        ).fetchall()
        count, longest, numeric, zero, *widths = about_ids
        if zero:
            raise zero_character(what)
        if longest > LONGEST_ID:
            raise overlong_id(what, longest)
        if count > _MOST:
            raise DataError(f"there are {count:,} {what}s, more than {_MOST:,}; divide the table")
        order = f"cast({role} as bigint), {text}" if numeric else text
        about = "".join(f", c{k}" for k in range(columns))
        sorted_ids = self._database.sql(f"select {role} as id, n{about} {rows} order by {order}")
        counts = []
        lengths = [longest, *(min(LONGEST_TITLE, width or 1) for width in widths)]
        with _open_all(files, lengths) as arrays:
            reader = sorted_ids.to_arrow_reader(_ROWS)
            schema = pa.schema([("id", reader.schema.field("id").type)])
            with pa.parquet.ParquetWriter(self._table(what), schema) as table:
                for batch in reader:
                    table.write_batch(batch.select(["id"]))
                    counts.append(batch.column("n").to_numpy())
                    texts = [as_text(batch.column("id"), what), *batch.columns[2:]]
                    for array, values in zip(arrays, texts, strict=True):
                        array.append(to_numpy(values.cast(TEXT), LONGEST_ID))
        return np.concatenate(counts)

    def forget_found(self) -> None:
        """Free the memory of the ids that `collect` found."""
        self._database.execute("drop table if exists found")

    def look_up(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows, in any order, with the numbers of their users and items instead of the ids."""
        tables = [
            f"join read_parquet({_quoted(self._table(what))}, file_row_number = true) as {what[0]} "
            f"on {what[0]}.id = given.{quote_identifier(what)}"
            for what in ("user", "item")
        ]
        with self._reading("given", batches) as empty:
            if not empty:
                query = (
                    'select given.* exclude ("user", item), cast(u.file_row_number as integer) as "user", '
                    f"cast(i.file_row_number as integer) as item from given {' '.join(tables)}"
                )
                yield from self._database.sql(query).to_arrow_reader(_ROWS)

    def _table(self, what: str) -> Path:
        return self.folder / f"{what}s.parquet"

    @contextmanager
    def _reading(self, name: str, batches: Iterable[pa.RecordBatch]) -> Iterator[bool]:
        """Let queries in the block read batches as a table; yield whether there are none.

        An error of ours while batches are made is raised as it is, not as the engine reports it.
        """
        failed: list[BaseException] = []
        source = iter(batches)
        head = next(source, None)
        if head is None:
            yield True
            return

        def watched() -> Iterator[pa.RecordBatch]:
            try:
                yield head
                yield from source
            except BaseException as error:
                failed.append(error)
                raise

        reader = pa.RecordBatchReader.from_batches(head.schema, watched())
        self._database.register(name, reader)
        try:
            yield False
        except self._failure as error:
            if failed:
                raise failed[0] from None
            raise RunError(
                f"DuckDB could not finish: {str(error).splitlines()[0]}; "
                "give more --memory, or free space on the disk of --out"
            ) from error
        finally:
            self._database.unregister(name)


@contextmanager
def _open_all(files: Sequence[Path], widths: Sequence[int]) -> Iterator[list[Any]]:
    """Open several arrays of text to write them together."""
    if not files:
        yield []
        return
    with (
        growing_array(files[0], f"<U{max(1, widths[0])}") as array,
        _open_all(files[1:], widths[1:]) as others,
    ):
        yield [array, *others]


def _chosen(column: str, first: bool) -> str:
    """Return an expression for the value of an item in a column."""
    return f"arg_min({column}, row) filter ({column} <> '')" if first else f"max({column})"


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"

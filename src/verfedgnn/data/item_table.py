"""Tables with one row per item: titles, further columns, and features."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from numpy.typing import NDArray

from verfedgnn.core.errors import DataError
from verfedgnn.data.column_names import match_columns
from verfedgnn.data.ids import LONGEST_TITLE, TEXT, StrArray, as_text, find_positions, to_numpy, trim
from verfedgnn.data.table_sources import TextSource, open_table
from verfedgnn.data.text_files import reading


@dataclass(frozen=True)
class ItemTable:
    """Columns of items, by id."""

    ids: StrArray
    columns: pa.Table
    """All columns but the id; text, numbers or lists of numbers."""

    def find(self, ids: StrArray) -> NDArray[np.int64]:
        """Return the row of each id, -1 if it has none."""
        return find_positions(ids, self.ids)

    def select(self, rows: NDArray[np.bool_]) -> "ItemTable":
        """Return the rows that are marked."""
        return ItemTable(self.ids[rows], self.columns.filter(rows))

    def texts(self) -> dict[str, StrArray]:
        """Return the columns of text, in which an empty entry is unknown; a column of titles is called `title`."""
        names = match_columns(self.columns.column_names, {}, required=(), source="the table of items")
        title = names.get("title")
        return {
            "title" if name == title else name: to_numpy(self.columns[name], LONGEST_TITLE)
            for name in self.columns.column_names
            if pa.types.is_string(self.columns[name].type)
            or pa.types.is_large_string(self.columns[name].type)
        }


def read_item_table(path: Path) -> ItemTable:
    """Read a CSV, TSV or Parquet file with a column of item ids; a column of a text file that holds only numbers becomes numbers."""
    opened = open_table(path, required=("item",))
    column = opened.names["item"]
    if isinstance(opened, TextSource):
        rows = _infer_numbers(opened.text.read(dict.fromkeys(opened.text.header_names(), TEXT)), column)
    else:
        with reading(path), pa.parquet.ParquetFile(path) as file:
            rows = file.read()
    ids = to_numpy(trim(as_text(rows[column], "item")))
    if len(np.unique(ids)) < len(ids) or (ids == "").any():
        raise DataError(f"{path} has rows without item id or with the same one; give one row per item")
    return ItemTable(ids, rows.drop_columns([column]))


def _infer_numbers(rows: pa.Table, column: str) -> pa.Table:
    for place, name in enumerate(rows.column_names):
        if name != column:
            values = pa.compute.if_else(pa.compute.equal(rows[name], ""), None, rows[name])
            try:
                numbers = pa.compute.cast(values, pa.float64())
            except pa.ArrowInvalid:
                continue
            if numbers.null_count < len(numbers):
                rows = rows.set_column(place, name, numbers)
    return rows

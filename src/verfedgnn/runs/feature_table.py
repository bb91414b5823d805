"""The features of a party's items in a run folder: RUN/features/PARTY.parquet. They stay at the party."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from verfedgnn.core.errors import RunError
from verfedgnn.core.files import make_folder, replacing, writing
from verfedgnn.data.ids import to_numpy
from verfedgnn.data.table_sources import ItemTable

FEATURES = "features"
"""Folder in a run's folder with the features of items."""
_ID = "item"


def features_file(run: Path, party_file: str) -> Path:
    """Return the file of a party's features; `party_file` is the party's name among files."""
    return run / FEATURES / f"{party_file}.parquet"


def write_features(file: Path, table: ItemTable) -> None:
    """Write the features of all items, in place of earlier ones."""
    names = [_ID, *(f"f.{name}" for name in table.columns.column_names)]
    columns = [pa.array(table.ids.tolist(), pa.string()), *table.columns.columns]
    with writing(file):
        make_folder(file.parent)
        with replacing(file) as stream:
            pq.write_table(pa.table(columns, names=names), stream)


def read_features(file: Path) -> ItemTable | None:
    """Return the features that `write_features` wrote; None if there are none."""
    if not file.is_file():
        return None
    try:
        with pq.ParquetFile(file) as opened:
            rows = opened.read()
        columns = rows.drop_columns([_ID])
        return ItemTable(
            to_numpy(rows[_ID]),
            columns.rename_columns([name.removeprefix("f.") for name in columns.column_names]),
        )
    except (OSError, pa.ArrowException, KeyError) as error:
        raise RunError(f"the features in {file} cannot be read ({error}); give them again") from None

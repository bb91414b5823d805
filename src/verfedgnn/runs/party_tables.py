"""The parties' tables in a run folder: one file with all users, and one Parquet file per party with its items as metadata."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from verfedgnn.core.files import check_file_name, make_folder, parsing, replacing
from verfedgnn.data import PartyData, Ratings

_KEY = b"verfedgnn"
_ABOUT = ("name", "scale", "scale_declared", "catalogue", "ids", "notes", "item_ids", "titles", "columns")
"""Fields of a table that are stored as metadata of its file."""


def safe_names(parties: Sequence[PartyData | str]) -> list[str]:
    """Return a file name for each party: its name in plain characters, numbered if names differ only in case."""
    names: list[str] = []
    for party in parties:
        called = party if isinstance(party, str) else party.name
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", called).strip("-._")[:80] or "party"
        candidates = chain([plain], (f"{plain}-{number}" for number in count(2)))
        taken = {name.lower() for name in names}
        names.append(next(name for name in candidates if name.lower() not in taken))
    return names


def write_party_tables(folder: Path, parties: Sequence[PartyData], parts: Sequence[NDArray[np.int8]]) -> None:
    """Write the tables of all parties and the part of each rating to `folder`."""
    make_folder(folder)
    users = pa.table({"user": parties[0].ratings.user_ids.tolist()})
    _write(folder / "_users.parquet", users)
    for name, party, part in zip(safe_names(parties), parties, parts, strict=True):
        _write(folder / f"{name}.parquet", _table(party, part))
    _write(folder / "_parties.parquet", pa.table({"file": safe_names(parties)}))


def read_party_tables(folder: Path) -> tuple[list[PartyData], list[NDArray[np.int8]]]:
    """Read the tables and parts that `write_party_tables` wrote."""
    with parsing(f"the data of the run in {folder}", "restore the folder or train again"):
        users = np.array(pq.read_table(folder / "_users.parquet")["user"].to_pylist())
        files = pq.read_table(folder / "_parties.parquet")["file"].to_pylist()
        files = [check_file_name(file) for file in files]
        found = [_party(pq.read_table(folder / f"{file}.parquet"), users) for file in files]
    return [party for party, _ in found], [part for _, part in found]


def _table(party: PartyData, part: NDArray[np.int8]) -> Any:
    table = party.ratings
    columns: dict[str, Any] = {"user": table.user, "item": table.item, "rating": table.rating, "part": part}
    if table.time is not None:
        columns["time"] = table.time
    about = {"party": party.name} | {field: getattr(table, field) for field in _ABOUT}
    text = json.dumps(about, default=np.ndarray.tolist)
    return pa.table(columns).replace_schema_metadata({_KEY: text.encode()})


def _party(arrow: Any, users: Any) -> tuple[PartyData, NDArray[np.int8]]:
    about = json.loads(arrow.schema.metadata[_KEY])
    # Arrow hands out read-only arrays, which torch refuses to wrap.
    columns: dict[str, Any] = {name: np.array(arrow[name].to_numpy()) for name in arrow.column_names}
    part = columns.pop("part")
    for rows, size in ((columns["user"], len(users)), (columns["item"], len(about["item_ids"]))):
        if rows.dtype.kind not in "iu" or not ((rows >= 0) & (rows < size)).all():
            raise ValueError("a rating is of no user or item of the run")
    fields: dict[str, Any] = {field: about[field] for field in _ABOUT}
    fields |= {"scale": tuple(about["scale"]), "notes": tuple(about["notes"])}
    fields |= {field: np.array(about[field]) for field in ("item_ids", "titles") if about[field] is not None}
    fields["columns"] = {key: np.array(value) for key, value in about["columns"].items()}
    return PartyData(about["party"], Ratings(**columns, **fields, user_ids=users)), part


def _write(path: Path, table: Any) -> None:
    with replacing(path) as file:
        pq.write_table(table, file)

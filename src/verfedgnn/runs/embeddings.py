"""The vectors that a party serves as Arrow tables, and as Parquet files for other programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.core.errors import RunError
from verfedgnn.core.files import make_folder, replacing, write_bytes, writing
from verfedgnn.core.option_names import option
from verfedgnn.data import PartyData
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.party_tables import safe_names
from verfedgnn.runs.run_folder import check_outside

RATINGS, LISTS = "ratings", "lists"
PRODUCTS = {
    RATINGS: "The inner product of a user's and an item's vector is the predicted rating.",
    LISTS: "The inner product of a user's and an item's vector is the score that orders lists.",
}
"""Meaning of a product of vectors, by purpose of the model."""
ITEM_WEIGHTS = " The vectors do not contain the weights between the party's items (EASE), which the served score adds to the product."


@dataclass(frozen=True)
class Embeddings:
    """One party's vectors: N users, M items, C components."""

    party: str
    users: pa.Table
    """Table with the columns `user`, the id, and `vector`, C numbers."""
    items: pa.Table
    """Table with the columns `item`, the id, `title`, further columns of the catalogue, and `vector`, C numbers."""
    parts: Mapping[str, slice]
    """Components by name: factors, user bias, item bias, mean; only `components` for a mixture of several models."""
    scale: tuple[float, float]
    """Lowest and highest rating at the party. Products may lie slightly outside."""
    purpose: str
    """`ratings` if products are predicted ratings, `lists` if they are scores that order lists."""
    meaning: str
    """Meaning of a product of two vectors, and what the served score adds to it."""

    def arrays(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the vectors of users (N, C) and of items (M, C)."""
        users, items = (table["vector"].combine_chunks() for table in (self.users, self.items))
        return tuple(each.flatten().to_numpy().reshape(len(each), -1) for each in (users, items))


def party_embeddings(party: PartyData, model: PartyModel, config: Config, *, gated: bool) -> Embeddings:
    """Return the vectors that a party serves, with ids and titles; `gated` says whether they mix several models."""
    table = party.ratings
    purpose = LISTS if config.ranks else RATINGS
    meaning = PRODUCTS[purpose] + (ITEM_WEIGHTS if model.item_scores is not None else "")
    titles = np.full(table.n_items, "") if table.titles is None else table.titles
    extra = {name: each for name, each in table.columns.items() if name not in ("item", "title", "vector")}
    items = _table({"item": table.item_ids, "title": titles, **extra}, model.items)
    known = table.known_users
    users = _table({"user": table.user_ids[known]}, model.users[torch.from_numpy(known)])
    parts = _parts(config, model.users.shape[1], gated=gated)
    return Embeddings(party.name, users, items, parts, table.scale, purpose, meaning)


def _parts(config: Config, width: int, *, gated: bool) -> dict[str, slice]:
    """Return the components by name, in the order in which the model and the rating targets append them."""
    model = config.model
    sizes = {"factors": model.dim} | ({"user bias": 1, "item bias": 1} if model.biases else {})
    if model.raters:
        sizes |= {"raters": model.raters, "raters' user bias": 1, "raters' item bias": 1}
    if model.biases:
        sizes["mean"] = 1
    if gated or sum(sizes.values()) != width:
        sizes = {"components": width}
    ends = np.cumsum(list(sizes.values())).tolist()
    return {name: slice(end - size, end) for (name, size), end in zip(sizes.items(), ends, strict=True)}


def _table(columns: Mapping[str, Any], vectors: Tensor) -> pa.Table:
    values = vectors.cpu().numpy().astype(np.float32)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
    return pa.table({name: pa.array(column.tolist()) for name, column in columns.items()} | {"vector": lists})


def export_embeddings(embeddings: Sequence[Embeddings], folder: Path) -> list[Path]:
    """Write embeddings as Parquet, with embeddings.json that explains them, and return the files.

    Each party gets a folder. If a party has vectors for ratings and for lists, those for lists are in its
    subfolder `lists`.
    """
    check_outside(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(f"{folder} exists already; choose another {option('out')}")
    parties = list(dict.fromkeys(each.party for each in embeddings))
    names = dict(zip(parties, safe_names(parties), strict=True))
    files: list[Path] = []
    rows: dict[str, dict[str, Any]] = {}
    with writing(folder):
        for each in embeddings:
            place = folder / names[each.party] / (each.purpose if each.party in rows else "")
            make_folder(place)
            tables = {place / "users.parquet": each.users, place / "items.parquet": each.items}
            for path, table in tables.items():
                with replacing(path) as file:
                    pq.write_table(table, file)
            about = {"name": each.party, "users": len(each.users), "items": len(each.items)}
            row = rows.setdefault(each.party, about | {"scale": each.scale, "vectors": []})
            row["vectors"].append(
                {
                    "purpose": each.purpose,
                    "meaning": each.meaning,
                    "parts": {name: [part.start, part.stop] for name, part in each.parts.items()},
                    "files": [str(path.relative_to(folder)) for path in tables],
                }
            )
            files += tables
        text = json.dumps({"parties": list(rows.values())}, indent=1)
        write_bytes(folder / "embeddings.json", (text + "\n").encode())
    return [*files, folder / "embeddings.json"]

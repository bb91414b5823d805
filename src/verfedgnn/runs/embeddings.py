"""A run's vectors as Arrow tables, and as Parquet or NumPy files for other programs.

The vectors are those that a party serves: the inner product of a user's and an item's vector is the predicted
rating, or the score of a ranking. Biases and the mean rating are components of the vectors.
`Embeddings.parts` names the components.
"""

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
from verfedgnn.core.errors import ConfigError, RunError
from verfedgnn.core.files import write_bytes, writing
from verfedgnn.data import PartyData
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.party_tables import safe_names

FORMATS = ("parquet", "npy")


@dataclass(frozen=True)
class Embeddings:
    """One party's vectors: N users, M items, C components."""

    party: str
    users: pa.Table
    """Table with the columns `user`, the id, and `vector`, C numbers."""
    items: pa.Table
    """Table with the columns `item`, the id, `title`, further columns of the catalogue, and `vector`, C
    numbers.
    """
    parts: Mapping[str, slice]
    """Components by name: factors, user bias, item bias, mean.

    With a gate, the same again with the prefix "alone".
    """
    scale: tuple[float, float]
    """Lowest and highest rating at the party. Products may lie slightly outside."""

    def arrays(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the vectors of users (N, C) and of items (M, C)."""
        return _matrix(self.users), _matrix(self.items)


def party_embeddings(party: PartyData, model: PartyModel, config: Config) -> Embeddings:
    """Return the vectors that a party serves, with ids and titles."""
    table = party.ratings
    parts = _parts(config, model.users.shape[1])
    about = {"party": party.name, "parts": {name: [part.start, part.stop] for name, part in parts.items()}}
    extra = {
        name: values for name, values in table.columns.items() if name not in ("item", "title", "vector")
    }
    titles = np.full(table.n_items, "") if table.titles is None else table.titles
    items = {"item": table.item_ids, "title": titles, **extra}
    known = table.known_users
    users = _table({"user": table.user_ids[known]}, model.users[torch.from_numpy(known)], about)
    vectors = users, _table(items, model.items, about)
    return Embeddings(party.name, *vectors, parts, table.scale)


def _parts(config: Config, width: int) -> dict[str, slice]:
    """Return the components by name, in the order in which the model, the rating targets and the gate append
    them.
    """
    model = config.model
    centred = not config.training.ranks and config.model.form != "propagation"
    sizes = {"factors": model.dim} | ({"user bias": 1, "item bias": 1} if model.biases else {})
    if centred and (model.form == "messages" or model.biases):
        sizes["mean"] = 1
    once = sum(sizes.values())
    if width == 2 * once:  # a gate blends the shared model with the one trained alone
        sizes |= {f"alone {name}": size for name, size in sizes.items()}
    elif width != once:
        sizes = {"components": width}
    ends = np.cumsum(list(sizes.values())).tolist()
    return {name: slice(end - size, end) for (name, size), end in zip(sizes.items(), ends, strict=True)}


def _table(columns: Mapping[str, Any], vectors: Tensor, about: Mapping[str, Any]) -> pa.Table:
    values = vectors.cpu().numpy().astype(np.float32)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
    whole = pa.table(
        {name: pa.array(column.tolist()) for name, column in columns.items()} | {"vector": lists}
    )
    return whole.replace_schema_metadata({b"verfedgnn": json.dumps(about).encode()})


def _matrix(table: pa.Table) -> NDArray[np.float32]:
    lists = table["vector"].combine_chunks()
    return lists.flatten().to_numpy().reshape(len(lists), -1)  # type: ignore[no-any-return]


def export_embeddings(embeddings: Sequence[Embeddings], folder: Path, kind: str) -> list[Path]:
    """Write embeddings as `parquet` or `npy`, one folder per party, with embeddings.json that explains them.

    Return the written files.
    """
    if kind not in FORMATS:
        raise ConfigError(f"unknown format '{kind}'; use one of {', '.join(FORMATS)}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(f"{folder} exists already; choose another --out")
    files: list[Path] = []
    with writing(folder):
        for each, name in zip(embeddings, safe_names([e.party for e in embeddings]), strict=True):
            place = folder / name
            place.mkdir(parents=True)
            files += _write_parquet(each, place) if kind == "parquet" else _write_npy(each, place)
        about = {
            "score": "the inner product of a user's and an item's vector is the predicted rating, or the score of a ranking",
            "parties": [{"name": e.party, **_about(e)} for e in embeddings],
            "files": [str(file.relative_to(folder)) for file in files],
        }
        write_bytes(folder / "embeddings.json", (json.dumps(about, indent=1) + "\n").encode())
    return [*files, folder / "embeddings.json"]


def _about(embeddings: Embeddings) -> dict[str, Any]:
    parts = {name: [part.start, part.stop] for name, part in embeddings.parts.items()}
    return {
        "users": len(embeddings.users),
        "items": len(embeddings.items),
        "scale": list(embeddings.scale),
        "parts": parts,
    }


def _write_parquet(embeddings: Embeddings, place: Path) -> list[Path]:
    pq.write_table(embeddings.users, place / "users.parquet")
    pq.write_table(embeddings.items, place / "items.parquet")
    return [place / "users.parquet", place / "items.parquet"]


def _write_npy(embeddings: Embeddings, place: Path) -> list[Path]:
    users, items = embeddings.arrays()
    named = {
        "user_ids": embeddings.users["user"],
        "item_ids": embeddings.items["item"],
        "titles": embeddings.items["title"],
    }
    arrays: dict[str, NDArray[Any]] = {"users": users, "items": items}
    arrays |= {name: np.array(column.to_pylist()) for name, column in named.items()}
    for name, array in arrays.items():
        np.save(place / f"{name}.npy", array, allow_pickle=False)
    return [place / f"{name}.npy" for name in arrays]

"""The vectors that a party serves, as Arrow tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.data import PartyData
from verfedgnn.runs.party_model import PartyModel


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
    meaning: str
    """Meaning of a product of two vectors, and what the served score adds to it."""

    def arrays(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the vectors of users (N, C) and of items (M, C)."""
        users, items = (table["vector"].combine_chunks() for table in (self.users, self.items))
        return tuple(each.flatten().to_numpy().reshape(len(each), -1) for each in (users, items))


def party_embeddings(party: PartyData, model: PartyModel, config: Config, *, gated: bool) -> Embeddings:
    """Return the vectors that a party serves, with ids and titles; `gated` says whether they mix several models."""
    table = party.ratings
    product = "score that orders lists" if config.ranks else "predicted rating"
    meaning = f"The inner product of a user's and an item's vector is the {product}."
    if model.item_scores is not None:
        meaning += " The served score adds the weights between the party's items (EASE)."
    titles = np.full(table.n_items, "") if table.titles is None else table.titles
    extra = {name: each for name, each in table.columns.items() if name not in ("item", "title", "vector")}
    items = _table({"item": table.item_ids, "title": titles, **extra}, model.items)
    known = table.known_users
    users = _table({"user": table.user_ids[known]}, model.users[torch.from_numpy(known)])
    parts = _parts(config, model.users.shape[1], gated=gated)
    return Embeddings(party.name, users, items, parts, meaning)


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

"""A run's vectors as Arrow tables, and as Parquet files for other programs.

The vectors are those that a party serves: the inner product of a user's and an item's vector is the predicted
rating, or for lists the score of an item. Biases and means are components of the vectors, which
`Embeddings.parts` names. In a model of lists, the weights between items (EASE) add to the score and are not in
the vectors.
"""

from __future__ import annotations

import json
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
    """Components by name: factors, user bias, item bias, mean.

    With a gate, the party's own models (alone, alone raters) and the simple models of the mixture (means, federated means,
    popularity) come before them.
    """
    scale: tuple[float, float]
    """Lowest and highest rating at the party. Products may lie slightly outside."""
    purpose: str = RATINGS
    """`ratings` if products are predicted ratings, `lists` if they are scores that order lists."""
    meaning: str = PRODUCTS[RATINGS]
    """Meaning of a product of two vectors, and what the served score adds to it."""

    def arrays(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the vectors of users (N, C) and of items (M, C)."""
        return _matrix(self.users), _matrix(self.items)


def party_embeddings(
    party: PartyData,
    model: PartyModel,
    config: Config,
    gate: Mapping[str, Mapping[str, float]] | None = None,
) -> Embeddings:
    """Return the vectors that a party serves, with ids and titles; `gate` holds the weights of its mixture."""
    table = party.ratings
    parts = _parts(config, model.users.shape[1], gate)
    purpose = LISTS if config.ranks else RATINGS
    meaning = PRODUCTS[purpose] + (ITEM_WEIGHTS if model.item_scores is not None else "")
    about = {
        "party": party.name,
        "purpose": purpose,
        "meaning": meaning,
        "parts": {name: [part.start, part.stop] for name, part in parts.items()},
    }
    extra = {
        name: values for name, values in table.columns.items() if name not in ("item", "title", "vector")
    }
    titles = np.full(table.n_items, "") if table.titles is None else table.titles
    items = {"item": table.item_ids, "title": titles, **extra}
    known = table.known_users
    users = _table({"user": table.user_ids[known]}, model.users[torch.from_numpy(known)], about)
    return Embeddings(
        party.name, users, _table(items, model.items, about), parts, table.scale, purpose, meaning
    )


def _parts(config: Config, width: int, gate: Mapping[str, Mapping[str, float]] | None) -> dict[str, slice]:
    """Return the components by name, in the order in which the model and the rating targets append them."""
    model = config.model
    sizes = {"factors": model.dim} | ({"user bias": 1, "item bias": 1} if model.biases else {})
    if model.raters:
        sizes |= {"raters": model.raters, "raters' user bias": 1, "raters' item bias": 1}
    if model.biases:
        sizes["mean"] = 1
    if gate is not None or sum(sizes.values()) != width:  # a mixture has the components of several models
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

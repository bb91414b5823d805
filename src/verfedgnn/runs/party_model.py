"""The model that one party serves: vectors of users and items and, for lists, weights between items (EASE); its vectors as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.core.array_files import read_arrays, write_arrays
from verfedgnn.core.item_item import ItemScores
from verfedgnn.core.pairs import Pairs
from verfedgnn.data import PartyData


@dataclass(frozen=True)
class OwnUsers:
    """Users' vectors (N, C) of a model that a party has alone: users without a training rating there share one row."""

    values: Tensor
    """Rows of the party's own users, and at the end the row of all others (n + 1, C)."""
    place: Tensor
    """Place of each user's row in `values` (N,)."""

    @classmethod
    def of(cls, users: Tensor, place: Tensor) -> UserVectors:
        """Return users' vectors with one row for all users who have the last place; as they are, if the rows of these differ."""
        others = place == place.max()
        alike = users[others]
        if (alike != alike[:1]).any():
            return users
        return cls(torch.cat([users[~others], alike[:1]]), place)

    def __getitem__(self, rows: Tensor) -> Tensor:
        return self.values[self.place[rows]]

    def __len__(self) -> int:
        return len(self.place)


@dataclass(frozen=True)
class ChosenColumns:
    """Some columns of users' vectors."""

    whole: UserVectors
    columns: Tensor

    def __getitem__(self, rows: Tensor) -> Tensor:
        return self.whole[rows][:, self.columns]

    def __len__(self) -> int:
        return len(self.whole)


@dataclass(frozen=True)
class MixedUsers:
    """Users' vectors of several models side by side, each times a weight."""

    parts: Sequence[UserVectors]
    weights: Sequence[tuple[float, float]]
    """Weight of each part for users with training ratings at the party, and for newcomers."""
    new: Tensor
    """Whether each user is a newcomer (N,)."""

    def __getitem__(self, rows: Tensor) -> Tensor:
        new = self.new[rows].unsqueeze(1)
        columns = []
        for part, (known, newcomers) in zip(self.parts, self.weights, strict=True):
            vectors = part[rows]
            columns.append(vectors * torch.where(new, newcomers, known).to(vectors))
        return torch.cat(columns, 1)

    def __len__(self) -> int:
        return len(self.new)


UserVectors = Tensor | OwnUsers | ChosenColumns | MixedUsers
"""Users' vectors (N, C). Where they are no tensor, rows are put together when they are asked for: all rows would fill the memory."""


@dataclass(frozen=True)
class PartyModel:
    """A party's served model: the prediction for user u and item v is `users[u] · items[v]`, plus `item_scores`."""

    vectors: UserVectors
    """h_u (N, C): one row per user of the federation."""
    items: Tensor
    """h_v (M_p, C): one row per item of the party."""
    embeddings: Tensor
    """e_v^0 (M_p, D): the party's private item embeddings."""
    item_scores: ItemScores | None = None
    """Additional scores from a user's other items at the party (EASE); None in a model of ratings."""

    @property
    def users(self) -> Tensor:
        """h_u (N, C) of all users at once."""
        if isinstance(self.vectors, Tensor):
            return self.vectors
        return self.vectors[torch.arange(len(self.vectors), device=self.items.device)]

    def predict(self, pairs: Pairs) -> Tensor:
        """Return the predicted rating of each pair, in double precision."""
        return self.predict_rows(pairs.user, pairs.item)

    def predict_rows(self, user: Tensor, item: Tensor) -> Tensor:
        """Return the predicted rating of each pair of rows, in double precision."""
        assert self.item_scores is None, (
            "a model with item scores ranks whole catalogues and predicts no ratings"
        )
        return (self.vectors[user.long()] * self.items[item.long()]).sum(-1).double()

    def score(self, users: Tensor) -> Tensor:
        """Return the scores (n, M_p) of all items for n users, given their rows."""
        scores = self.vectors[users.long()] @ self.items.T
        return scores if self.item_scores is None else scores + self.item_scores.score(users)

    def cpu(self) -> PartyModel:
        """Return the model in the main memory."""
        own = self.item_scores
        if own is not None:
            tensors = {name: getattr(own, name).cpu() for name in ("weights", "kept", "pointers", "history")}
            own = replace(own, **tensors)
        return PartyModel(self.users.cpu(), self.items.cpu(), self.embeddings.cpu(), own)

    def arrays(self) -> dict[str, Tensor]:
        """Return all tensors by name, as they are stored."""
        tensors = {"users": self.users, "items": self.items, "embeddings": self.embeddings}
        if self.item_scores is not None:
            own = self.item_scores
            tensors |= {"item_weights": own.weights.half(), "item_rows": own.kept}
            tensors |= {"history_pointers": own.pointers, "history": own.history}
        return tensors

    @classmethod
    def from_arrays(cls, arrays: dict[str, Tensor]) -> PartyModel:
        """Return the model that `arrays` came from. Weights between items lose precision: they are stored in 16 bits."""
        own = None
        if "item_weights" in arrays:
            own = ItemScores(
                arrays["item_weights"].to(torch.float32),
                arrays["item_rows"],
                arrays["history_pointers"],
                arrays["history"],
                len(arrays["items"]),
            )
            own.check(len(arrays["users"]))
        return cls(arrays["users"], arrays["items"], arrays["embeddings"], own)


def write_model(path: Path, model: PartyModel) -> None:
    """Write the model that one party serves."""
    write_arrays(path, {name: tensor.contiguous().cpu().numpy() for name, tensor in model.arrays().items()})


def read_model(path: Path) -> PartyModel:
    """Read the model that `write_model` wrote."""
    return PartyModel.from_arrays(
        {name: torch.from_numpy(array) for name, array in read_arrays(path).items()}
    )


@dataclass(frozen=True)
class Embeddings:
    """One party's vectors: N users, M items, C components. The inner product of two is the predicted rating, or the score of a list.

    What lists add by weights between items (EASE) is in no vector.
    """

    users: pa.Table
    """Table with the columns `user`, the id, and `vector`, C numbers."""
    items: pa.Table
    """Table with the columns `item`, the id, `title`, further columns of the catalogue, and `vector`, C numbers."""

    @classmethod
    def of(cls, party: PartyData, model: PartyModel) -> Embeddings:
        """Return the vectors that a party serves, with ids and titles."""
        table = party.ratings
        titles = np.full(table.n_items, "") if table.titles is None else table.titles
        more = {
            name: texts for name, texts in table.columns.items() if name not in ("item", "title", "vector")
        }
        known = table.known_users
        return cls(
            _table({"user": table.user_ids[known]}, model.vectors[torch.from_numpy(known)]),
            _table({"item": table.item_ids, "title": titles, **more}, model.items),
        )

    def arrays(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the vectors of users (N, C) and of items (M, C)."""
        users, items = (table["vector"].combine_chunks() for table in (self.users, self.items))
        return tuple(vectors.flatten().to_numpy().reshape(len(vectors), -1) for vectors in (users, items))


def _table(columns: Mapping[str, Any], vectors: Tensor) -> pa.Table:
    values = vectors.cpu().numpy().astype(np.float32)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
    return pa.table({name: pa.array(column.tolist()) for name, column in columns.items()} | {"vector": lists})

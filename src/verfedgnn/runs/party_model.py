"""The model that one party serves: vectors of users and items and, for lists, weights between items (EASE)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from verfedgnn.core.item_item import ItemScores
from verfedgnn.core.pairs import Pairs


@dataclass(frozen=True)
class PartyModel:
    """A party's served model: the prediction for user u and item v is `users[u] · items[v]`, plus `item_scores`."""

    users: Tensor
    """h_u (N, C): one row per user of the federation."""
    items: Tensor
    """h_v (M_p, C): one row per item of the party."""
    embeddings: Tensor
    """e_v^0 (M_p, D): the party's private item embeddings."""
    item_scores: ItemScores | None = None
    """Additional scores from a user's other items at the party (EASE); None in a model of ratings."""

    def predict(self, pairs: Pairs) -> Tensor:
        """Return the predicted rating of each pair, in double precision."""
        return self.predict_rows(pairs.user, pairs.item)

    def predict_rows(self, user: Tensor, item: Tensor) -> Tensor:
        """Return the predicted rating of each pair of rows, in double precision."""
        assert self.item_scores is None, (
            "a model with item scores ranks whole catalogues and predicts no ratings"
        )
        return (self.users[user.long()] * self.items[item.long()]).sum(-1).double()

    def score(self, users: Tensor) -> Tensor:
        """Return the scores (n, M_p) of all items for n users, given their rows."""
        scores = self.users[users.long()] @ self.items.T
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
        found = {"users": self.users, "items": self.items, "embeddings": self.embeddings}
        if self.item_scores is not None:
            own = self.item_scores
            found |= {
                "item_weights": own.weights.half(),
                "item_rows": own.kept,
                "history_pointers": own.pointers,
                "history": own.history,
            }
        return found

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

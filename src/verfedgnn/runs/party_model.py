"""The model that one party serves, as two tables of vectors whose products are predictions."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from verfedgnn.core.pairs import Pairs


@dataclass(frozen=True)
class PartyModel:
    """A party's served model: the prediction for user u and item v is `users[u] · items[v]`."""

    users: Tensor
    """h_u (N, C): one row per user of the federation."""
    items: Tensor
    """h_v (M_p, C): one row per item of the party."""
    embeddings: Tensor
    """e_v^0 (M_p, D): the party's private item embeddings."""

    def predict(self, pairs: Pairs) -> Tensor:
        """Return the predicted rating (or score) of each pair, in double precision."""
        return self.predict_rows(pairs.user, pairs.item)

    def predict_rows(self, user: Tensor, item: Tensor) -> Tensor:
        """Return the predicted rating (or score) of each pair of rows, in double precision."""
        return (self.users[user.long()] * self.items[item.long()]).sum(-1).double()

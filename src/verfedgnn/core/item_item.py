r"""EASE (Steck 2019): score items by the other items that a user has, with one linear regression on a party's own data.

.. math::
    B = I - P \, \mathrm{diag}(1 / \mathrm{diag} P), \qquad P = (X^\top X + \lambda I)^{-1}, \qquad s_u = x_u B

X (N, M) is 1 where a user rated an item, else 0. The memory of P grows with the square of the catalogue, so only the items with
the most ratings are included; the others have the score 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from verfedgnn.core.pairs import Pairs

MOST_ITEMS = 4096
"""Most items that are included; P then takes 128 MB in double precision."""


@dataclass(frozen=True)
class ItemScores:
    """Weights between the items of one party, and the items that each user has there."""

    weights: Tensor
    """B (k, k) between the included items."""
    kept: Tensor
    """Rows of the included items in the catalogue (k,), ascending."""
    pointers: Tensor
    """Where each user's items begin in `history` (N + 1,)."""
    history: Tensor
    """Places in `kept` of the items that the users have, user by user."""
    items: int
    """Size M_p of the catalogue."""

    def score(self, users: Tensor) -> Tensor:
        """Return the scores (n, M_p) of all items for n users, given their rows."""
        rows = users.long()
        counts = self.pointers[rows + 1] - self.pointers[rows]
        first = torch.repeat_interleave(self.pointers[rows] - counts.cumsum(0) + counts, counts)
        place = torch.repeat_interleave(torch.arange(len(rows), device=rows.device), counts)
        theirs = self.history[first + torch.arange(len(first), device=rows.device)]
        has = torch.zeros((len(rows), len(self.kept)), device=self.weights.device)
        has[place, theirs.long()] = 1.0
        return self._spread(has @ self.weights)

    def score_items(self, items: Tensor) -> Tensor:
        """Return the scores (M_p,) of all items for a user who has `items`, given by their rows."""
        place = torch.searchsorted(self.kept, items.long()).clamp(max=len(self.kept) - 1)
        known = place[self.kept[place] == items]
        return self._spread(self.weights[known].sum(0, keepdim=True))[0]

    def scaled(self, factor: float) -> ItemScores:
        """Return the same scores times `factor`, with weights in half precision, as they are stored."""
        return replace(self, weights=(self.weights * factor).half().float())

    def _spread(self, scores: Tensor) -> Tensor:
        whole = scores.new_zeros((len(scores), self.items))
        whole[:, self.kept] = scores
        return whole


def invert(gram: Tensor) -> Tensor:
    """Return the inverse of a positive definite matrix; most of the time of a fit."""
    return torch.cholesky_inverse(torch.linalg.cholesky(gram))


def fit_item_scores(train: Pairs, users: int, items: int, damping: float) -> ItemScores:
    """Fit EASE with lambda = `damping` on a party's training pairs."""
    user = train.user.cpu().numpy().astype(np.int64)
    item = train.item.cpu().numpy().astype(np.int64)
    count = np.bincount(item, minlength=items)
    popular = np.argsort(-count, kind="stable")[:MOST_ITEMS]
    kept = np.sort(popular[count[popular] > 0])
    place = np.full(items, -1)
    place[kept] = np.arange(len(kept))
    inside = place[item] >= 0
    rated = scipy.sparse.csr_matrix(
        (np.ones(int(inside.sum())), (user[inside], place[item[inside]])), shape=(users, len(kept))
    )
    rated.sum_duplicates()
    rated.data[:] = 1.0
    gram = torch.from_numpy((rated.T @ rated).toarray())
    gram.diagonal().add_(damping)
    inverse = invert(gram)
    weights = -inverse / inverse.diagonal()
    weights.fill_diagonal_(0.0)
    device = train.user.device
    return ItemScores(
        weights.float().to(device),
        torch.from_numpy(kept).to(device),
        torch.from_numpy(rated.indptr.astype(np.int64)).to(device),
        torch.from_numpy(rated.indices.astype(np.int32)).to(device),
        items,
    )

r"""EASE (Steck 2019): score items by the other items that a user has, with one linear regression on a party's own data.

.. math::
    B = I - P \, \mathrm{diag}(1 / \mathrm{diag} P), \qquad P = (X^\top X + \lambda I)^{-1}, \qquad s_u = x_u B

For lists, X (N, M) is 1 where a user rated an item, else 0. For ratings, it is what simpler models leave of the rating, and X B is
cut to a few columns, so that it can be stored as vectors. The memory of P grows with the square of the catalogue, so only the items
with the most ratings are included; the others have the score 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.core.pairs import Choices, PartyInput
from verfedgnn.core.rating_means import arrays

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

Vectors = tuple[Tensor, Tensor]
Fit = TypeVar("Fit")
MOST_ITEMS = 4096
"""Most items that are included; P then takes 128 MB in double precision."""
TRIAL_ITEMS = 1024
"""Most items of the trials that choose lambda. A fit takes time with the cube of the number of items."""
COLUMNS = 32
"""Columns to which X B of ratings is cut."""
POWERS = 4
"""Products with (X B)^T X B that find these columns."""


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

    def check(self, users: int) -> None:
        """Raise `ValueError` if places lead outside, as in a file from elsewhere: native code would follow them."""
        size, ends = len(self.kept), self.pointers
        inside = all(
            rows.dtype in (torch.int32, torch.int64) and bool(((rows >= 0) & (rows < count)).all())
            for rows, count in ((self.history, size), (self.kept, self.items), (ends, len(self.history) + 1))
        )
        fits = self.weights.shape == (size, size) and len(ends) == users + 1
        if not inside or not fits or (ends.diff() < 0).any():
            raise ValueError("weights between items lead outside the catalogue")

    def score(self, users: Tensor) -> Tensor:
        """Return the scores (n, M_p) of all items for n users, given their rows."""
        rows = users.long()
        counts = self.pointers[rows + 1] - self.pointers[rows]
        first = torch.repeat_interleave(self.pointers[rows] - counts.cumsum(0) + counts, counts)
        place = torch.repeat_interleave(torch.arange(len(rows), device=rows.device), counts)
        theirs = self.history[first + torch.arange(len(first), device=rows.device)]
        has = torch.zeros((len(rows), len(self.kept)), device=self.weights.device)
        has[place, theirs.long()] = 1.0
        whole = torch.zeros((len(rows), self.items), device=self.weights.device)
        whole[:, self.kept] = has @ self.weights
        return whole

    @cached_property
    def place(self) -> NDArray[np.int64]:
        """Place of each item of the catalogue in `kept` (M_p,), -1 if it is not included."""
        place = np.full(self.items, -1)
        place[self.kept.numpy()] = np.arange(len(self.kept))
        return place

    def find_owned(self, user: int) -> NDArray[np.int64]:
        """Return the rows of the included items that a user has."""
        places = self.history[self.pointers[user] : self.pointers[user + 1]]
        return self.kept[places.long()].numpy()

    def add_scores(self, scores: Tensor, owned: Sequence[NDArray[np.int64]]) -> None:
        """Add to `scores` (n, M_p or more) what the items `owned` by each of n users contribute."""
        places = [place[place >= 0] for place in (self.place[rows] for rows in owned)]
        counts = np.array([len(place) for place in places])
        if not counts.any():
            return
        starts = torch.from_numpy(np.cumsum(counts) - counts)
        rows = torch.from_numpy(np.concatenate(places))
        sums = torch.nn.functional.embedding_bag(rows, self.weights, starts, mode="sum")
        if len(self.kept) == self.items:
            scores[:, : self.items] += sums
        else:
            scores.index_add_(1, self.kept, sums)

    def split_score(self, item: int, owned: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return what each of the items `owned` adds to the score of `item` (n,)."""
        parts, place = np.zeros(len(owned)), self.place[owned]
        if self.place[item] >= 0:
            column = self.weights[:, self.place[item]]
            parts[place >= 0] = column[torch.from_numpy(place[place >= 0])].numpy()
        return parts

    def scaled(self, factor: float) -> ItemScores:
        """Return the same scores times `factor`, with weights in half precision, as they are stored."""
        return replace(self, weights=(self.weights * factor).half().float())


def fit_item_scores(
    data: PartyInput, dampings: Sequence[float], error: Callable[[ItemScores], float], choices: Choices
) -> ItemScores:
    """Fit EASE for lists on a party's training pairs, with the lambda among `dampings` that has the least `error`."""

    matrix = lru_cache(1)(partial(_matrix, data, seen=True))

    def fit(damping: float, most: int) -> ItemScores:
        kept, rated, gram = matrix(min(most, data.items))
        places = (kept, rated.indptr.astype(np.int64), rated.indices.astype(np.int32))
        weights = _regress(gram, damping).float()
        parts = [part.to(data.train.user.device) for part in (weights, *map(torch.from_numpy, places))]
        return ItemScores(parts[0], parts[1], parts[2], parts[3], data.items)

    return _choose(fit, dampings, error, choices)


def fit_residuals(
    data: PartyInput, dampings: Sequence[float], error: Callable[[Vectors], float], choices: Choices
) -> Vectors:
    """Fit EASE for ratings, and return vectors of users (N, R) and items (M_p, R) whose product is X B.

    The training pairs of `data` hold what simpler models leave of the ratings. Lambda among `dampings` has the least `error`.
    """

    matrix = lru_cache(1)(partial(_matrix, data))

    def fit(damping: float, most: int) -> Vectors:
        kept, rated, gram = matrix(min(most, data.items))
        weights = _regress(gram, damping).numpy()
        # Subspace iteration for the right singular vectors V of X B, among items alone: X B is about (X B V) V^T.
        columns = np.random.default_rng(0).normal(size=(len(kept), min(COLUMNS, len(kept))))
        for _ in range(POWERS):
            columns = np.linalg.qr(weights.T @ (gram @ (weights @ columns)))[0]
        whole = np.zeros((data.items, columns.shape[1]), np.float32)
        whole[kept] = columns
        vectors = torch.from_numpy(rated.astype(np.float32) @ (weights @ columns).astype(np.float32))
        device = data.train.user.device
        return vectors.to(device), torch.from_numpy(whole).to(device)

    return _choose(fit, dampings, error, choices)


def _choose(
    fit: Callable[[float, int], Fit],
    dampings: Sequence[float],
    error: Callable[[Fit], float],
    choices: Choices,
) -> Fit:
    """Choose lambda in trials on the items with the most ratings, and return the fit on all that are included."""
    damping = choices.choose("EASE", dampings, lambda option: error(fit(option, TRIAL_ITEMS)))
    return fit(damping, MOST_ITEMS)


def _matrix(
    data: PartyInput, most: int, *, seen: bool = False
) -> tuple[NDArray[np.int64], csr_matrix, csr_matrix]:
    """Return the rows of the `most` items with the most ratings, ascending, their ratings X (N, k), 1 if `seen`, and X^T X."""
    from scipy.sparse import csr_matrix  # a coordinator never loads it

    user, item, rating = arrays(data.train)
    count = np.bincount(item, minlength=data.items)
    popular = np.argsort(-count, kind="stable")[:most]
    kept = np.sort(popular[count[popular] > 0])
    place = np.full(data.items, -1)
    place[kept] = np.arange(len(kept))
    inside = place[item] >= 0
    entries = (rating[inside], (user[inside], place[item[inside]]))
    rated = csr_matrix(entries, shape=(data.users, len(kept)))
    rated.sum_duplicates()
    if seen:
        rated.data[:] = 1.0
    return kept, rated, rated.T @ rated


def _regress(gram: csr_matrix, damping: float) -> Tensor:
    """Return B (k, k) for the Gram matrix X^T X and lambda = `damping`."""
    damped = torch.from_numpy(gram.toarray())
    damped.diagonal().add_(damping)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    weights = -inverse / inverse.diagonal()
    return weights.fill_diagonal_(0.0)

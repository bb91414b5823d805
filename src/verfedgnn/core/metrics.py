"""Accuracy of ratings (RMSE, MAE) and of rankings (Recall@K, NDCG@K, HitRate@K) over a party's own catalogue."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from verfedgnn.core.pairs import Pairs

CHUNK_SCORES = 1 << 23
"""Number of scores in memory at a time while ranking."""


@dataclass(frozen=True)
class RatingErrors:
    """Sums of prediction errors, which can be added over parties."""

    squared: float
    absolute: float
    count: int

    def __add__(self, other: RatingErrors) -> RatingErrors:
        return RatingErrors(
            self.squared + other.squared, self.absolute + other.absolute, self.count + other.count
        )

    @classmethod
    def zero(cls) -> RatingErrors:
        """Return the errors of no ratings, the start of a sum."""
        return cls(0.0, 0.0, 0)

    @property
    def rmse(self) -> float | None:
        """Root mean squared error; None if there are no ratings."""
        return math.sqrt(self.squared / self.count) if self.count else None

    @property
    def mae(self) -> float | None:
        """Mean absolute error; None if there are no ratings."""
        return self.absolute / self.count if self.count else None


def measure_errors(users: Tensor, items: Tensor, pairs: Pairs) -> RatingErrors:
    """Sum the errors of h_u . h_v over rated pairs."""
    error = _errors(users, items, pairs)
    return RatingErrors(float(error.square().sum()), float(error.abs().sum()), len(pairs))


def squared_errors(users: Tensor, items: Tensor, pairs: Pairs) -> Tensor:
    """Return the squared error of h_u . h_v for each rated pair."""
    return _errors(users, items, pairs).square()


def _errors(users: Tensor, items: Tensor, pairs: Pairs) -> Tensor:
    return ((users[pairs.user] * items[pairs.item]).sum(-1) - pairs.rating).double()


@dataclass(frozen=True)
class RankingScores:
    """Sums of ranking scores over users with wanted items, which can be added over parties."""

    recall: float
    ndcg: float
    hits: float
    users: int

    def __add__(self, other: RankingScores) -> RankingScores:
        return RankingScores(
            self.recall + other.recall,
            self.ndcg + other.ndcg,
            self.hits + other.hits,
            self.users + other.users,
        )

    @classmethod
    def zero(cls) -> RankingScores:
        """Return the scores of no users, the start of a sum."""
        return cls(0.0, 0.0, 0.0, 0)

    def means(self, k: int) -> dict[str, float | None]:
        """Return the averages over users by name; None if there are no users."""
        sums = {f"recall@{k}": self.recall, f"ndcg@{k}": self.ndcg, f"hitrate@{k}": self.hits}
        return {name: value / self.users if self.users else None for name, value in sums.items()}


def measure_ranking(
    users: Tensor, items: Tensor, seen: Sequence[Pairs], wanted: Pairs, k: int = 20
) -> RankingScores:
    """Rank a party's whole catalogue for every user with `wanted` items, leaving out the `seen` ones.

    Recall@k = found / min(k, wanted). NDCG@k has gains of 1 and is divided by that of the ideal order.
    HitRate@k is 1 if any wanted item is found.
    """
    device = users.device
    catalogue = len(items)
    judged = torch.unique(wanted.user)
    k = min(k, catalogue)
    discount = 1 / torch.log2(torch.arange(k, device=device, dtype=torch.float64) + 2)
    ideal = torch.cat([discount.new_zeros(1), discount.cumsum(0)])
    seen_user = torch.cat([pairs.user for pairs in seen]).long()
    seen_item = torch.cat([pairs.item for pairs in seen]).long()
    row_of = torch.full((len(users),), -1, dtype=torch.long, device=device)
    totals = torch.zeros(3, dtype=torch.float64, device=device)
    for chunk in judged.split(max(1, CHUNK_SCORES // max(1, catalogue))):
        rows = torch.arange(len(chunk), device=device)
        row_of.fill_(-1)
        row_of[chunk.long()] = rows
        scores = users[chunk] @ items.T
        hidden = row_of[seen_user]
        scores[hidden[hidden >= 0], seen_item[hidden >= 0]] = -torch.inf
        relevant = torch.zeros(scores.shape, dtype=torch.bool, device=device)
        wanted_row = row_of[wanted.user.long()]
        relevant[wanted_row[wanted_row >= 0], wanted.item.long()[wanted_row >= 0]] = True
        found = relevant.gather(1, scores.topk(k, 1).indices).double()
        best = relevant.sum(1).clamp(max=k)
        totals[0] += (found.sum(1) / best).sum()
        totals[1] += (found @ discount / ideal[best]).sum()
        totals[2] += (found.sum(1) > 0).sum()
    recall, ndcg, hits = totals.tolist()
    return RankingScores(recall, ndcg, hits, len(judged))

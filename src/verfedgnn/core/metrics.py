"""Accuracy of ratings (RMSE, MAE) and of rankings (Recall@K, NDCG@K, HitRate@K) over a party's own catalogue."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from verfedgnn.core.list_metrics import Score, rank_each
from verfedgnn.core.pairs import Pairs


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


def measure_errors(
    users: Tensor, items: Tensor, pairs: Pairs, scale: tuple[float, float] | None = None
) -> RatingErrors:
    """Return the errors of h_u . h_v on rated pairs; with a `scale`, predictions are clipped to it, as they are served."""
    predicted = (users[pairs.user] * items[pairs.item]).sum(-1)
    if scale is not None:
        predicted = predicted.clamp(*scale)
    error = (predicted - pairs.rating).double()
    return RatingErrors(float(error.square().sum()), float(error.abs().sum()), len(pairs))


def squared_errors(users: Tensor, items: Tensor, pairs: Pairs) -> Tensor:
    """Return the squared error of h_u . h_v for each rated pair."""
    return _errors(users, items, pairs).square()


def mean_by_user(values: Tensor, pairs: Pairs) -> Tensor:
    """Return the mean value of each user among `pairs`."""
    count = torch.bincount(pairs.user)
    total = torch.zeros(len(count), dtype=values.dtype, device=values.device).index_add_(
        0, pairs.user, values
    )
    return total[count > 0] / count[count > 0]


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
    score: Score, users: int, items: int, seen: Sequence[Pairs], wanted: Pairs, k: int = 20
) -> RankingScores:
    """Rank a party's whole catalogue for every user who has `wanted` items, without the items in `seen`.

    Recall@k = found / min(k, wanted); NDCG@k has a gain of 1 for every wanted item; HitRate@k = any found.
    """
    found = rank_each(score, users, items, seen, wanted, k)
    return RankingScores(
        float(found.recall.sum()), float(found.ndcg.sum()), float(found.hit.sum()), len(found.users)
    )

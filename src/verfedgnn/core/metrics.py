"""Accuracy of ratings (RMSE, MAE) and of rankings (Recall@K, NDCG@K, HitRate@K) over a party's own catalogue."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from verfedgnn.core.pairs import Pairs

CHUNK_SCORES = 1 << 23
"""Scores held in memory at a time."""
MOST_SCORES = 1 << 26
"""Scores from which a choice between models is made; beyond that, users are sampled."""

Score = Callable[[Tensor], Tensor]
"""Returns the scores (n, M_p) of n users, given their rows."""


@dataclass(frozen=True)
class RatingErrors:
    """Sums of prediction errors, which can be added over parties."""

    squared: float = 0.0
    absolute: float = 0.0
    count: int = 0

    def __add__(self, other: RatingErrors) -> RatingErrors:
        squared, absolute = self.squared + other.squared, self.absolute + other.absolute
        return RatingErrors(squared, absolute, self.count + other.count)

    @property
    def rmse(self) -> float | None:
        """Root mean squared error; None if there are no ratings."""
        return math.sqrt(self.squared / self.count) if self.count else None

    @property
    def mae(self) -> float | None:
        """Mean absolute error; None if there are no ratings."""
        return self.absolute / self.count if self.count else None


class RowsOfUsers(Protocol):
    """Users' vectors (N, C): a tensor, or what puts rows together when they are asked for."""

    def __getitem__(self, rows: Tensor, /) -> Tensor: ...


def measure_errors(
    users: RowsOfUsers, items: Tensor, pairs: Pairs, scale: tuple[float, float] | None = None
) -> RatingErrors:
    """Return the summed errors of h_u . h_v on rated pairs (`prediction_errors`)."""
    error = prediction_errors(users, items, pairs, scale)
    return RatingErrors(float(error.square().sum()), float(error.abs().sum()), len(pairs))


def prediction_errors(
    users: RowsOfUsers, items: Tensor, pairs: Pairs, scale: tuple[float, float] | None = None
) -> Tensor:
    """Return h_u . h_v less the rating of each pair; with a `scale`, predictions are clipped to it, as they are served."""
    predicted = (users[pairs.user] * items[pairs.item]).sum(-1)
    if scale is not None:
        predicted = predicted.clamp(*scale)
    return (predicted - pairs.rating).double()


@dataclass(frozen=True)
class RankingScores:
    """Sums of ranking scores over users with wanted items, which can be added over parties."""

    recall: float = 0.0
    ndcg: float = 0.0
    hits: float = 0.0
    users: int = 0

    def __add__(self, other: RankingScores) -> RankingScores:
        recall, ndcg, hits = self.recall + other.recall, self.ndcg + other.ndcg, self.hits + other.hits
        return RankingScores(recall, ndcg, hits, self.users + other.users)

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
    ranks = rank_each(score, users, items, seen, wanted, k)
    recall, ndcg, hits = (float(values.sum()) for values in (ranks.recall, ranks.ndcg, ranks.hit))
    return RankingScores(recall, ndcg, hits, len(ranks.users))


@dataclass(frozen=True)
class UserRanks:
    """The quality of each judged user's list."""

    users: Tensor
    """Rows of the users with wanted items."""
    recall: Tensor
    """Found items, divided by min(K, wanted items)."""
    ndcg: Tensor
    """Normalised discounted cumulative gain, with a gain of 1 for every wanted item."""
    hit: Tensor
    """1 if the list has any wanted item, else 0."""


def sample_users(users: Tensor, items: int) -> Tensor:
    """Return the users whose scores of all items are at most `MOST_SCORES`: every n-th, so that nothing but the data decides."""
    count = max(1, MOST_SCORES // max(1, items))
    if len(users) <= count:
        return users
    return users[torch.linspace(0, len(users) - 1, count, device=users.device).long()]


def rank_each(
    score: Score,
    users: int,
    items: int,
    seen: Sequence[Pairs],
    wanted: Pairs,
    k: int = 20,
    *,
    sample: bool = False,
) -> UserRanks:
    """Rank the catalogue for every user who has `wanted` items, or for a `sample` of them, without the items in `seen`."""
    device = wanted.user.device
    judged = torch.unique(wanted.user).long()
    if sample:
        judged = sample_users(judged, items)
    ranks = [torch.zeros((3, 0), dtype=torch.float64, device=device)]
    for row_of, scores in score_unseen(score, judged, users, items, seen):
        row = row_of[wanted.user.long()]
        ranks.append(list_quality(scores, row[row >= 0], wanted.item.long()[row >= 0], k))
    recall, ndcg, hit = torch.cat(ranks, 1)
    return UserRanks(judged, recall, ndcg, hit)


def score_unseen(
    score: Score, judged: Tensor, users: int, items: int, seen: Sequence[Pairs]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the scores (n, M) of blocks of the `judged` users, -inf for items in `seen`, after the row of each user (N,), or -1."""
    seen_user = torch.cat([pairs.user for pairs in seen]).long()
    seen_item = torch.cat([pairs.item for pairs in seen]).long()
    row_of = torch.full((users,), -1, dtype=torch.long, device=judged.device)
    for chunk in torch.split(judged, max(1, CHUNK_SCORES // max(1, items))):
        row_of.fill_(-1)
        row_of[chunk] = torch.arange(len(chunk), device=judged.device)
        scores = score(chunk)
        hidden = row_of[seen_user]
        scores[hidden[hidden >= 0], seen_item[hidden >= 0]] = -torch.inf
        yield row_of, scores


def list_quality(scores: Tensor, row: Tensor, item: Tensor, k: int) -> Tensor:
    """Return recall, NDCG and hit (3, n) of the k highest scores (n, M) of each user, who want the pairs (row, item)."""
    k = min(k, scores.shape[1])
    discount = 1 / torch.log2(torch.arange(k, device=scores.device, dtype=torch.float64) + 2)
    ideal = torch.cat([discount.new_zeros(1), discount.cumsum(0)])
    wanted = torch.zeros_like(scores, dtype=torch.bool)
    wanted[row, item] = True
    best = wanted.sum(1).clamp(max=k)
    hits = wanted.gather(1, scores.topk(k, 1).indices).double()
    return torch.stack([hits.sum(1) / best, hits @ discount / ideal[best], (hits.sum(1) > 0).double()])

"""Recall@K, NDCG@K and HitRate@K of each user's list, over a party's whole catalogue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from verfedgnn.core.pairs import Pairs

CHUNK_SCORES = 1 << 23
"""Scores held in memory at a time."""

Score = Callable[[Tensor], Tensor]
"""Returns the scores (n, M_p) of n users, given their rows."""


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


def rank_each(
    score: Score, users: int, items: int, seen: Sequence[Pairs], wanted: Pairs, k: int = 20
) -> UserRanks:
    """Rank the catalogue for every user who has `wanted` items, without the items in `seen`."""
    device = wanted.user.device
    judged = torch.unique(wanted.user).long()
    seen_user = torch.cat([pairs.user for pairs in seen]).long()
    seen_item = torch.cat([pairs.item for pairs in seen]).long()
    row_of = torch.full((users,), -1, dtype=torch.long, device=device)
    found = []
    for chunk in judged.split(max(1, CHUNK_SCORES // max(1, items))):
        row_of.fill_(-1)
        row_of[chunk] = torch.arange(len(chunk), device=device)
        scores = score(chunk)
        hidden = row_of[seen_user]
        scores[hidden[hidden >= 0], seen_item[hidden >= 0]] = -torch.inf
        relevant = torch.zeros(scores.shape, dtype=torch.bool, device=device)
        wanted_row = row_of[wanted.user.long()]
        relevant[wanted_row[wanted_row >= 0], wanted.item.long()[wanted_row >= 0]] = True
        found.append(list_quality(scores, relevant, k))
    recall, ndcg, hit = (
        torch.cat(found, 1) if found else torch.zeros((3, 0), dtype=torch.float64, device=device)
    )
    return UserRanks(judged, recall, ndcg, hit)


def list_quality(scores: Tensor, relevant: Tensor, k: int) -> Tensor:
    """Return recall, NDCG and hit (3, n) of the k highest scores (n, M) of each user."""
    k = min(k, scores.shape[1])
    discount = 1 / torch.log2(torch.arange(k, device=scores.device, dtype=torch.float64) + 2)
    ideal = torch.cat([discount.new_zeros(1), discount.cumsum(0)])
    found = relevant.gather(1, scores.topk(k, 1).indices).double()
    best = relevant.sum(1).clamp(max=k)
    return torch.stack([found.sum(1) / best, found @ discount / ideal[best], (found.sum(1) > 0).double()])

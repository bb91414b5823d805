"""Exact ranking of a party's items for many users at once: one matrix product, the item weights, then a partial sort."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.runs.party_model import PartyModel

Rows = NDArray[np.int64]
BLOCK = 128
"""Items per block of the partial sort: the k best items lie in the k blocks with the highest maxima."""
MAX_SCORES = 1 << 23

NO_ITEMS: Rows = np.empty(0, np.int64)
_thread_memory = threading.local()


@dataclass(frozen=True)
class RankingQuery:
    """A request for one user's k best items in one party's catalogue."""

    vector: Tensor
    k: int
    exclude: Rows
    allowed: Tensor | None = None
    """Mask of the items that may be returned; None allows all."""
    owned: Rows = field(default_factory=lambda: NO_ITEMS)
    """Items that score others through the item weights: the user's training ratings, or a newcomer's."""


class RankedItems(NamedTuple):
    """At most k items in descending order of score."""

    rows: list[int]
    scores: list[float]


class ItemRanker:
    """One party's item vectors, laid out for products with many user vectors, and its item weights, if any."""

    def __init__(self, model: PartyModel, *, ranks: bool) -> None:
        self.model = model
        self.ranks = ranks
        self.count = model.items.shape[0]
        self.item_weights = model.item_scores
        padding = -self.count % BLOCK
        self._columns = torch.nn.functional.pad(model.items, (0, 0, 0, padding)).T.contiguous()

    def find_owned(self, user: int) -> Rows:
        """Return the rows of the items of a trained user that score others; none without item weights."""
        return NO_ITEMS if self.item_weights is None else self.item_weights.find_owned(user)

    def rank(self, queries: Sequence[RankingQuery]) -> list[RankedItems]:
        """Return the answers: predicted ratings or, of a model of lists, softmax shares of the items that are not excluded."""
        step = max(1, MAX_SCORES // self._columns.shape[1])
        blocks = (self._rank(queries[start : start + step]) for start in range(0, len(queries), step))
        return [answer for block in blocks for answer in block]

    def _rank(self, queries: Sequence[RankingQuery]) -> list[RankedItems]:
        scores = _score_memory(len(queries), self._columns.shape[1])
        torch.mm(torch.stack([query.vector for query in queries]), self._columns, out=scores)
        if self.item_weights is not None:
            self.item_weights.add_scores(scores, [query.owned for query in queries])
        scores[:, self.count :] = -torch.inf
        # One NumPy assignment for all queries: small torch operations would each wait for the interpreter lock.
        width = scores.shape[1]
        excluded = np.concatenate([query.exclude + place * width for place, query in enumerate(queries)])
        scores.numpy().reshape(-1)[excluded] = -np.inf
        total = scores.logsumexp(1, keepdim=True) if self.ranks else None
        for place, query in enumerate(queries):
            if query.allowed is not None:
                scores[place, : self.count].masked_fill_(~query.allowed, -torch.inf)
        values, rows = _find_largest(scores, min(self.count, max(query.k for query in queries)))
        available = (values > -torch.inf).sum(1).tolist()
        if total is not None:
            values = (values - total).exp()
        answers = zip(queries, rows.tolist(), values.tolist(), available, strict=True)
        return [RankedItems(r[: min(query.k, end)], v[: min(query.k, end)]) for query, r, v, end in answers]


def _score_memory(rows: int, columns: int) -> Tensor:
    """Return this thread's score matrix, reused because allocating one costs as much as the product itself."""
    memory: Tensor | None = getattr(_thread_memory, "scores", None)
    if memory is None or memory.numel() < rows * columns:
        memory = _thread_memory.scores = torch.empty(rows * columns)
    return memory[: rows * columns].view(rows, columns)


def _find_largest(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the values and positions of the k largest scores in each row of `scores` (B, M), exactly."""
    blocks = scores.view(len(scores), -1, BLOCK)
    if k >= blocks.shape[1]:
        top = scores.topk(k, 1)
        return top.values, top.indices
    chosen = blocks.amax(2).topk(k, 1).indices
    candidates = blocks.gather(1, chosen.unsqueeze(2).expand(-1, -1, BLOCK)).flatten(1)
    top = candidates.topk(k, 1)
    return top.values, chosen.gather(1, top.indices // BLOCK) * BLOCK + top.indices % BLOCK


def rank_together(queries: Sequence[tuple[ItemRanker, RankingQuery]]) -> list[RankedItems]:
    """Return the answers in the order of `queries`; those to one ranker are computed together."""
    by_ranker: dict[ItemRanker, list[int]] = defaultdict(list)
    for place, (ranker, _) in enumerate(queries):
        by_ranker[ranker].append(place)
    answers: dict[int, RankedItems] = {}
    for ranker, places in by_ranker.items():
        answers.update(zip(places, ranker.rank([queries[place][1] for place in places]), strict=True))
    return [answers[place] for place in range(len(queries))]

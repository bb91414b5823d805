"""The best items for many users at once: one product of matrices, then an exact partial sort that reads the scores once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.runs.party_model import PartyModel

BLOCK = 128
"""Items whose maximum stands for them: the k best items lie in the k blocks with the highest maxima."""

AT_ONCE = 1 << 23
"""Scores held at a time."""
_own = threading.local()

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Wish:
    """One user's question to one party's catalogue."""

    vector: Tensor
    """h_u (C,)."""
    k: int
    leave_out: Rows
    """Items the user knows."""
    only: Tensor | None = None
    """A mask over the items; None: all."""


@dataclass(frozen=True)
class Found:
    """The answer: items by falling score, at most k."""

    rows: list[int]
    scores: list[float]


class Shelf:
    """A party's item vectors of one model, laid out for products with many users."""

    def __init__(self, model: PartyModel, *, ranks: bool) -> None:
        self.users, self.items, self.ranks = model.users, model.items, ranks
        self.count = model.items.shape[0]
        padded = -self.count % BLOCK
        self._columns = torch.nn.functional.pad(model.items, (0, 0, 0, padded)).T.contiguous()

    def pair(self, user: int, item: int) -> float:
        """One user's score of one item."""
        if self.ranks:
            return float((self.items @ self.users[user]).softmax(0)[item])
        return float(self.users[user] @ self.items[item])

    def best(self, wishes: Sequence[Wish]) -> list[Found]:
        """The answers, in order. Scores are predictions; of a ranking, shares of the party's catalogue."""
        step = max(1, AT_ONCE // self._columns.shape[1])
        return [
            found
            for start in range(0, len(wishes), step)
            for found in self._best(wishes[start : start + step])
        ]

    def _best(self, wishes: Sequence[Wish]) -> list[Found]:
        scores = _room(len(wishes), self._columns.shape[1])
        torch.mm(torch.stack([wish.vector for wish in wishes]), self._columns, out=scores)
        scores[:, self.count :] = -torch.inf
        whole = scores.logsumexp(1, keepdim=True) if self.ranks else None
        for place, wish in enumerate(wishes):
            if wish.only is not None:
                scores[place, : self.count].masked_fill_(~wish.only, -torch.inf)
        # All at once, in NumPy: small steps in torch would each ask for the interpreter's lock again.
        known = np.concatenate(
            [wish.leave_out + place * scores.shape[1] for place, wish in enumerate(wishes)]
        )
        scores.numpy().reshape(-1)[known] = -np.inf
        values, rows = _largest(scores, min(self.count, max(wish.k for wish in wishes)))
        if whole is not None:
            values = (values - whole).exp()
        finite = (values > 0 if self.ranks else values > -torch.inf).sum(1).tolist()
        ends = [min(wish.k, there) for wish, there in zip(wishes, finite, strict=True)]
        return [
            Found(r[:end], v[:end]) for r, v, end in zip(rows.tolist(), values.tolist(), ends, strict=True)
        ]


def _room(rows: int, columns: int) -> Tensor:
    """Memory for scores, each thread's own and used again: a fresh piece would cost as much as the product itself."""
    room: Tensor | None = getattr(_own, "room", None)
    if room is None or room.numel() < rows * columns:
        room = _own.room = torch.empty(rows * columns)
    return room[: rows * columns].view(rows, columns)


def _largest(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Values and places of the k largest of each row (B, M), exact."""
    blocks = scores.view(len(scores), -1, BLOCK)
    if k >= blocks.shape[1]:
        top = scores.topk(k, 1)
        return top.values, top.indices
    chosen = blocks.amax(2).topk(k, 1).indices
    inside = blocks.gather(1, chosen.unsqueeze(2).expand(-1, -1, BLOCK)).flatten(1)
    top = inside.topk(k, 1)
    return top.values, chosen.gather(1, top.indices // BLOCK) * BLOCK + top.indices % BLOCK

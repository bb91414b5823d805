"""The weights between a party's items (EASE), laid out so that the items of many users are added up at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.core.item_item import ItemScores

Rows = NDArray[np.int64]


class ItemWeights:
    """One party's weights between items: what each item that a user has adds to the score of every other item."""

    def __init__(self, scores: ItemScores) -> None:
        kept = scores.kept.numpy()
        self._scores = scores
        self._place: Rows = np.full(scores.items, -1)
        self._place[kept] = np.arange(len(kept))
        self._pointers = scores.pointers.numpy()
        self._history: Rows = kept[scores.history.numpy()].astype(np.int64)

    def find_owned(self, user: int) -> Rows:
        """Return the rows of the items that a trained user has at the party."""
        return self._history[self._pointers[user] : self._pointers[user + 1]]

    def add_scores(self, scores: Tensor, owned: Sequence[Rows]) -> None:
        """Add to `scores` (n, M or more) what the items `owned` by each of n users contribute."""
        places = [self._place[rows] for rows in owned]
        places = [place[place >= 0] for place in places]
        counts = np.array([len(place) for place in places])
        if not counts.any():
            return
        starts = torch.from_numpy(np.cumsum(counts) - counts)
        sums = torch.nn.functional.embedding_bag(
            torch.from_numpy(np.concatenate(places)), self._scores.weights, starts, mode="sum"
        )
        if len(self._scores.kept) == self._scores.items:
            scores[:, : self._scores.items] += sums
        else:
            scores.index_add_(1, self._scores.kept, sums)

    def split_score(self, item: int, owned: Rows) -> NDArray[np.float64]:
        """Return what each of the items `owned` adds to the score of `item` (n,)."""
        parts = np.zeros(len(owned))
        place = self._place[owned]
        inside = place >= 0
        if self._place[item] >= 0:
            column = self._scores.weights[:, self._place[item]]
            parts[inside] = column[torch.from_numpy(place[inside])].numpy()
        return parts

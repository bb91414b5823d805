"""Sums of outer products over an item's raters, for ridge regressions that solve all items of a party at home."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from verfedgnn.core.graph import Graph

MOST_VALUES = 1 << 22
"""Most gathered values of user vectors in memory at a time."""


def item_grams(graph: Graph, users: Tensor, weights: Tensor | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    r"""Yield groups of items (n,) and :math:`\sum_{u \in N(v)} w_{uv} x_u x_u^\top` for each of them (n, K, K).

    `users` holds x_u (N, K), `weights` w_uv in the order of the edges by user (E,), by default 1. Items with a similar number of
    raters form a group, so that little of it is padding.
    """
    pointers, raters = (part.long() for part in graph.by_item)
    degrees = pointers.diff()
    order = torch.argsort(degrees, stable=True)
    by_item = None if weights is None else weights[graph.order]
    padded = torch.cat([users, users.new_zeros((1, users.shape[1]))])
    for items in _groups(order, degrees, users.shape[1]):
        longest = int(degrees[items[-1]])
        place = torch.arange(longest, device=users.device)
        inside = place < degrees[items].unsqueeze(1)
        edges = torch.where(inside, pointers[items].unsqueeze(1) + place, 0)
        rows = torch.where(inside, raters[edges] if len(raters) else edges, len(users))
        gathered = padded[rows]
        weighted = gathered if by_item is None else gathered * by_item[edges].unsqueeze(2)
        yield items, weighted.transpose(1, 2) @ gathered


def _groups(order: Tensor, degrees: Tensor, columns: int) -> Iterator[Tensor]:
    """Cut items in ascending order of degree into groups: the largest degree is at most twice the smallest, plus four."""
    ascending = degrees[order]
    start = 0
    while start < len(order):
        low = int(ascending[start])
        within = int(torch.searchsorted(ascending, 2 * low + 4, right=True))
        most = max(1, MOST_VALUES // (columns * (max(1, int(ascending[within - 1])) + columns)))
        stop = min(within, start + most)
        yield order[start:stop]
        start = stop

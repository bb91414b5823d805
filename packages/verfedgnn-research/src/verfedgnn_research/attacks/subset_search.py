r"""The exact solution of App. H's integer program: the subset of candidates nearest to a victim.

.. math::
    \min_{S, 1 \le |S| \le m} \left| x - f(|S|) \sum_{j \in S} c_j \right|_1,
    \qquad f(c) = 1/\sqrt c \text{ (GCN)}, \quad 1/c \text{ (GGNN)}, \quad 1 \text{ (GAT, gradients)}

All subsets are tried; with 300 candidates and 500 victims that takes a core some 15 seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

MOST = 3
"""Size of the largest subset (App. H: "we set the upper limit of c as 3")."""
DISTANCES = 1 << 25
"""Number of distances computed at a time (128 MiB)."""

Scale = Callable[[int], float]

SCALES: dict[str, Scale] = {"gcn": lambda c: 1 / math.sqrt(c), "ggnn": lambda c: 1 / c, "gat": lambda c: 1.0}
"""f by GNN: an adversarial user has one neighbour; a user with c neighbours has their sum times f(c)."""


@dataclass(frozen=True)
class NearestSubsets:
    """The nearest subset for each of V victims."""

    members: Tensor
    """Rows of the candidates in the subset, ascending, padded with -1 (V, m)."""
    distance: Tensor
    """l1 distance of the subset (V,)."""


def best_subsets(
    victims: Tensor, candidates: Tensor, scale: Scale, *, most: int = MOST, margin: float = 0.0
) -> NearestSubsets:
    """Find the subset of at most `most` candidates (A, D) nearest to each victim (V, D); ties go to a
    smallest subset.

    With a `margin`, a larger subset must be nearer by more than that.
    """
    best = torch.full((len(victims),), torch.inf, device=victims.device)
    members = torch.full((len(victims), most), -1, dtype=torch.int64, device=victims.device)
    rows = max(1, DISTANCES // max(1, len(victims)))
    for size in range(1, min(most, len(candidates)) + 1):
        bound = best - margin
        numbers = torch.arange(len(candidates), device=candidates.device)
        for subsets in torch.split(torch.combinations(numbers, size), rows):
            sums = candidates[subsets].sum(1) * scale(size)
            distance, position = torch.cdist(victims, sums, p=1).min(1)
            better = torch.nonzero(distance < bound).squeeze(1)
            best[better] = bound[better] = distance[better]
            members[better, :size] = subsets[position[better]]
    return NearestSubsets(members, best)

r"""The attack on gradients (App. I.4, Table 7): which adversaries' gradients add up to the victim's.

.. math::
    \min_{S, 1 \le |S| \le 3} \left| g_u - f(|S|) \sum_{j \in S} g_j \right|_1

A user's gradient is a sum over its ratings, to which each adversary contributes one term. f is 1 for plain and noisy gradients.
Ternary ones are -1, 0 or 1, and "normalized to [-1, 1]" is f(c) = 1/c here: a sum of c of them is within [-c, c].
"""

from __future__ import annotations

import torch
from torch import Tensor

from verfedgnn.research.attacks.subset_search import MOST, NearestSubsets, best_subsets

JITTER = 1e-4
MARGIN = 1e-2
"""Both far below 1/6, the least distance between two different normalised sums of ternary gradients."""


def plain_sum(size: int) -> float:
    """f of plain and noisy gradients."""
    return 1.0


def normalised_sum(size: int) -> float:
    """f of ternary gradients."""
    return 1 / size


def match_gradients(
    victims: Tensor, adversarial: Tensor, mechanism: str, generator: torch.Generator, *, most: int = MOST
) -> NearestSubsets:
    """The adversaries (A, D) whose gradients add up to each victim's (V, D); the inferred items are theirs.

    Ternary gradients are mostly 0 and often alike. Of equally near subsets one of the smallest is taken, and which one is left to
    chance by `generator`, victim by victim; otherwise one adversary with a gradient of 0 would be claimed for most of them.
    """
    if mechanism != "ternary":
        return best_subsets(victims, adversarial, plain_sum, most=most)
    near, about = (
        x + JITTER * torch.rand(x.shape, generator=generator, device=x.device) for x in (victims, adversarial)
    )
    return best_subsets(near, about, normalised_sum, most=most, margin=MARGIN)

r"""The attack on gradients (App. I.4, Table 7), which looks for adversaries whose gradients add up to the
victim's.

.. math::
    \min_{S, 1 \le |S| \le 3} \left| g_u - f(|S|) \sum_{j \in S} g_j \right|_1

A user's gradient is a sum over its ratings, to which each adversary contributes one term. f is 1 for plain
and noisy gradients. Ternary gradients are -1, 0 or 1, and a sum of c of them lies within [-c, c]; the paper's
"normalized to [-1, 1]" is read as f(c) = 1/c.
"""

from __future__ import annotations

import torch
from torch import Tensor

from verfedgnn_research.attacks.subset_search import MOST, NearestSubsets, best_subsets

JITTER = 1e-4
MARGIN = 1e-2
"""Both are far below 1/6, the least distance between two different normalised sums of ternary gradients."""


def plain_sum(size: int) -> float:
    """Return f for plain and noisy gradients."""
    return 1.0


def normalised_sum(size: int) -> float:
    """Return f for ternary gradients."""
    return 1 / size


def match_gradients(
    victims: Tensor, adversarial: Tensor, mechanism: str, generator: torch.Generator, *, most: int = MOST
) -> NearestSubsets:
    """Find the adversaries (A, D) whose gradients add up to each victim's (V, D); their items are the
    inferred ones.

    Ternary gradients are mostly 0 and often alike. Among equally near subsets one of the smallest is chosen
    at random by `generator`, for each victim; otherwise one adversary with a gradient of 0 would be claimed
    for most victims.
    """
    if mechanism != "ternary":
        return best_subsets(victims, adversarial, plain_sum, most=most)
    near, about = (
        x + JITTER * torch.rand(x.shape, generator=generator, device=x.device) for x in (victims, adversarial)
    )
    return best_subsets(near, about, normalised_sum, most=most, margin=MARGIN)

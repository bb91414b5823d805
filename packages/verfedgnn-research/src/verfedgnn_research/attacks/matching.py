r"""Attacks by matching (Sec. 4.1, Sec. 6.2.3), which look for the adversary whose embedding was seen.

.. math::
    \hat v_i = \arg\min_{v' \in N_{adv}} | e_{v'}^0 - e_{v_i}^0 |_1
"""

from __future__ import annotations

import torch
from torch import Tensor

from verfedgnn_research.attacks.subset_search import MOST, NearestSubsets, best_subsets

IDENTICAL = 1e-6
"""l1 distance up to which two embeddings count as identical."""
NEAREST = 3
"""Number of adversaries matched to a user, the same as the subset search may choose."""
VALUES = 1 << 22
"""Number of distances computed at a time."""

JITTER = 1e-4
APART = 1e-2
"""Both are far below 1/6, the least distance between two different normalised sums of ternary gradients."""


def match_items(seen: Tensor, adversarial: Tensor, *, tolerance: float = IDENTICAL) -> Tensor:
    """Return the adversary whose item each embedding belongs to (E,), from (E, D) and (A, D), or -1
    (FedPerGNN).

    The party receives its users' items elsewhere one by one and without names; it can name those of its
    adversaries. An item has the same embedding for everybody, so only identical embeddings are a match.
    Claiming the nearest embedding would also name every item that no adversary rated, always wrongly, and
    could not reach the paper's precision of 1.00.
    """
    match = torch.empty(len(seen), dtype=torch.int64, device=seen.device)
    for start in range(0, len(seen), rows := max(1, VALUES // max(1, len(adversarial)))):
        distance, nearest = torch.cdist(seen[start : start + rows], adversarial, p=1).min(1)
        match[start : start + rows] = torch.where(distance <= tolerance, nearest, -1)
    return match


def match_users(victims: Tensor, adversarial: Tensor, *, most: int = NEAREST) -> Tensor:
    """Return the `most` adversaries with generated neighbourhoods nearest to each victim's: (V, D), (A, D)
    -> (V, most) (FedSage+).

    The generator produces one vector per user, the sum of missing items, which does not tell how many they
    are. So the attack claims as many as the attack on VerFedGNN may claim.
    """
    return (
        torch.cdist(victims, adversarial, p=1)
        .topk(min(most, len(adversarial)), dim=1, largest=False, sorted=True)
        .indices
    )


def match_gradients(
    victims: Tensor, adversarial: Tensor, mechanism: str, generator: torch.Generator, *, most: int = MOST
) -> NearestSubsets:
    r"""Find the adversaries (A, D) whose gradients add up to each victim's (V, D), whose items are inferred (App. I.4, Table 7).

    .. math::
        \min_{S, 1 \le |S| \le 3} \left| g_u - f(|S|) \sum_{j \in S} g_j \right|_1

    A user's gradient is a sum over its ratings, to which each adversary contributes one term. f is 1 for plain
    and noisy gradients. Ternary gradients are -1, 0 or 1, and a sum of c of them lies within [-c, c]; the paper's
    "normalized to [-1, 1]" is read as f(c) = 1/c.

    Ternary gradients are mostly 0 and often alike. Among equally near subsets one of the smallest is chosen
    at random by `generator`, for each victim; otherwise one adversary with a gradient of 0 would be claimed
    for most victims.
    """
    if mechanism != "ternary":
        return best_subsets(victims, adversarial, lambda size: 1.0, most=most)
    near, about = (
        x + JITTER * torch.rand(x.shape, generator=generator, device=x.device) for x in (victims, adversarial)
    )
    return best_subsets(near, about, lambda size: 1 / size, most=most, margin=APART)

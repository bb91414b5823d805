r"""Attacks by matching (Sec. 4.1, Sec. 6.2.3), which look for the adversary whose embedding was seen.

.. math::
    \hat v_i = \arg\min_{v' \in N_{adv}} | e_{v'}^0 - e_{v_i}^0 |_1
"""

from __future__ import annotations

import torch
from torch import Tensor

IDENTICAL = 1e-6
"""l1 distance up to which two embeddings count as identical."""
NEAREST = 3
"""Number of adversaries matched to a user, the same as the subset search may choose."""
VALUES = 1 << 22
"""Number of distances computed at a time."""


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

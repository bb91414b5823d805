r"""Attacks by matching (Sec. 4.1, Sec. 6.2.3): which adversary's embedding is the one that is seen.

.. math::
    \hat v_i = \arg\min_{v' \in N_{adv}} | e_{v'}^0 - e_{v_i}^0 |_1
"""

from __future__ import annotations

import torch
from torch import Tensor

IDENTICAL = 1e-6
"""l1 distance up to which two embeddings are one."""
NEAREST = 3
"""Adversaries that are matched to a user: as many as the subset search may take."""
VALUES = 1 << 22
"""Distances that are computed at a time."""


def match_items(seen: Tensor, adversarial: Tensor, *, tolerance: float = IDENTICAL) -> Tensor:
    """FedPerGNN: the adversary whose item each embedding is of (E,), from (E, D) and (A, D); -1 for none.

    The party is handed its users' items elsewhere one by one, nameless; those of its adversaries it can name. The same item has
    the same embedding for everybody, so a match is a claim only where the two are identical. The nearest one regardless would
    also name every item that no adversary rated, always wrongly, and could not have the paper's precision of 1.00.
    """
    match = torch.empty(len(seen), dtype=torch.int64, device=seen.device)
    for start in range(0, len(seen), rows := max(1, VALUES // max(1, len(adversarial)))):
        distance, nearest = torch.cdist(seen[start : start + rows], adversarial, p=1).min(1)
        match[start : start + rows] = torch.where(distance <= tolerance, nearest, -1)
    return match


def match_users(victims: Tensor, adversarial: Tensor, *, most: int = NEAREST) -> Tensor:
    """FedSage+: the `most` adversaries whose generated neighbourhoods are nearest to each victim's, (V, D), (A, D) -> (V, most).

    What is generated is one vector a user, the sum of what it lacks, so nothing in it says how many items that is; nearest
    ones are claimed until as many as the attack on VerFedGNN may claim.
    """
    return (
        torch.cdist(victims, adversarial, p=1)
        .topk(min(most, len(adversarial)), dim=1, largest=False, sorted=True)
        .indices
    )

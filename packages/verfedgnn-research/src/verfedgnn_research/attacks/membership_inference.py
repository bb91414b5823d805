r"""Membership inference on the final model: was a rating part of the training data?

.. math::
    s_{uv} = - (h_u \cdot h_v - r_{uv})^2, \qquad \text{yes if } s_{uv} \ge t

Who: an outsider who holds a party's model, h_u (N, C) and h_v (M_p, C), or gets predictions from it; messages
are not needed. Needs: a rating (u, v, r) known from elsewhere. Tries to learn: whether it was in the party's
training part. Training ratings are compared with test ratings, which the model never saw. Validation ratings
are the control: they choose the round and the gate but train nothing, so they should look like test ratings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from verfedgnn.core.metrics import prediction_errors
from verfedgnn.runs.prepared_data import Prepared
from verfedgnn_research.attacks.separation import Separation, separate


@dataclass(frozen=True)
class MembershipScores:
    """Separation of training ratings from test ratings over all parties."""

    trained: Separation
    """Separation of training ratings from test ratings."""
    control: Separation
    """Separation of validation ratings from test ratings, which should fail."""
    train_rmse: float
    test_rmse: float


def membership(
    prepared: Sequence[Prepared], models: Sequence[tuple[Tensor, Tensor]], generator: torch.Generator
) -> MembershipScores:
    """Attack every party's model (h_u, h_v); `generator` draws the halves on which a threshold is chosen
    and evaluated.
    """
    errors: dict[str, list[Tensor]] = {"train": [], "valid": [], "test": []}
    for party, (users, items) in zip(prepared, models, strict=True):
        for part, found in errors.items():
            found.append(prediction_errors(users, items, getattr(party, part)).square())
    train, valid, test = (torch.cat(found) for found in errors.values())

    def against_test(some: Tensor) -> Separation:
        truth = torch.cat([torch.ones(len(some), dtype=torch.bool), torch.zeros(len(test), dtype=torch.bool)])
        return separate(-torch.cat([some, test]), truth, generator)

    return MembershipScores(
        against_test(train), against_test(valid), float(train.mean().sqrt()), float(test.mean().sqrt())
    )

r"""The coordinator reads gradients of user embeddings and looks for rows other than 0.

.. math::
    s_u = | g_u |_1, \qquad g_u = \partial L_p / \partial e_u \text{ as it was sent}

Who: the coordinator. Needs: the messages of one round. Tries to learn: which users have ratings in a party's
batch; with all ratings in every batch, which users have ratings at the party.

Without masking the coordinator reads every party's gradient. An unprotected gradient is 0 for users without
ratings. Clipping and ternary quantization keep zeros, so any other value *proves* a rating. Laplace noise is
added to zeros as well. With masking the coordinator reads only the sum over parties, which shows that a user
has ratings somewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from verfedgnn.research.attacks.recording import TOGETHER, RecordedFederation, Trip
from verfedgnn.research.attacks.separation import Separation, separate


def strength(rows: Tensor) -> Tensor:
    """Return |g_u|_1 of each user (N,) from gradients as read (N, D)."""
    return rows.double().abs().sum(1)


@dataclass(frozen=True)
class GradientReading:
    """What one round's gradients reveal about one party."""

    separation: Separation
    """Separation of users with ratings in the party's batch from the others, by strength."""
    proven: float
    """Share of the users with ratings in the batch whose row is not 0."""
    false: float
    """Share of the other users whose row is not 0. If it is 0, a row other than 0 is proof of a rating."""


def read_trip(
    federation: RecordedFederation, trip: Trip, generator: torch.Generator
) -> dict[str, GradientReading]:
    """Return the coordinator's best reading of each party: from the party's own rows, or with masking from
    the rows of the sum.

    Parties in whose batch all users or no users have a rating are left out: there is nothing to tell apart.
    """
    seen = federation.sent_gradients(trip)
    readings = {}
    for p, party in enumerate(federation.parties):
        name = party.data.name
        if name not in trip.replies:
            continue
        rated = federation.counts(p, federation.coordinator.round) > 0
        if bool(rated.all()) or not bool(rated.any()):
            continue
        score = strength(seen[name if name in seen else TOGETHER])
        shown = score > 0
        readings[name] = GradientReading(
            separate(score, rated, generator),
            float(shown[rated].double().mean()),
            float(shown[~rated].double().mean()),
        )
    return readings

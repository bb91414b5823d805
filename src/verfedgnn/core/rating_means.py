r"""User and item means: the simplest model of ratings, alone and shared between parties (docs/model.md).

A party's own means predict

.. math::
    \hat r_{uv} = \mu_p + b_v + b_u, \qquad
    b_v = \frac{\sum_u (r_{uv} - \mu_p)}{\lambda_v + n_v}, \qquad b_u = \frac{\sum_v e_{uv}}{\lambda_u + n_u},
    \qquad e_{uv} = r_{uv} - \mu_p - b_v .

Federated means shrink b_u towards what the other parties know about the user instead of towards 0. Let the user's offset at
party q vary around a shared one with variance :math:`\tau^2`, and a rating around it with variance :math:`\sigma^2`. The mean
residual of n ratings then has the precision :math:`n / (n + \kappa) / \tau^2` with :math:`\kappa = \sigma^2 / \tau^2`, so
each party shares two numbers per user,

.. math::
    s_u^q = \frac{\sum_v e_{uv}}{n_u^q + \kappa}, \qquad w_u^q = \frac{n_u^q}{n_u^q + \kappa},

and from the sums S and W over the other parties a party obtains

.. math::
    o_u = \frac{S_u}{W_u + c}, \qquad b_u = \frac{\sum_v e_{uv} + \lambda_u o_u}{n_u + \lambda_u} .
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from verfedgnn.core.pairs import Pairs

Floats = NDArray[np.float64]

ITEM_DAMPINGS = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Values of lambda_v that are tried on the validation part."""
USER_DAMPINGS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Values of lambda_u that are tried on the validation part."""
PRIOR_WEIGHTS = (0.1, 0.3, 1.0, 3.0)
"""Values of c that are tried on the validation part."""
USER_MEAN_COLUMNS = 2
"""Number of columns, s_u and w_u, that are appended to a party's neighbourhoods."""
LARGEST_MEAN = 2.0
"""Bound on s_u, in units of the rating scale."""
SHARED_DAMPING = 8.0
"""kappa of the shared numbers. It is the same at all parties, so that their sums add up."""


@dataclass(frozen=True)
class Means:
    """A party's mean, its items' offsets and its users' residuals."""

    mean: float
    item_offset: Floats
    """b_v (M_p,)."""
    residual_sum: Floats
    """Sum of a user's residuals e_uv (N,)."""
    count: Floats
    """Number of a user's training ratings at the party (N,)."""
    user_damping: float
    """lambda_u, chosen on the validation part."""

    @property
    def user_offset(self) -> Floats:
        """b_u (N,) from the party's own ratings."""
        return self.residual_sum / (self.count + self.user_damping)

    def share(self, unit: float) -> Floats:
        """Return s_u and w_u (N, 2), the two numbers that the party shares about each user; s_u in units of its scale."""
        total = self.count + SHARED_DAMPING
        mean = (self.residual_sum / unit / total).clip(-LARGEST_MEAN, LARGEST_MEAN)
        return np.stack([mean, self.count / total], 1)

    def federated_offset(
        self, others: Floats, unit: float, valid: Pairs, scale: tuple[float, float]
    ) -> Floats:
        """Return b_u (N,), shrunk towards the others' mean; lambda_u and c are chosen on the validation part.

        `others` is the sum of the other parties' shares (N, 2).
        """
        precision = np.maximum(others[:, 1], 0.0)  # noise on the sums can make a weight negative
        candidates = []
        for damping, prior in product(USER_DAMPINGS, PRIOR_WEIGHTS):
            elsewhere = unit * others[:, 0] / (precision + prior)
            offset = (self.residual_sum + damping * elsewhere) / (self.count + damping)
            candidates.append((self.squared_error(offset, valid, scale), offset))
        return min(candidates, key=lambda found: found[0])[1]

    def squared_error(self, user_offset: Floats, pairs: Pairs, scale: tuple[float, float]) -> float:
        """Return the squared error of these means on `pairs`, clipped to the rating scale."""
        user, item, rating = arrays(pairs)
        predicted = self.mean + self.item_offset[item] + user_offset[user]
        return float(np.square(predicted.clip(*scale) - rating).sum())


def fit_means(train: Pairs, valid: Pairs, users: int, items: int, scale: tuple[float, float]) -> Means:
    """Fit a party's means on its training pairs; choose both dampings on its validation pairs."""
    user, item, rating = arrays(train)
    mean = float(rating.mean()) if len(rating) else sum(scale) / 2
    item_count = np.bincount(item, minlength=items)
    item_sum = np.bincount(item, rating - mean, items)
    count = np.bincount(user, minlength=users).astype(np.float64)
    best: tuple[float, Means] | None = None
    for item_damping in ITEM_DAMPINGS:
        item_offset = item_sum / (item_damping + item_count)
        residual_sum = np.asarray(np.bincount(user, rating - mean - item_offset[item], users), np.float64)
        for user_damping in USER_DAMPINGS:
            means = Means(mean, item_offset, residual_sum, count, user_damping)
            error = means.squared_error(means.user_offset, valid, scale)
            if best is None or error < best[0]:
                best = (error, means)
    assert best is not None
    return best[1]


def arrays(pairs: Pairs) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats]:
    """Return users, items and ratings of pairs as NumPy arrays."""
    return (
        pairs.user.cpu().numpy().astype(np.int64),
        pairs.item.cpu().numpy().astype(np.int64),
        pairs.rating.cpu().numpy().astype(np.float64),
    )

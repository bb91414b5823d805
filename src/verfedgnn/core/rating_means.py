r"""User and item means: the simplest model of ratings, alone and shared between parties (docs/model.md).

A party's own means predict

.. math::
    \hat r_{uv} = \mu_p + b_v + b_u, \qquad
    b_v = \frac{\sum_u (r_{uv} - \mu_p)}{\lambda_v + n_v}, \qquad b_u = \frac{\sum_v e_{uv}}{\lambda_u + n_u},
    \qquad e_{uv} = r_{uv} - \mu_p - b_v .

Federated means shrink b_u towards what the other parties know about the user instead of towards 0. In the first round of a training
the parties share how many ratings each user has and the sum of their residuals. From the others' sums n and S a party obtains

.. math::
    o_u = \frac{S_u}{n_u + c}, \qquad b_u = \frac{\sum_v e_{uv} + \lambda_u o_u}{n_u^p + \lambda_u} .
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from verfedgnn.core.pairs import Choices, Pairs, PartyInput
from verfedgnn.core.rating_scale import scale_unit

Floats = NDArray[np.float64]

ITEM_DAMPINGS = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Values of lambda_v that are tried on the validation part."""
USER_DAMPINGS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Values of lambda_u that are tried on the validation part."""
PRIOR_WEIGHTS = (1.0, 3.0, 10.0, 30.0)
"""Values of c that are tried on the validation part."""


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

    def federated_offset(self, others: Floats, data: PartyInput, choices: Choices) -> Floats:
        """Return b_u (N,), shrunk towards the others' mean; lambda_u and c are chosen on the validation part.

        `others` are the other parties' number of ratings of each user and the sum of their residuals, in units of the scale (N, 2).
        """
        number = np.maximum(others[:, 0], 0.0)  # noise can make a number negative

        def offset(option: tuple[float, float]) -> Floats:
            damping, prior = option
            elsewhere = scale_unit(data.scale) * others[:, 1] / (number + prior)
            return (self.residual_sum + damping * elsewhere) / (self.count + damping)

        def error(option: tuple[float, float]) -> float:
            return self.squared_error(offset(option), data.valid, data.scale)

        return offset(choices.choose("federated means", list(product(USER_DAMPINGS, PRIOR_WEIGHTS)), error))

    def squared_error(self, user_offset: Floats, pairs: Pairs, scale: tuple[float, float]) -> float:
        """Return the squared error of these means on `pairs`, clipped to the rating scale."""
        user, item, rating = arrays(pairs)
        predicted = self.mean + self.item_offset[item] + user_offset[user]
        return float(np.square(predicted.clip(*scale) - rating).sum())


def fit_means(data: PartyInput, choices: Choices | None = None) -> Means:
    """Fit a party's means on its training pairs; choose both dampings on its validation pairs."""
    user, item, rating = arrays(data.train)
    mean = float(rating.mean()) if len(rating) else sum(data.scale) / 2
    item_count = np.bincount(item, minlength=data.items)
    item_sum = np.bincount(item, rating - mean, data.items)
    count = np.bincount(user, minlength=data.users).astype(np.float64)

    @lru_cache(1)
    def residuals(item_damping: float) -> tuple[Floats, Floats]:
        item_offset = item_sum / (item_damping + item_count)
        left = np.bincount(user, rating - mean - item_offset[item], data.users)
        return item_offset, np.asarray(left, np.float64)

    def fit(option: tuple[float, float]) -> Means:
        item_damping, user_damping = option
        return Means(mean, *residuals(item_damping), count, user_damping)

    def error(option: tuple[float, float]) -> float:
        means = fit(option)
        return means.squared_error(means.user_offset, data.valid, data.scale)

    return fit((choices or Choices()).choose("means", list(product(ITEM_DAMPINGS, USER_DAMPINGS)), error))


def arrays(pairs: Pairs) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats]:
    """Return users, items and ratings of pairs as NumPy arrays."""
    return (
        pairs.user.cpu().numpy().astype(np.int64),
        pairs.item.cpu().numpy().astype(np.int64),
        pairs.rating.cpu().numpy().astype(np.float64),
    )

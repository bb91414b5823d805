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

from verfedgnn.core.pairs import Choices, Pairs

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

    def federated_offset(
        self, others: Floats, unit: float, valid: Pairs, scale: tuple[float, float], choices: Choices
    ) -> Floats:
        """Return b_u (N,), shrunk towards the others' mean; lambda_u and c are chosen on the validation part.

        `others` are the other parties' number of ratings of each user and the sum of their residuals, in units of the scale (N, 2).
        """
        number = np.maximum(others[:, 0], 0.0)  # noise can make a number negative

        def offset(option: tuple[float, float]) -> Floats:
            damping, prior = option
            elsewhere = unit * others[:, 1] / (number + prior)
            return (self.residual_sum + damping * elsewhere) / (self.count + damping)

        options = list(product(USER_DAMPINGS, PRIOR_WEIGHTS))
        return offset(
            choices.choose(
                "federated means", options, lambda option: self.squared_error(offset(option), valid, scale)
            )
        )

    def squared_error(self, user_offset: Floats, pairs: Pairs, scale: tuple[float, float]) -> float:
        """Return the squared error of these means on `pairs`, clipped to the rating scale."""
        user, item, rating = arrays(pairs)
        predicted = self.mean + self.item_offset[item] + user_offset[user]
        return float(np.square(predicted.clip(*scale) - rating).sum())


def fit_means(
    train: Pairs,
    valid: Pairs,
    users: int,
    items: int,
    scale: tuple[float, float],
    choices: Choices | None = None,
) -> Means:
    """Fit a party's means on its training pairs; choose both dampings on its validation pairs."""
    user, item, rating = arrays(train)
    mean = float(rating.mean()) if len(rating) else sum(scale) / 2
    item_count = np.bincount(item, minlength=items)
    item_sum = np.bincount(item, rating - mean, items)
    count = np.bincount(user, minlength=users).astype(np.float64)

    @lru_cache(1)
    def residuals(item_damping: float) -> tuple[Floats, Floats]:
        item_offset = item_sum / (item_damping + item_count)
        return item_offset, np.asarray(
            np.bincount(user, rating - mean - item_offset[item], users), np.float64
        )

    def fit(option: tuple[float, float]) -> Means:
        item_damping, user_damping = option
        return Means(mean, *residuals(item_damping), count, user_damping)

    def error(option: tuple[float, float]) -> float:
        means = fit(option)
        return means.squared_error(means.user_offset, valid, scale)

    return fit((choices or Choices()).choose("means", list(product(ITEM_DAMPINGS, USER_DAMPINGS)), error))


def arrays(pairs: Pairs) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats]:
    """Return users, items and ratings of pairs as NumPy arrays."""
    return (
        pairs.user.cpu().numpy().astype(np.int64),
        pairs.item.cpu().numpy().astype(np.int64),
        pairs.rating.cpu().numpy().astype(np.float64),
    )

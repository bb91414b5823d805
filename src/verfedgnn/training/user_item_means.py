r"""The baseline any model must beat: a mean, and how far users and items lie above it.

.. math::
    \hat r_{uv} = \mu + b_v + b_u, \qquad
    b_v = \frac{\sum_u (r_{uv} - \mu)}{\lambda + n_v}, \quad b_u = \frac{\sum_v (r_{uv} - \mu - b_v)}{\lambda + n_u}
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from verfedgnn.core.metrics import RatingErrors
from verfedgnn.data import TEST, TRAIN, VALID, Ratings

DAMPINGS = (1.0, 2.0, 5.0, 10.0, 25.0)
"""Values of lambda tried on the validation part."""


def fit_biases(
    ratings: Ratings, parts: NDArray[np.int8]
) -> tuple[float, NDArray[np.float64], NDArray[np.float64]]:
    """mu, b_u and b_v fitted on the training part, their damping chosen on the validation part."""
    tries = [_fit(ratings, parts == TRAIN, damping) for damping in DAMPINGS]
    valid = parts == VALID
    return min(
        tries, key=lambda fitted: float(np.square(_predict(ratings, *fitted) - ratings.rating)[valid].sum())
    )


def bias_predictions(ratings: Ratings, parts: NDArray[np.int8]) -> NDArray[np.float64]:
    """All ratings predicted from such biases."""
    return _predict(ratings, *fit_biases(ratings, parts))


def bias_errors(ratings: Ratings, parts: NDArray[np.int8]) -> RatingErrors:
    """Their test errors."""
    error = (bias_predictions(ratings, parts) - ratings.rating)[parts == TEST]
    return RatingErrors(float(np.square(error).sum()), float(np.abs(error).sum()), len(error))


def _fit(
    ratings: Ratings, train: NDArray[np.bool_], damping: float
) -> tuple[float, NDArray[np.float64], NDArray[np.float64]]:
    user, item, left = ratings.user[train], ratings.item[train], ratings.rating[train].astype(np.float64)
    mean = float(left.mean()) if len(left) else 0.0
    left = left - mean
    by_item = np.bincount(item, left, ratings.n_items) / (
        damping + np.bincount(item, minlength=ratings.n_items)
    )
    left = left - by_item[item]
    by_user = np.bincount(user, left, ratings.n_users) / (
        damping + np.bincount(user, minlength=ratings.n_users)
    )
    return mean, by_user, by_item


def _predict(
    ratings: Ratings, mean: float, by_user: NDArray[np.float64], by_item: NDArray[np.float64]
) -> NDArray[np.float64]:
    return np.asarray(mean + by_item[ratings.item] + by_user[ratings.user])

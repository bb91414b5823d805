r"""Folding in: a newcomer's position in taste space from their own ratings alone, with the contribution of each rating.

:math:`x_u` are a user's vectors at all served parties, and :math:`h_v` is an item's vector with zeros in the columns of other
parties, so that a prediction is :math:`x_u \cdot h_v`. Mean and covariance of the trained users are the prior of a newcomer:

.. math::
    x = m + L z, \qquad L L^\top = \mathrm{Cov}(x_u), \qquad z \sim N(0, I)

There is no hyperparameter to choose. Columns in which users do not differ keep their value. Vectors of one user at two parties are
correlated, so a rating at one party informs the predictions at another. A rating is a prediction plus an error of variance
:math:`\sigma_p^2`, the party's squared error on its validation part. With :math:`b_i = L^\top h_i` and :math:`y_i` the rating
minus the average user's prediction,

.. math::
    z = A^{-1} \sum_i b_i y_i / \sigma_i^2, \qquad A = I + \sum_i b_i b_i^\top / \sigma_i^2

so a prediction is a sum over the user's own ratings. For a model of lists, whose scores are softmax shares of the party's
catalogue, z maximises :math:`\sum_i \log \mathrm{softmax}_i - |z|^2 / 2` over the liked items, by Newton's method. At the
maximum :math:`z = \sum_i (b_i - \bar b)`, where :math:`\bar b` is the mean of the catalogue weighted by the shares. What item
weights add is no part of the vectors, here as in training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from verfedgnn.core.rating_scale import upper_quarter
from verfedgnn.data import Ratings
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.upkeep.new_items import climb, measure_variance

Matrix = NDArray[np.float32]
Vector = NDArray[np.float64]
SAMPLE = 100_000


@dataclass(frozen=True)
class PartyPrior:
    """One party's share of the user prior in R directions of taste: m_p (C,), L_p (C, R), and the average user's predictions (M,)."""

    mean: Vector
    factor: Vector
    level: Matrix
    items: Matrix
    """Item directions L_p^T h_v (M, R), without the columns that all items share."""
    common: Matrix
    """L_p^T of the columns that all items share (R,)."""
    variance: float
    """Squared error of a predicted rating; 1 for a model of lists, which does not use it."""
    liked_from: float
    """Lowest rating that a model of lists counts as liked."""

    def project_items(self, rows: NDArray[np.int64]) -> Vector:
        """Return the directions L_p^T h_v of the items at `rows` (n, R)."""
        return self.items[rows].astype(np.float64) + self.common

    @cached_property
    def typical(self) -> Vector:
        """Direction of the average item (R,)."""
        mean: Vector = self.items.mean(0, dtype=np.float64) + self.common
        return mean

    def make_vector(self, z: Vector) -> torch.Tensor:
        """Return the vector at this party of the user at position `z`; it is served like a trained one."""
        return torch.from_numpy((self.mean + self.factor @ z).astype(np.float32))


def fit_user_prior(
    models: Sequence[PartyModel], data: Sequence[tuple[Ratings, NDArray[np.int8]]], *, ranks: bool = False
) -> list[PartyPrior]:
    """Fit one common prior to the users of all `models`; `data` holds each party's ratings and their parts.

    `ranks` tells models of lists from models of ratings.
    """
    known = data[0][0].known_users
    sample = torch.from_numpy(known[:: max(1, -(-len(known) // SAMPLE))])
    users = torch.cat([model.users[sample] for model in models], 1).double().numpy()
    deviations = users - users.mean(0)
    values, basis = np.linalg.eigh(deviations.T @ deviations / len(deviations))
    # without directions in which users do not differ
    kept = values > 1e-9 * max(values.max(initial=0.0), 1e-12)
    factors = basis[:, kept] * np.sqrt(values[kept])
    ends = np.cumsum([model.users.shape[1] for model in models])[:-1]
    priors = []
    parts = zip(models, np.split(users.mean(0), ends), np.split(factors, ends), data, strict=True)
    for model, mean, factor, (table, part) in parts:
        items = model.items.numpy()
        shared = np.ptp(items, axis=0) == 0
        priors.append(
            PartyPrior(
                mean,
                factor,
                level=items @ mean.astype(np.float32),
                items=np.where(shared, np.float32(0), items) @ factor.astype(np.float32),
                common=(np.where(shared, items[0], 0) @ factor).astype(np.float32),
                variance=1.0 if ranks else measure_variance(model, table, part),
                liked_from=upper_quarter(table.scale),
            )
        )
    return priors


@dataclass(frozen=True)
class UserRatings:
    """A user's ratings at one party."""

    party: int
    items: NDArray[np.int64]
    ratings: NDArray[np.float32]


@dataclass(frozen=True)
class FoldedUser:
    """A user's estimated position in taste space."""

    z: Vector
    pulls: list[Vector]
    """Contribution of each rating to z, an (n, R) matrix per `UserRatings`; 0 for what a model of lists does not count as liked."""

    def split_score(self, targets: Vector) -> list[Vector]:
        """Return each rating's contribution to the scores of `targets` (T, R), a (T, n) matrix per `UserRatings`."""
        return [targets @ pull.T for pull in self.pulls]


def fold_in(priors: Sequence[PartyPrior], rated: Sequence[UserRatings], *, ranks: bool) -> FoldedUser:
    """Return the most probable position of a user with these ratings; without ratings, the average user's."""
    return _fold_in_likes(priors, rated) if ranks else _fold_in_ratings(priors, rated)


def merge_ratings(older: Sequence[UserRatings], newer: Sequence[UserRatings]) -> list[UserRatings]:
    """Return all ratings of a user by party; for an item that is rated twice, the newer rating counts."""
    merged = []
    for party in sorted({own.party for own in (*older, *newer)}):
        found = [own for own in (*newer, *older) if own.party == party]
        items, first = np.unique(np.concatenate([own.items for own in found]), return_index=True)
        merged.append(UserRatings(party, items, np.concatenate([own.ratings for own in found])[first]))
    return merged


def _fold_in_ratings(priors: Sequence[PartyPrior], rated: Sequence[UserRatings]) -> FoldedUser:
    size = priors[0].items.shape[1]
    matrix, weighted = np.eye(size), []
    for own in rated:
        prior = priors[own.party]
        b = prior.project_items(own.items)
        matrix += b.T @ b / prior.variance
        weighted.append(b * ((own.ratings - prior.level[own.items]) / prior.variance)[:, None])
    inverse = np.linalg.inv(matrix).astype(np.float64)
    pulls = [pull @ inverse for pull in weighted]
    return FoldedUser(sum((pull.sum(0) for pull in pulls), np.zeros(size)), pulls)


def _fold_in_likes(priors: Sequence[PartyPrior], rated: Sequence[UserRatings]) -> FoldedUser:
    size = priors[0].items.shape[1]
    likes = [own.ratings >= priors[own.party].liked_from for own in rated]
    liked = [priors[own.party].project_items(own.items[like]) for own, like in zip(rated, likes, strict=True)]
    centres = [np.zeros(size) for _ in rated]

    def derivatives(z: Vector) -> tuple[Vector, Vector]:
        slope = -z
        curve = np.eye(size)
        for number, own in enumerate(rated):
            if not len(liked[number]):
                continue
            prior = priors[own.party]
            scores = prior.level + prior.items @ z.astype(np.float32)
            share = np.exp(scores - scores.max())
            share /= share.sum()
            centre = share @ prior.items
            spread = (prior.items * share[:, None]).T @ prior.items - np.outer(centre, centre)
            centres[number] = centre.astype(np.float64) + prior.common
            slope = slope + (liked[number] - centres[number]).sum(0)
            curve = curve + len(liked[number]) * spread
        return slope, curve

    z = climb(derivatives, size)
    pulls = [np.zeros((len(like), size)) for like in likes]
    for pull, like, directions, centre in zip(pulls, likes, liked, centres, strict=True):
        pull[like] = directions - centre
    return FoldedUser(z, pulls)

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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from verfedgnn.core.rating_scale import upper_quarter
from verfedgnn.data import Ratings
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.upkeep.new_items import climb, fit_distribution, measure_variance

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
    ranks: bool
    """Whether the model orders lists."""

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
    means, factors = fit_distribution(users, np.ones(len(users)))
    ends = np.cumsum([model.users.shape[1] for model in models])[:-1]
    priors = []
    parts = zip(models, np.split(means, ends), np.split(factors, ends), data, strict=True)
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
                ranks=ranks,
            )
        )
    return priors


class UserRatings(NamedTuple):
    """A user's ratings at one party."""

    items: NDArray[np.int64]
    ratings: NDArray[np.float32]


Rated = Mapping[int, UserRatings]
"""A user's ratings by party; without parties at which there are none."""
NO_RATINGS = UserRatings(np.empty(0, np.int64), np.empty(0, np.float32))


@dataclass(frozen=True)
class FoldedUser:
    """A user's estimated position in taste space."""

    z: Vector
    pulls: Mapping[int, Vector]
    """Contribution of each rating to z, an (n, R) matrix by party; 0 for what a model of lists does not count as liked."""


def fold_in(priors: Mapping[int, PartyPrior], rated: Rated) -> FoldedUser:
    """Return the most probable position of a user with these ratings; without ratings, the average user's."""
    any_prior = next(iter(priors.values()))
    fold = _fold_in_likes if any_prior.ranks else _fold_in_ratings
    return fold(priors, rated, any_prior.items.shape[1])


def merge_ratings(older: Rated, newer: Rated) -> Rated:
    """Return all ratings of a user; for an item that is rated twice, the newer rating counts."""
    merged = {}
    for party in sorted({*older, *newer}):
        found = [rated[party] for rated in (newer, older) if party in rated]
        items, first = np.unique(np.concatenate([own.items for own in found]), return_index=True)
        merged[party] = UserRatings(items, np.concatenate([own.ratings for own in found])[first])
    return merged


def _fold_in_ratings(priors: Mapping[int, PartyPrior], rated: Rated, size: int) -> FoldedUser:
    matrix, weighted = np.eye(size), {}
    for party, own in rated.items():
        prior = priors[party]
        b = prior.project_items(own.items)
        matrix += b.T @ b / prior.variance
        weighted[party] = b * ((own.ratings - prior.level[own.items]) / prior.variance)[:, None]
    inverse = np.linalg.inv(matrix).astype(np.float64)
    pulls = {party: pull @ inverse for party, pull in weighted.items()}
    return FoldedUser(sum((pull.sum(0) for pull in pulls.values()), np.zeros(size)), pulls)


def _fold_in_likes(priors: Mapping[int, PartyPrior], rated: Rated, size: int) -> FoldedUser:
    likes = {party: own.ratings >= priors[party].liked_from for party, own in rated.items()}
    liked = {p: priors[p].project_items(rated[p].items[like]) for p, like in likes.items() if like.any()}
    centres = {}

    def derivatives(z: Vector) -> tuple[Vector, Vector]:
        slope, curve = -z, np.eye(size)
        for party, directions in liked.items():
            prior = priors[party]
            scores = prior.level + prior.items @ z.astype(np.float32)
            share = np.exp(scores - scores.max())
            share /= share.sum()
            centre = share @ prior.items
            spread = (prior.items * share[:, None]).T @ prior.items - np.outer(centre, centre)
            centres[party] = centre.astype(np.float64) + prior.common
            slope = slope + (directions - centres[party]).sum(0)
            curve = curve + len(directions) * spread
        return slope, curve

    z = climb(derivatives, size)
    pulls = {party: np.zeros((len(like), size)) for party, like in likes.items()}
    for party, directions in liked.items():
        pulls[party][likes[party]] = directions - centres[party]
    return FoldedUser(z, pulls)

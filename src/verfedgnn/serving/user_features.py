r"""A party's features of its customers as a prior: what a customer likes before anybody knows a rating of theirs.

With :math:`x = m + L z` the vectors of the trained users (`user_prior.py`) and :math:`f_u` the features of a user,

.. math::
    z_u \sim N(z_0 + A (f_u - \bar f), S), \qquad
    A = \arg\min_A \sum_u w_u |z_u - \bar z - A (f_u - \bar f)|^2 + \lambda |A|^2, \qquad w_u = \frac{n_u}{n_u + \kappa}

:math:`\lambda` is chosen on the validation part: every user is predicted without their own ratings, as if they were new (by leaving
one user out). A model of ratings is judged by its squared error, a model of lists by the likelihood of what was liked. Features that
do not clearly improve that, by two standard errors, are not used: then A is 0.

The average user predicts ratings that are too low: people rate what they expect to like. For a model of ratings, :math:`z_0` is
therefore the position that fits the training ratings best, a ridge regression whose strength is chosen on the validation part, too.
For a model of lists it is 0. S is the covariance of the errors of leaving one user out. Ratings that come later refine the
prediction (`fold_in.py`). Features and A stay at the party, and predictions at a party use only its own features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from verfedgnn.core.errors import DataError
from verfedgnn.core.rating_scale import upper_quarter
from verfedgnn.data import TRAIN, VALID, Ratings
from verfedgnn.data.item_table import ItemTable, read_item_table
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.serving.id_index import IdIndex
from verfedgnn.serving.user_prior import PartyPrior
from verfedgnn.upkeep.feature_encoder import fit_encoder
from verfedgnn.upkeep.item_features import STRENGTHS, FeatureRegression

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]
LEVEL_STRENGTHS = (1e1, 1e2, 1e3, 1e4)
"""Strengths of the regression of z_0 that are tried, beside z_0 = 0."""
SAMPLE = 20_000
"""Most users to which features are fitted."""
JUDGED_LISTS = 1024
"""Most users whose lists are judged."""
CLEAR = 2.0
"""Standard errors by which features must improve the prediction of unknown users."""


def read_user_features(sources: Sequence[str], names: Sequence[str]) -> dict[str, ItemTable]:
    """Read tables of customers from sources, each `NAME=FILE`, and return them by party; one party needs no name."""
    found: dict[str, ItemTable] = {}
    for text in sources:
        name, equals, file = text.partition("=")
        if not equals or Path(text).exists():
            name, file = "", text
        party = names[0] if not name and len(names) == 1 else name
        if party not in names:
            raise DataError(
                f"--user-features {text} does not name a party; write NAME={file} with one of: {', '.join(names)}"
            )
        if party in found:
            raise DataError(f"--user-features names party '{party}' twice; put its customers into one file")
        found[party] = read_item_table(Path(file), "user")
    return found


class UserTable:
    """The features of one party's customers, by id."""

    def __init__(self, name: str, table: ItemTable, ratings: Ratings) -> None:
        encoder = fit_encoder(table.columns)
        values = {column: table.columns[column].to_pylist() for column in table.columns.column_names}
        self.vectors = encoder.encode(values, len(table.ids))
        """One row of numbers per customer (n, G)."""
        self._ids = IdIndex(table.ids)
        found = table.find(ratings.user_ids)
        rated = np.bincount(ratings.user, minlength=ratings.n_users) > 0
        self.users = np.flatnonzero((found >= 0) & rated & (ratings.user_ids != ""))
        """Rows of the run's users that are in the table and have ratings at the party."""
        self.rows = found[self.users]
        """Their rows in the table."""
        if not len(self.users):
            raise DataError(
                f"the features of {name} name no customer of the run; check that ids are spelt as in the ratings"
            )

    def find(self, user: str) -> Floats | None:
        """Return the features of a customer (G,), or None if the table has no such id."""
        row = self._ids.find(user)
        return None if row is None else self.vectors[row]


@dataclass(frozen=True)
class FeaturedPrior:
    """The distribution of a user's position at all served parties, given the features that one party has of them."""

    base: Sequence[PartyPrior]
    """The prior without features."""
    spread: Sequence[PartyPrior]
    """The same with the covariance S."""
    level: Floats
    """z_0 (R,)."""
    centre: Floats
    """Mean of the features (G,)."""
    weights: Floats
    """A transposed (G, R)."""
    gain: float
    """Share by which the validation error, or minus the log-likelihood of lists, of unknown users falls."""

    def describe(self, features: Floats) -> list[PartyPrior]:
        """Return the prior of a user with these features (G,)."""
        z = self.level + (features - self.centre) @ self.weights
        near = z.astype(np.float32)
        return [
            replace(
                spread,
                mean=base.mean + base.factor @ z,
                level=base.level + base.items @ near + np.float32(base.common @ z),
            )
            for base, spread in zip(self.base, self.spread, strict=True)
        ]


def fit_featured_prior(
    priors: Sequence[PartyPrior],
    models: Sequence[PartyModel],
    number: int,
    ratings: Ratings,
    part: NDArray[np.int8],
    table: UserTable,
    *,
    ranks: bool,
) -> FeaturedPrior | None:
    """Fit z_0, A, lambda and S to the trained users in `table`; None if neither z_0 nor the features clearly help.

    `number` is that of the party among `priors` and `models`, which a joint prior covers. `ratings` and `part` are the party's.
    """
    every = max(1, -(-len(table.users) // SAMPLE))
    users = table.users[::every]
    features = table.vectors[table.rows[::every]]
    factor = np.concatenate([prior.factor for prior in priors])
    if not factor.shape[1]:
        return None
    mean = np.concatenate([prior.mean for prior in priors])
    vectors = np.concatenate([model.users[users].double().numpy() for model in models], 1)
    z = (vectors - mean) @ np.linalg.pinv(factor).T
    counts = np.bincount(ratings.user[part == TRAIN], minlength=ratings.n_users)[users]
    fitted = FeatureRegression(z, features, counts)
    valid = _Judged.collect(ratings, part == VALID, users, priors[number], ranks=ranks)
    level = np.zeros(z.shape[1])
    if not ranks:
        level = _fit_level(priors[number], ratings, part == TRAIN, valid)
    judge = valid.lists if ranks else valid.squares
    plain = judge(np.zeros_like(z))

    def loss(strength: float) -> Floats:
        return judge(level + fitted.predict_left_out(strength))

    losses = {strength: loss(strength) for strength in STRENGTHS}
    strength = min(STRENGTHS, key=lambda each: float(losses[each].sum()))
    without = judge(np.broadcast_to(level, z.shape))
    weights = fitted.weights(strength)
    if not _is_clear(without - losses[strength]):
        weights = np.zeros_like(weights)
        if not _is_clear(plain - without):
            return None
    errors = fitted.leave_out(strength) * fitted.root
    values, basis = np.linalg.eigh(errors.T @ errors / fitted.total)
    spread = basis * np.sqrt(np.maximum(values, 0.0)) if weights.any() else np.eye(len(level))
    judged = losses[strength] if weights.any() else without
    gain = float(1 - judged.sum() / plain.sum())
    return FeaturedPrior(
        priors, [_respread(prior, spread) for prior in priors], level, fitted.centre, weights, gain
    )


def _is_clear(gains: Floats) -> bool:
    """Return whether gains of users are positive on the whole, by some standard errors."""
    return bool(gains.sum() > CLEAR * np.sqrt(np.square(gains).sum()))


def _respread(prior: PartyPrior, spread: Floats) -> PartyPrior:
    """Return a prior whose z has the covariance `spread` times its transpose."""
    return replace(
        prior,
        factor=prior.factor @ spread,
        items=prior.items @ spread.astype(np.float32),
        common=(prior.common @ spread).astype(np.float32),
    )


def _fit_level(prior: PartyPrior, ratings: Ratings, train: NDArray[np.bool_], valid: _Judged) -> Floats:
    """Return the position z_0 that fits the training ratings best; its ridge is chosen on the validation part."""
    items = ratings.item[train]
    counts = np.bincount(items, minlength=ratings.n_items).astype(np.float64)
    sums = (
        np.bincount(items, ratings.rating[train], ratings.n_items) - counts * prior.level[: ratings.n_items]
    )
    directions = prior.project_items(np.arange(ratings.n_items))
    matrix = (directions * counts[:, None]).T @ directions
    wanted = directions.T @ sums
    size = len(wanted)
    choices: list[Floats] = [np.zeros(size)]
    for strength in LEVEL_STRENGTHS:
        choices.append(np.linalg.solve(matrix + strength * np.eye(size), wanted).astype(np.float64))
    return min(choices, key=lambda z: float(valid.squares(np.broadcast_to(z, (valid.count, size))).sum()))


@dataclass(frozen=True)
class _Judged:
    """Ratings of the validation part that judge positions of users."""

    prior: PartyPrior
    count: int
    """Number of users."""
    users: Rows
    """Number of the user of each rating, among those who are judged."""
    items: Rows
    ratings: Floats

    @classmethod
    def collect(
        cls, table: Ratings, chosen: NDArray[np.bool_], users: Rows, prior: PartyPrior, *, ranks: bool
    ) -> _Judged:
        """Return the chosen ratings of these users; for lists only what they liked, and not too many users."""
        place = np.full(table.n_users, -1)
        place[users] = np.arange(len(users))
        if ranks:
            chosen = chosen & (table.rating >= upper_quarter(table.scale))
            liking = np.unique(place[table.user[chosen]])
            liking = liking[liking >= 0]
            kept = liking[:: max(1, -(-len(liking) // JUDGED_LISTS))]
            place[users] = np.where(np.isin(np.arange(len(users)), kept), np.arange(len(users)), -1)
        chosen = chosen & (place[table.user] >= 0)
        return cls(
            prior,
            len(users),
            place[table.user[chosen]],
            table.item[chosen].astype(np.int64),
            table.rating[chosen].astype(np.float64),
        )

    def squares(self, z: Floats) -> Floats:
        """Return the sum of squared errors of each user, at positions z (n, R)."""
        directions = self.prior.project_items(self.items)
        predicted = self.prior.level[self.items] + np.einsum("ir,ir->i", directions, z[self.users])
        return np.bincount(self.users, np.square(self.ratings - predicted), self.count).astype(np.float64)

    def lists(self, z: Floats) -> Floats:
        """Return minus the log-likelihood of what each user liked, at positions z (n, R)."""
        found = np.zeros(self.count)
        for users in _blocks(np.unique(self.users), 256):
            scores = self.prior.level + z[users].astype(np.float32) @ self.prior.items.T
            highest = scores.max(1)
            total = highest + np.log(np.exp(scores - highest[:, None]).sum(1))
            place = np.full(self.count, -1)
            place[users] = np.arange(len(users))
            here = place[self.users] >= 0
            rows = place[self.users[here]]
            costs = total[rows] - scores[rows, self.items[here]]
            found += np.bincount(self.users[here], costs, self.count)
        return found


def _blocks(rows: Rows, size: int) -> list[Rows]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]

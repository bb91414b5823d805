r"""Where the users of a run are, as a distribution: what a newcomer is before their first rating, and after a few.

Let :math:`x_u` be a user's vectors of all parties served, side by side, and :math:`h_v` an item's, with zeros at the other
parties' places; a prediction is :math:`x_u \cdot h_v`. The trained users have a mean and a covariance,

.. math::
    x = m + L z, \qquad L L^\top = \mathrm{Cov}(x_u), \qquad z \sim N(0, I)

and a rating is a prediction with an error of variance :math:`\sigma_p^2`, the party's squared error on its validation part. A
newcomer is the most probable :math:`z` given their own ratings (`folding.py`). Nothing has to be chosen: columns in which users
do not differ (the 1 beside an item's bias, a party's mean rating) have no variance and stay, the user's bias is a direction
like any other, ridge weights are what the trained users say, and vectors that a gate made of two models are treated as what they
are, correlated. Two parties' vectors of one user are correlated, too, so that a rating at one party speaks for items of another.

Two items are alike when users who like one like the other: the cosine of :math:`L^\top h_v`, apart from the columns in which
items do not differ (how high a user rates in general).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from verfedgnn.core.metrics import measure_errors
from verfedgnn.core.pairs import Pairs
from verfedgnn.data import VALID, Ratings
from verfedgnn.runs.party_model import PartyModel

Matrix = NDArray[np.float32]
SAMPLE = 100_000
"""Users from which mean and covariance are taken; more of them change nothing that could be seen."""


@dataclass(frozen=True)
class PartyTastes:
    """One party's place in the common space of R directions."""

    mean: NDArray[np.float64]
    """m_p (C,), the average user."""
    factor: NDArray[np.float64]
    """L_p (C, R)."""
    level: Matrix
    """(M,): what the average user would give each item."""
    items: Matrix
    """(M, R): L_p^T h_v, without what all items share."""
    common: Matrix
    """(R,): L_p^T of what all items share."""
    variance: float
    """Squared error of a prediction."""

    def directions(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """L_p^T h_v of some items (n, R)."""
        return self.items[rows].astype(np.float64) + self.common

    @cached_property
    def typical(self) -> NDArray[np.float64]:
        """L_p^T h_v of the average item (R,)."""
        mean: NDArray[np.float64] = self.items.mean(0, dtype=np.float64) + self.common
        return mean

    def vector(self, z: NDArray[np.float64]) -> torch.Tensor:
        """The user vector at this party, to be served like a trained one."""
        return torch.from_numpy((self.mean + self.factor @ z).astype(np.float32))


def tastes(
    models: Sequence[PartyModel], data: Sequence[tuple[Ratings, NDArray[np.int8]]]
) -> list[PartyTastes]:
    """Mean, covariance and items of parties in one common space; `data` are their ratings and the part of each."""
    count = models[0].users.shape[0]
    some = torch.arange(0, count, max(1, -(-count // SAMPLE)))
    users = torch.cat([model.users[some] for model in models], 1).double().numpy()
    mean = users.mean(0)
    values, basis = np.linalg.eigh(np.atleast_2d(np.cov(users, rowvar=False, bias=True)))
    kept = values > 1e-9 * max(values.max(), 1e-12)
    factor = basis[:, kept] * np.sqrt(values[kept])
    ends = np.cumsum([model.users.shape[1] for model in models])[:-1]
    places = zip(models, np.split(mean, ends), np.split(factor, ends), data, strict=True)
    return [_place(model, centre, spread, _variance(model, *own)) for model, centre, spread, own in places]


def _place(
    model: PartyModel, mean: NDArray[np.float64], factor: NDArray[np.float64], variance: float
) -> PartyTastes:
    items = model.items.numpy()
    shared = np.ptp(items, axis=0) == 0
    own = np.where(shared, np.float32(0), items)
    return PartyTastes(
        mean,
        factor,
        level=items @ mean.astype(np.float32),
        items=own @ factor.astype(np.float32),
        common=(np.where(shared, items[0], 0) @ factor).astype(np.float32),
        variance=variance,
    )


def _variance(model: PartyModel, table: Ratings, part: NDArray[np.int8]) -> float:
    chosen = part == VALID if (part == VALID).any() else np.ones(len(part), bool)
    user, item = (torch.from_numpy(rows[chosen].astype(np.int64)) for rows in (table.user, table.item))
    errors = measure_errors(
        model.users, model.items, Pairs(user, item, torch.from_numpy(table.rating[chosen]))
    )
    return max(errors.squared / errors.count, 1e-6) if errors.count else 1.0

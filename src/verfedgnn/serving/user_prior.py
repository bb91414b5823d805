r"""The distribution of the trained users, used as the prior for a newcomer.

Let :math:`x_u` be a user's vectors at all served parties, concatenated. Let :math:`h_v` be an item's vector, with zeros in the
columns of the other parties, so that a prediction is :math:`x_u \cdot h_v`. The trained users have a mean and a covariance,

.. math::
    x = m + L z, \qquad L L^\top = \mathrm{Cov}(x_u), \qquad z \sim N(0, I)

and a rating is a prediction plus an error of variance :math:`\sigma_p^2`, the party's squared error on its validation part. A
newcomer gets the most probable :math:`z` given their own ratings (`fold_in.py`). There is no hyperparameter to choose:

- Columns in which users do not differ (the 1 beside an item's bias, a party's mean rating) have no variance and keep their value.
- The user's bias is a direction like any other, and the trained users determine the ridge weights.
- Vectors that a gate built from several models are correlated, and so are one user's vectors at two parties. A rating at one
  party therefore informs the predictions at another.
- What the item weights of a model of lists add is no part of the vectors. It follows from the newcomer's items alone.

Two items are similar when users who like one also like the other. The similarity is the cosine of :math:`L^\top h_v`, without
the columns in which items do not differ (how high a user rates in general).
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
from verfedgnn.upkeep.item_prior import measure_variance

Matrix = NDArray[np.float32]
SAMPLE = 100_000
"""Maximum number of users from which mean and covariance are estimated."""


@dataclass(frozen=True)
class PartyPrior:
    """One party's share of the user prior, in a common taste space of R directions."""

    mean: NDArray[np.float64]
    """Vector of the average user, m_p (C,)."""
    factor: NDArray[np.float64]
    """Factor of the covariance, L_p (C, R)."""
    level: Matrix
    """Predictions for the average user (M,)."""
    items: Matrix
    """Item directions L_p^T h_v (M, R), without the columns that all items share."""
    common: Matrix
    """L_p^T of the columns that all items share (R,)."""
    variance: float
    """Squared error of a predicted rating; 1 for a model of lists, which does not use it."""
    liked_from: float
    """Lowest rating that a model of lists counts as liked."""

    def project_items(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the directions L_p^T h_v of the items at `rows` (n, R)."""
        return self.items[rows].astype(np.float64) + self.common

    @cached_property
    def typical(self) -> NDArray[np.float64]:
        """Direction of the average item (R,)."""
        mean: NDArray[np.float64] = self.items.mean(0, dtype=np.float64) + self.common
        return mean

    def make_vector(self, z: NDArray[np.float64]) -> torch.Tensor:
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
    mean = users.mean(0)
    factor = _factor_covariance(users - mean)
    ends = np.cumsum([model.users.shape[1] for model in models])[:-1]
    parties = zip(models, np.split(mean, ends), np.split(factor, ends), data, strict=True)
    return [
        _make_prior(model, centre, spread, table, 1.0 if ranks else measure_variance(model, table, part))
        for model, centre, spread, (table, part) in parties
    ]


def _factor_covariance(deviations: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return L (C, R) with L L^T = Cov, without directions in which users do not differ."""
    values, basis = np.linalg.eigh(deviations.T @ deviations / len(deviations))
    kept = values > 1e-9 * max(values.max(initial=0.0), 1e-12)
    factor: NDArray[np.float64] = basis[:, kept] * np.sqrt(values[kept])
    return factor


def _make_prior(
    model: PartyModel,
    mean: NDArray[np.float64],
    factor: NDArray[np.float64],
    table: Ratings,
    variance: float,
) -> PartyPrior:
    items = model.items.numpy()
    shared = np.ptp(items, axis=0) == 0
    own = np.where(shared, np.float32(0), items)
    return PartyPrior(
        mean,
        factor,
        level=items @ mean.astype(np.float32),
        items=own @ factor.astype(np.float32),
        common=(np.where(shared, items[0], 0) @ factor).astype(np.float32),
        variance=variance,
        liked_from=upper_quarter(table.scale),
    )

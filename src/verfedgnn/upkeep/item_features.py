r"""Item features as a prior: what an item's vector is likely to be before anybody has rated it.

With :math:`h = m + F z` the vectors of a party's trained items (`item_prior.py`) and :math:`g_v` an item's features,

.. math::
    z_v \sim N(\bar z + B (g_v - \bar g), S), \qquad
    B = \arg\min_B \sum_v w_v |z_v - \bar z - B (g_v - \bar g)|^2 + \lambda |B|^2, \qquad w_v = \frac{n_v}{n_v + \kappa}

The weights :math:`w_v` let items with many ratings count more. :math:`\lambda` minimises the error of leaving one item out, as the
users see it: the mean of :math:`(x_u \cdot F (z_v - B g_v))^2` over users. S is the covariance of the same errors. B and g stay at
the party.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from verfedgnn.upkeep.item_prior import ItemDistribution

Floats = NDArray[np.float64]
STRENGTHS = tuple(float(10.0 ** (step / 2)) for step in range(-4, 9))
"""Values of lambda that are tried."""
HALF_WEIGHT = 10.0
"""kappa: the number of ratings at which an item has half of the largest weight."""


@dataclass(frozen=True)
class FeaturePrior:
    """The distribution of an item's vector given its features."""

    items: ItemDistribution
    """Distribution of all items, without features."""
    level: Floats
    """Mean of z over the trained items, weighted (R,)."""
    centre: Floats
    """Mean of their features, weighted (G,)."""
    weights: Floats
    """B transposed (G, R): the effect of each feature on z."""
    factor: Floats
    """F times a factor of S (C, R)."""
    strength: float
    """Strength of the ridge regression, lambda."""
    explained: float
    """Share of the items' variance, as users see it, that the features explain for an item that was left out."""

    def describe(self, features: Floats) -> ItemDistribution:
        """Return the distribution of one item with these features (G,)."""
        z = self.level + (features - self.centre) @ self.weights
        return ItemDistribution(self.items.mean + self.items.factor @ z, self.factor)


class FeatureRegression:
    """Ridge regressions of positions z (n, R) on features (n, G), with the error of leaving each row out."""

    def __init__(self, z: Floats, features: Floats, counts: NDArray[np.int64]) -> None:
        """Prepare the regressions; rows with many ratings (`counts`) have more weight."""
        weight = counts / (counts + HALF_WEIGHT)
        self.total = max(float(weight.sum()), 1e-12)
        """Sum of the weights."""
        self.level: Floats = weight @ z / self.total
        """Mean of z, weighted (R,)."""
        self.centre: Floats = weight @ features / self.total
        """Mean of the features, weighted (G,)."""
        self.root: Floats = np.sqrt(weight)[:, None]
        """Root of the weight of each row (n, 1)."""
        self._z = z - self.level
        self._features = features - self.centre
        scaled = self._features * self.root
        values, basis = np.linalg.eigh(scaled.T @ scaled)
        kept = values > 1e-9 * max(float(values.max(initial=0.0)), 1e-12)
        self._values = values[kept]
        self._basis = basis[:, kept]
        self._left = scaled @ self._basis / np.sqrt(self._values)
        self._target = self._left.T @ (self._z * self.root)

    def predict_left_out(self, strength: float) -> Floats:
        """Return what the other rows predict of z minus its mean (n, R), for each row."""
        shrink = self._values / (self._values + strength)
        leverage = (np.square(self._left) * shrink).sum(1)[:, None]
        found: Floats = (self._features @ self.weights(strength) - leverage * self._z) / np.maximum(
            1 - leverage, 1e-3
        )
        return found

    def leave_out(self, strength: float) -> Floats:
        """Return the error of each row (n, R), had it been left out."""
        return self._z - self.predict_left_out(strength)

    def weights(self, strength: float) -> Floats:
        """Return the effect of each feature on z (G, R)."""
        scale = np.sqrt(self._values) / (self._values + strength)
        found: Floats = self._basis @ (scale[:, None] * self._target)
        return found


def fit_feature_prior(
    items: ItemDistribution, vectors: Floats, features: Floats, counts: NDArray[np.int64], users: Floats
) -> FeaturePrior:
    """Fit B, lambda and S to trained items: their vectors (M, C), features (M, G) and numbers of ratings (M,).

    `users` are vectors of users (N, C) for whom the error counts.
    """
    z = np.linalg.lstsq(items.factor, (vectors - items.mean).T, rcond=None)[0].T.astype(np.float64)
    fitted = FeatureRegression(z, features, counts)
    seen = users @ items.factor
    metric = seen.T @ seen / max(1, len(seen))

    def loss(errors: Floats) -> float:
        weighted = errors * fitted.root
        return float(np.einsum("vr,rs,vs->", weighted, metric, weighted)) / fitted.total

    strength = min(STRENGTHS, key=lambda each: loss(fitted.leave_out(each)))
    errors = fitted.leave_out(strength)
    weights = fitted.weights(strength)
    before = loss(z - fitted.level)
    explained = 1 - loss(errors) / before if before > 0 else 0.0
    if explained <= 0:  # the features say nothing about these items
        return FeaturePrior(
            items,
            np.zeros_like(fitted.level),
            fitted.centre,
            np.zeros_like(weights),
            items.factor,
            strength,
            0.0,
        )
    weighted = errors * fitted.root
    spread, directions = np.linalg.eigh(weighted.T @ weighted / fitted.total)
    factor = items.factor @ (directions * np.sqrt(np.maximum(spread, 0.0)))
    return FeaturePrior(items, fitted.level, fitted.centre, weights, factor, strength, explained)

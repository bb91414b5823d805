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


def fit_feature_prior(
    items: ItemDistribution, vectors: Floats, features: Floats, counts: NDArray[np.int64], users: Floats
) -> FeaturePrior:
    """Fit B, lambda and S to trained items: their vectors (M, C), features (M, G) and numbers of ratings (M,).

    `users` are vectors of users (N, C) for whom the error counts.
    """
    z = np.linalg.lstsq(items.factor, (vectors - items.mean).T, rcond=None)[0].T
    weight = counts / (counts + HALF_WEIGHT)
    total = max(float(weight.sum()), 1e-12)
    level = weight @ z / total
    centre = weight @ features / total
    z = z - level
    features = features - centre
    root = np.sqrt(weight)[:, None]
    values, basis = np.linalg.eigh((features * root).T @ (features * root))
    kept = values > 1e-9 * max(float(values.max(initial=0.0)), 1e-12)
    values, basis = values[kept], basis[:, kept]
    left = (features * root) @ basis / np.sqrt(values)
    target = left.T @ (z * root)
    seen = users @ items.factor
    metric = seen.T @ seen / max(1, len(seen))

    def leave_out(strength: float) -> Floats:
        """Return the error of each item, had it been left out."""
        shrink = values / (values + strength)
        errors = z * root - left @ (shrink[:, None] * target)
        leverage = (np.square(left) * shrink).sum(1)
        left_out: Floats = errors / np.maximum(1 - leverage, 1e-3)[:, None]
        return left_out

    def loss(errors: Floats) -> float:
        return float(np.einsum("vr,rs,vs->", errors, metric, errors)) / total

    strength = min(STRENGTHS, key=lambda each: loss(leave_out(each)))
    errors = leave_out(strength)
    weights = basis @ ((np.sqrt(values) / (values + strength))[:, None] * target)
    spread, directions = np.linalg.eigh(errors.T @ errors / total)
    factor = items.factor @ (directions * np.sqrt(np.maximum(spread, 0.0)))
    before = loss(z * root)
    explained = 1 - loss(errors) / before if before > 0 else 0.0
    if explained <= 0:  # the features say nothing about these items
        return FeaturePrior(
            items, np.zeros_like(level), centre, np.zeros_like(weights), items.factor, strength, 0.0
        )
    return FeaturePrior(items, level, centre, weights, factor, strength, explained)

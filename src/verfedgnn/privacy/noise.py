r"""Noise on summed neighbourhoods, shared out over the parties: integers, so that it can be masked and adds up exactly.

.. math::
    Z \sim \mathrm{Sk}(\mu): \quad Z = A - B, \quad A, B \sim \mathrm{Poisson}(\mu / 2), \quad
    \mathrm{Sk}(\mu_1) + \mathrm{Sk}(\mu_2) = \mathrm{Sk}(\mu_1 + \mu_2)

The Skellam distribution is closed under addition, so that the noise of several parties is exactly that of one (Agarwal, Kairouz
and Liu, NeurIPS 2021, whose Renyi bound `skellam_rdp` is).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

ORDERS = (*range(2, 65), 80, 96, 128, 192, 256, 512, 1024)
"""Orders alpha at which the Renyi divergence is bounded; the bound is proven for whole ones."""


def clip_rows(x: Tensor, bound: float) -> Tensor:
    """Every user's row (..., C) to an l2 norm of at most `bound`."""
    clipped: Tensor = x * (bound / x.norm(dim=-1, keepdim=True).clamp(min=bound))
    return clipped


def skellam(shape: tuple[int, ...], variance: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """Independent Skellam variables of mean 0."""
    return rng.poisson(variance / 2, shape) - rng.poisson(variance / 2, shape)


def skellam_rdp(alpha: float, variance: float, l2: float, l1: float) -> float:
    r"""Bound on the Renyi divergence of order alpha when integers that differ by (l2, l1) are released with Sk(variance).

    .. math::
        \frac{\alpha \Delta_2^2}{2 \mu}
        + \min\left(\frac{(2 \alpha - 1) \Delta_2^2 + 6 \Delta_1}{4 \mu^2}, \frac{3 \Delta_1}{2 \mu}\right)
    """
    return alpha * l2**2 / (2 * variance) + min(((2 * alpha - 1) * l2**2 + 6 * l1) / (4 * variance**2), 3 * l1 / (2 * variance))


def epsilon(rdp: dict[float, float], delta: float) -> float:
    """The least epsilon that Renyi bounds by order give at `delta` (Canonne, Kamath and Steinke 2020, Prop. 12)."""
    return min(
        max(0.0, bound + math.log1p(-1 / alpha) - (math.log(delta) + math.log(alpha)) / (alpha - 1))
        for alpha, bound in rdp.items()
    )


def exchange_epsilon(*, noise: float, clip: float, columns: int, releases: int, unit: int, delta: float) -> float:
    """Epsilon at `delta` of so many noised sums, for matrices that differ in one user's row by at most `clip` in l2.

    Everything is measured in the integers that travel, 1/`unit` each; rounding may add half of one to every coordinate's change.
    """
    l2 = clip * unit + math.sqrt(columns)
    variance = (noise * unit) ** 2
    return epsilon({a: releases * skellam_rdp(a, variance, l2, math.sqrt(columns) * l2) for a in ORDERS}, delta)

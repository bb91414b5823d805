r"""Noise on summed neighbourhoods, shared out over the parties: integers, so that it can be masked and adds up exactly.

.. math::
    Z \sim \mathrm{Sk}(\mu): \quad Z = A - B, \quad A, B \sim \mathrm{Poisson}(\mu / 2), \quad
    \mathrm{Sk}(\mu_1) + \mathrm{Sk}(\mu_2) = \mathrm{Sk}(\mu_1 + \mu_2)

The Skellam distribution is closed under addition, so that the noise of several parties is exactly that of one.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from verfedgnn.privacy import release_events as events


def draw_skellam(shape: tuple[int, ...], variance: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """Independent Skellam variables of mean 0."""
    return rng.poisson(variance / 2, shape) - rng.poisson(variance / 2, shape)


def noised_sum_event(*, noise: float, clip: float, columns: int, unit: int) -> events.ReleaseEvent:
    """A noised sum as an event, for matrices that differ in one user's row by at most `clip` in l2.

    Everything is measured in the integers that travel, 1/`unit` each; rounding may add half of one to every coordinate's change.
    """
    l2 = clip * unit + math.sqrt(columns)
    return events.skellam((noise * unit) ** 2, l2, math.sqrt(columns) * l2)

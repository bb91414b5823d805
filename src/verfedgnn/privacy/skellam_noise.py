r"""Integer noise on summed neighbourhoods, to which every party contributes a share.

It can be masked and adds up exactly.

.. math::
    Z \sim \mathrm{Sk}(\mu): \quad Z = A - B, \quad A, B \sim \mathrm{Poisson}(\mu / 2), \quad
    \mathrm{Sk}(\mu_1) + \mathrm{Sk}(\mu_2) = \mathrm{Sk}(\mu_1 + \mu_2)

The Skellam distribution is closed under addition, so the sum of several parties' noise is again Skellam
noise.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from verfedgnn.privacy import release_events as events


def draw_skellam(shape: tuple[int, ...], variance: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw independent Skellam variables of mean 0."""
    return rng.poisson(variance / 2, shape) - rng.poisson(variance / 2, shape)


def noised_sum_event(*, noise: float, clip: float, columns: int, unit: int) -> events.ReleaseEvent:
    """Return the event of a noised sum, for matrices that differ in one user's row by at most `clip` in l2.

    The unit is that of the integers that are sent, 1/`unit` each. Rounding may move every coordinate by half
    an integer more.
    """
    l2 = clip * unit + math.sqrt(columns)
    return events.skellam((noise * unit) ** 2, l2, math.sqrt(columns) * l2)

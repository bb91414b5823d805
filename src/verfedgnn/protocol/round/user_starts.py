r"""The biases that users start with: their federated means (`core.rating_means`), from the sums of the first exchange.

.. math::
    b_u = \frac{S_u}{W_u + c}, \qquad S_u = \sum_p s_u^p, \quad W_u = \sum_p w_u^p

Without them, a user with few ratings needs hundreds of ternary gradients to find a bias that two sums tell at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from verfedgnn.config import Config
from verfedgnn.config.sections import FRACTION_BITS
from verfedgnn.core.rating_means import LARGEST_MEAN, USER_MEAN_COLUMNS
from verfedgnn.protocol.wire.fixed_point import from_fixed

PRIOR_WEIGHT = 0.5
"""c, the weight of the prior mean 0. Parties choose their own for the gate; this one is the same for all."""
START_SUM = 1000.0
"""Adagrad's sum of squares of a bias that starts at a mean. A start that is worth something moves slowly."""
START_BITS = 16
"""Bits of a bias on the wire."""


def mean_scale(config: Config, parties: int) -> float:
    """Return the divisor of users' means on the wire, so that the sum over all parties fits into its bits."""
    bits = config.exchange.bits
    largest = 2.0 ** (bits - 1 - FRACTION_BITS[bits])
    return max(1.0, 2 * LARGEST_MEAN * parties / largest)


def user_starts(total: NDArray[np.integer[Any]], config: Config, parties: int) -> NDArray[np.int16]:
    """Return the biases (N,) in fixed point from a sum of neighbourhoods (K, N, C), whose last columns are users' means."""
    means = torch.from_numpy(np.ascontiguousarray(total[0, :, -USER_MEAN_COLUMNS:]))
    values = from_fixed(means, config.exchange.bits) * mean_scale(config, parties)
    weight = values[:, 1].clamp(min=0.0) + PRIOR_WEIGHT  # noise on the sums can make a weight negative
    biases = (values[:, 0] / weight).clamp(-LARGEST_MEAN, LARGEST_MEAN)
    found: NDArray[np.int16] = (biases * (1 << FRACTION_BITS[START_BITS])).round().to(torch.int16).numpy()
    return found

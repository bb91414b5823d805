r"""Differential privacy of single ratings over a whole training.

Neighbouring data sets differ in one rating of one user at one party. Errors are clipped at c and embeddings
are kept within a ball of radius B. A rating therefore changes its user's and its item's row of the gradient
by at most

.. math::
    \Delta = 2 c \sqrt{B^2 + 1}, \qquad
    g_u = \sum_v 2 [\hat r_{uv} - r_{uv}]_{-c}^{c} (e_v, 1), \quad g_v = \sum_u 2 [\hat r_{uv} - r_{uv}]_{-c}^{c} (e_u, 1),

where the 1 belongs to the bias. Both rows get Skellam noise of standard deviation z Delta in every round. The
users' rows leave the party, and all parties contribute to their noise under masked sums. The items' rows stay.
All noise is added to integers, never to floating-point numbers (Mironov 2012). The next round starts from noisy sums only, even inside a party. Rounds therefore
compose, and later messages reveal no more about a rating.

A rating is either in the training or in the validation part, so the epsilons of the two parts are not added.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.config.sections import SkellamGradients
from verfedgnn.core.errors import ConfigError
from verfedgnn.core.key_stream import NoiseKey
from verfedgnn.core.option_names import option
from verfedgnn.privacy import release_events as events
from verfedgnn.privacy.release_events import Release

STEPS = 512.0
"""Approximate number of integers per standard deviation of the noise. Finer steps would only cost bytes."""
ITEM_STEPS = 32768.0
"""The same for item rows, which cost no bytes."""
VALIDATION_STEPS = 8192.0
"""The same for validations."""
MOST_PARTIES = 1 << 20
"""Largest number of parties for which the error of their noise is bounded."""
LARGEST = 1e6
"""Largest noise multiplier that is tried for a budget."""


def sensitivity(config: Config) -> float:
    """Return Delta, the largest l2 change of a gradient by one rating."""
    assert config.training.error_clip is not None
    assert config.model.bound is not None
    return 2 * config.training.error_clip * math.sqrt(config.model.bound**2 + config.model.biases)


def noise_multiplier(config: Config) -> float:
    """Return z, the standard deviation of the noise as a multiple of the sensitivity."""
    assert isinstance(config.gradients, SkellamGradients)
    return config.gradients.noise_multiplier


def deviation(config: Config) -> float:
    """Return the standard deviation of the noise on a gradient."""
    return noise_multiplier(config) * sensitivity(config)


def unit(config: Config) -> float:
    """Return the integer that represents 1, a power of two: gradients are sent as multiples of 1/unit."""
    return _power_of_two(STEPS / deviation(config))


def item_unit(config: Config) -> float:
    """Return the integer that represents 1 in item rows."""
    return _power_of_two(ITEM_STEPS / deviation(config))


def validation_unit(config: Config) -> float:
    """Return the integer that represents the largest squared error, and one rating in a count."""
    return _power_of_two(VALIDATION_STEPS / noise_multiplier(config))


def _power_of_two(value: float) -> float:
    """Return the power of two near a value."""
    return float(2.0 ** round(math.log2(value)))


def release_gradient(
    gradient: Tensor, config: Config, *, parties: int, sharing: int, key: NoiseKey
) -> NDArray[np.int32]:
    """Convert a party's flat public gradient to integers and add its share of the noise.

    A recipient can subtract its own noise. The other parties' noise alone therefore has the full variance if `sharing` parties
    contribute to the sum.
    """
    scale = unit(config)
    limit = (2**31 - 1) // max(1, parties) - 1
    values = np.clip(np.rint(gradient.cpu().numpy().astype(np.float64) * scale), -limit // 2, limit // 2)
    variance = (deviation(config) * scale) ** 2 / max(1, sharing - 1)
    return (values + SkellamNoise(variance, key).draw(values.shape)).astype(np.int32)


def add_item_noise(gradients: dict[str, Tensor], config: Config, key: NoiseKey) -> dict[str, Tensor]:
    """Round a party's private gradients to integers of a fine unit, and add noise.

    They never leave the party, but later messages are computed from them.
    """
    scale = item_unit(config)
    noise = SkellamNoise((deviation(config) * scale) ** 2, key)

    def noised(value: Tensor) -> Tensor:
        whole = np.rint(value.cpu().numpy().astype(np.float64) * scale) + noise.draw(tuple(value.shape))
        return torch.from_numpy((whole / scale).astype(np.float32)).to(value.device)

    return {name: noised(value) for name, value in gradients.items()}


def release_validation(
    squared: Tensor, scale: tuple[float, float], config: Config, key: NoiseKey
) -> tuple[float, int]:
    """Return the sum of squared errors and their number, with noise.

    Each squared error is clipped at the square of the scale's width and rounded to a fine unit.
    """
    widest, steps = (scale[1] - scale[0]) ** 2, validation_unit(config)
    exact = int(squared.double().clamp(max=widest).mul(steps / widest).round_().sum())
    noise = SkellamNoise((noise_multiplier(config) * steps) ** 2, key).draw((2,)).tolist()
    count = round(len(squared) * steps) + noise[1]
    return max(0.0, (exact + noise[0]) * widest / steps), max(1, round(count / steps))


def training_releases(config: Config, rounds: int) -> list[Release]:
    """Return the releases that a training rating affects."""
    return [
        Release("user gradients", rounds, _row_event(config, unit(config))),
        Release("item gradients", rounds, _row_event(config, item_unit(config))),
    ]


def _row_event(config: Config, scale: float) -> events.ReleaseEvent:
    """Return the event of the noised row that a rating affects, in integers of 1/`scale`."""
    columns = config.model.dim + config.model.biases
    l2 = sensitivity(config) * scale + math.sqrt(columns)  # rounding may move every coordinate by one more
    return events.skellam((deviation(config) * scale) ** 2, l2, math.sqrt(columns) * l2)


def validation_releases(config: Config, validations: int) -> list[Release]:
    """Return the releases that a validation rating affects."""
    steps = validation_unit(config)
    moved = max(1.0, steps)  # one rating moves both integers by at most this
    event = events.skellam((noise_multiplier(config) * steps) ** 2, moved, moved)
    return [
        Release("validation errors", validations, event),
        Release("validation counts", validations, event),
    ]


def rating_epsilon(config: Config, *, rounds: int, validations: int) -> float:
    """Return the epsilon of a rating over a training. It is in one of the two parts, so the larger epsilon counts."""
    parts = training_releases(config, rounds), validation_releases(config, validations)
    return max(events.compose_epsilon(part) for part in parts)


def sampling_delta(config: Config, *, rounds: int, validations: int, epsilon: float) -> float:
    """Return what the tables of the noise add to delta: (1 + e^epsilon) times their total variation.

    It counts the draws on the rows that a rating affects, at every party that contributes to the noise.
    """
    draws = (config.model.dim + config.model.biases) * rounds
    users = MOST_PARTIES * draws * total_variation((deviation(config) * unit(config)) ** 2)
    items = draws * total_variation((deviation(config) * item_unit(config)) ** 2)
    variance = (noise_multiplier(config) * validation_unit(config)) ** 2
    valid = 2 * validations * total_variation(variance)
    return (1 + math.exp(min(epsilon, 700.0))) * (users + items + valid)


def fit_budget(config: Config, *, wanted: float) -> Config:
    """Return the configuration with the least noise, within 0.1 %, whose training stays within epsilon = `wanted`."""
    if not config.gradients.protects_ratings:
        raise ConfigError(
            f"a privacy budget needs gradients.mechanism = skellam; {config.gradients.mechanism} gradients give no useful "
            f"epsilon over a whole training. Start from {option('preset', 'private')}"
        )
    rounds = config.training.epochs
    every = config.training.evaluate_every or 1
    validations = -(-rounds // every)

    def chosen(z: float) -> Config:
        return config.with_values({"gradients.noise_multiplier": z})

    def spent(z: float) -> float:
        return rating_epsilon(chosen(z), rounds=rounds, validations=validations)

    low, high = 0.01, 1.0
    while spent(high) > wanted:
        low, high = high, 2 * high
        if high > LARGEST:
            raise ConfigError(
                f"no noise keeps {rounds:,} rounds within epsilon = {wanted:g} at delta = {events.DELTA:g}; "
                "allow a larger epsilon"
            )
    while high - low > 1e-3 * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if spent(middle) <= wanted else (middle, high)
    return chosen(float(f"{high:.4g}") if spent(float(f"{high:.4g}")) <= wanted else high)


# Integer noise, to which every party contributes a share. It can be masked and adds up exactly.
#
# .. math::
#     Z \sim \mathrm{Sk}(\mu): \quad P(Z = k) = e^{-\mu} I_{|k|}(\mu), \quad
#     \mathrm{Sk}(\mu_1) + \mathrm{Sk}(\mu_2) = \mathrm{Sk}(\mu_1 + \mu_2)
#
# The Skellam distribution of variance mu is the difference of two Poisson variables of mean mu / 2. It is closed under addition, so the
# sum of several parties' noise is again Skellam noise.
#
# No floating point is involved. A table holds the distribution function in multiples of 2^-128, and a draw finds the place of a uniform
# 128-bit integer in it. Its first 64 bits nearly always decide; the others are drawn only if they do not. The distance in total variation
# from the true distribution is at most (entries of the table) 2^-128 a draw (`total_variation`), which accounting adds to delta.


LARGEST_DEVIATION = 1 << 17
"""Largest standard deviation of a table: about 3.5 million entries."""
_GUARD_BITS = 128
"""Bits of the smallest number in the recurrence, so that its rounding does not matter."""


@dataclass(frozen=True)
class SkellamTable:
    """The distribution function P(Z <= k) for k = least, least + 1, ..., in multiples of 2^-128; it is 1 beyond the last entry."""

    least: int
    high: NDArray[np.uint64]
    """First 64 bits of each entry."""
    low: NDArray[np.uint64]
    """Other 64 bits of each entry."""

    def entry(self, place: int) -> int:
        """Return an entry, a multiple of 2^-128."""
        return int(self.high[place]) << 64 | int(self.low[place])


@lru_cache(maxsize=8)
def skellam_table(variance: float) -> SkellamTable:
    r"""Return the table of a variance.

    Miller's backward recurrence gives the Bessel functions up to a factor, which their sum then removes:

    .. math::
        I_{k-1} = I_{k+1} + \frac{2 k}{\mu} I_k, \qquad e^\mu = I_0 + 2 \sum_{k \ge 1} I_k .

    It adds positive integers only, so rounding errors do not grow.
    """
    if not 0 < variance <= LARGEST_DEVIATION**2:
        raise ValueError(f"no table for Skellam noise of variance {variance:g}")
    exact = Fraction(variance)
    above, here = 0, 1 << _GUARD_BITS
    weights = [here]
    for k in range(_farthest(variance), 0, -1):
        above, here = here, above + 2 * k * here * exact.denominator // exact.numerator
        weights.append(here)
    weights.reverse()
    whole = 2 * sum(weights) - weights[0]
    tails = []  # floor(2^128 P(Z >= k)) for k = 1, 2, ... while it is not 0
    beyond = (whole - weights[0]) // 2
    for weight in weights[1:]:
        tail = (beyond << 128) // whole
        if not tail:
            break
        tails.append(tail)
        beyond -= weight
    # P(Z <= -k) = P(Z >= k), and P(Z <= k - 1) = 1 - P(Z >= k).
    entries = [*reversed(tails), *((1 << 128) - tail for tail in tails)]
    high = np.array([entry >> 64 for entry in entries], np.uint64)
    low = np.array([entry & (1 << 64) - 1 for entry in entries], np.uint64)
    return SkellamTable(-len(tails), high, low)


def _farthest(variance: float) -> int:
    """Return a value beyond which the tail is below 2^-160, by Bernstein's inequality."""
    return math.ceil(75 + 15 * math.sqrt(variance))


class SkellamNoise:
    """Independent Skellam variables of mean 0 under one key."""

    def __init__(self, variance: float, key: NoiseKey) -> None:
        self._table = skellam_table(variance)
        self._stream = key.stream("skellam", variance)

    def draw(self, shape: tuple[int, ...]) -> NDArray[np.int64]:
        """Draw the next variables."""
        table = self._table
        words = self._stream.words((math.prod(shape),))
        places = np.searchsorted(table.high, words, side="right")
        for undecided in np.flatnonzero(table.high[places - 1] == words):  # only all 128 bits decide
            value = int(words[undecided]) << 64 | int(self._stream.words((1,))[0])
            first = int(np.searchsorted(table.high, words[undecided], side="left"))
            below = (table.entry(place) <= value for place in range(first, places[undecided]))
            places[undecided] = first + sum(below)
        return (places + table.least).reshape(shape)


def total_variation(variance: float) -> float:
    """Return a bound on the distance of one draw from the true distribution."""
    return (2 * _farthest(variance) + 1) * 2.0**-128

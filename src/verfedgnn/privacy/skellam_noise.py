r"""Integer noise, to which every party contributes a share. It can be masked and adds up exactly.

.. math::
    Z \sim \mathrm{Sk}(\mu): \quad P(Z = k) = e^{-\mu} I_{|k|}(\mu), \quad
    \mathrm{Sk}(\mu_1) + \mathrm{Sk}(\mu_2) = \mathrm{Sk}(\mu_1 + \mu_2)

The Skellam distribution of variance mu is the difference of two Poisson variables of mean mu / 2. It is closed under addition, so the
sum of several parties' noise is again Skellam noise.

No floating point is involved. A table holds the distribution function in multiples of 2^-128, and a draw finds the place of a uniform
128-bit integer in it. Its first 64 bits nearly always decide; the others are drawn only if they do not. The distance in total variation
from the true distribution is at most (entries of the table) 2^-128 a draw (`total_variation`), which accounting adds to delta.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from verfedgnn.core.key_stream import NoiseKey

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
    guide: NDArray[np.int64]
    """For the first `guide_bits` bits of a word, the number of entries up to the least such word."""

    @classmethod
    def of(cls, least: int, entries: list[int]) -> SkellamTable:
        """Return the table of entries that are multiples of 2^-128."""
        high = np.array([entry >> 64 for entry in entries], np.uint64)
        low = np.array([entry & (1 << 64) - 1 for entry in entries], np.uint64)
        bits = len(entries).bit_length()
        words = np.arange(1 << bits, dtype=np.uint64) << np.uint64(64 - bits)
        return cls(least, high, low, np.searchsorted(high, words, side="right"))

    @property
    def guide_bits(self) -> int:
        """Number of bits of a word that the guide knows."""
        return len(self.guide).bit_length() - 1

    def entry(self, place: int) -> int:
        """Return an entry, a multiple of 2^-128."""
        return int(self.high[place]) << 64 | int(self.low[place])

    def count(self, words: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return how many entries' first 64 bits are at most each word, as `np.searchsorted` does.

        The guide leaves a step or two of the search for nearly all words, which is several times as fast.
        """
        found: NDArray[np.int64] = self.guide[words >> np.uint64(64 - self.guide_bits)]
        last = len(self.high) - 1
        for _ in range(2):
            found += self.high[np.minimum(found, last)] <= words
        np.minimum(found, last + 1, out=found)
        left = np.flatnonzero(self.high[np.minimum(found, last)] <= words)
        found[left] = np.searchsorted(self.high, words[left], side="right")
        return found


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
    return SkellamTable.of(-len(tails), entries)


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
        high = self._table.high
        words = self._stream.words((math.prod(shape),))
        found = self._table.count(words)
        for undecided in np.flatnonzero(high[found - 1] == words):
            found[undecided] = self._decide(words[undecided])
        return (found + self._table.least).reshape(shape)

    def _decide(self, word: np.uint64) -> int:
        """Return the place of a draw whose first 64 bits are those of an entry."""
        value = int(word) << 64 | int(self._stream.words((1,))[0])
        first, last = (int(np.searchsorted(self._table.high, word, side=side)) for side in ("left", "right"))
        return first + sum(self._table.entry(place) <= value for place in range(first, last))


def total_variation(variance: float) -> float:
    """Return a bound on the distance of one draw from the true distribution."""
    return (2 * _farthest(variance) + 1) * 2.0**-128

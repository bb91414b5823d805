"""Whether two models really differ on the same ratings: a paired bootstrap over users.

Ratings of one user go together, so users are drawn, not ratings.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DRAWS = 1000
FEWEST_USERS = 20
"""With fewer, resampling them says little about others."""
_CHUNK = 1 << 22
"""Weights held at a time."""


@dataclass(frozen=True)
class Gain:
    """By how much RMSE falls, and the interval that holds 95 % of the draws."""

    value: float
    low: float
    high: float
    users: int

    @property
    def pays(self) -> str:
        """yes, no or cannot tell."""
        if self.users < FEWEST_USERS:
            return "cannot tell"
        return "yes" if self.low > 0 else "no" if self.high < 0 else "cannot tell"


def gain(
    user: NDArray[np.int64], before: NDArray[np.float64], after: NDArray[np.float64], *, seed: int = 0
) -> Gain | None:
    """The gain from `before` to `after`, squared errors of the same ratings by `user`; None without ratings."""
    if not len(user):
        return None
    _, row = np.unique(user, return_inverse=True)
    count = np.bincount(row)
    sums = np.stack(
        [np.bincount(row, before), np.bincount(row, after), count.astype(np.float64)], 1
    )  # (U, 3)
    rng = np.random.default_rng([seed, 7])
    drawn = []
    for size in _chunks(len(count)):
        weights = rng.multinomial(len(count), np.full(len(count), 1 / len(count)), size)
        drawn.append(_gains(weights.astype(np.float64) @ sums))
    low, high = np.quantile(np.concatenate(drawn), [0.025, 0.975])
    return Gain(float(_gains(sums.sum(0, keepdims=True))[0]), float(low), float(high), len(count))


def _chunks(users: int) -> list[int]:
    most = max(1, _CHUNK // users)
    return [min(most, DRAWS - start) for start in range(0, DRAWS, most)]


def _gains(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.sqrt(sums[:, 0] / sums[:, 2]) - np.sqrt(sums[:, 1] / sums[:, 2]))

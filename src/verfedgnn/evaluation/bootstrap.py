"""A paired bootstrap over users, which tells whether two models differ beyond chance.

Ratings of one user belong together, so users are drawn, not ratings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Metric = Literal["rmse", "ndcg@20"]
Floats = NDArray[np.float64]

DRAWS = 1000
"""Number of bootstrap samples."""
FEWEST_USERS = 20
"""Fewest users for a verdict; resampling fewer says little about other users."""
_CHUNK = 1 << 22
"""Weights held in memory at a time."""


@dataclass(frozen=True)
class Gain:
    """The gain of a second model over a first, positive if the second is better, with its 95 % interval."""

    value: float
    low: float
    high: float
    users: int
    reference: float
    """RMSE or NDCG@20 of the first model."""
    error: float
    """Standard error of `value`."""

    @property
    def pays(self) -> str:
        """The verdict: yes, no or cannot tell."""
        if self.users < FEWEST_USERS:
            return "cannot tell"
        return "yes" if self.low > 0 else "no" if self.high < 0 else "cannot tell"

    def to_dict(self) -> dict[str, float]:
        """Return the gain for metrics.json, also in per cent of `reference`."""
        scale = 100 / self.reference if self.reference else 0.0
        return {
            "value": self.value,
            "low": self.low,
            "high": self.high,
            "percent": self.value * scale,
            "low_percent": self.low * scale,
            "high_percent": self.high * scale,
            "error_percent": self.error * scale,
            "margin_percent": (self.high - self.low) / 2 * scale,
        }


def measure(total: Floats, count: Floats, metric: Metric) -> Floats:
    """Return the RMSE of summed squared errors, or the mean of summed NDCG."""
    mean = total / count
    return np.asarray(np.sqrt(mean) if metric == "rmse" else mean)


def gain(
    user: NDArray[np.int64], before: Floats, after: Floats, metric: Metric = "rmse", *, seed: int = 0
) -> Gain | None:
    """Return the gain of `after` over `before` on the same cases; None if there are no cases.

    A case is a test rating with its squared error (RMSE), or a user with the NDCG of the list (NDCG@20). `user` holds the
    user of each case.
    """
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
        drawn.append(_gains(weights.astype(np.float64) @ sums, metric))
    gains = np.concatenate(drawn)
    low, high = np.quantile(gains, [0.025, 0.975])
    whole = sums.sum(0, keepdims=True)
    reference = float(measure(whole[:, 0], whole[:, 2], metric)[0])
    value = float(_gains(whole, metric)[0])
    return Gain(value, float(low), float(high), len(count), reference, float(gains.std(ddof=1)))


def _chunks(users: int) -> list[int]:
    most = max(1, _CHUNK // users)
    return [min(most, DRAWS - start) for start in range(0, DRAWS, most)]


def _gains(sums: Floats, metric: Metric) -> Floats:
    change = measure(sums[:, 0], sums[:, 2], metric) - measure(sums[:, 1], sums[:, 2], metric)
    return change if metric == "rmse" else -change

"""Chance: the interval of a gain, and when a gain is clear enough among several to be called yes or no.

Intervals come from a paired bootstrap over users. Ratings of one user belong together, so users are drawn, not ratings.

A 95 % interval misses the truth once in twenty times, and a party has several verdicts. *Yes* and *no* are therefore corrected by
Holm's method: where no verdict of a party has a true gain or loss, the chance that any of them says yes or no is `ERROR`. The
correction holds for verdicts that depend on each other, too. Intervals are not corrected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

DRAWS = 1000
"""Number of bootstrap samples."""
FEWEST_USERS = 20
"""Fewest users for a verdict; resampling fewer says little about other users."""
ERROR = 0.05
"""Chance of any false yes or no among the verdicts of a party."""
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
    """Figure of the first model."""
    error: float
    """Standard error of `value`."""

    @property
    def pays(self) -> str:
        """The verdict without a correction: yes, no or cannot tell."""
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
            "p": p_value(self.value, self.error, max(1, self.users - 1)),
        }


def measure(total: Floats, count: Floats, metric: str) -> Floats:
    """Return the RMSE of summed squared errors, or the mean of summed figures of lists."""
    mean = total / count
    return np.asarray(np.sqrt(mean) if metric == "rmse" else mean)


def gain(
    user: NDArray[np.int64], before: Floats, after: Floats, metric: str = "rmse", *, seed: int = 0
) -> Gain | None:
    """Return the gain of `after` over `before` on the same cases; None if there are no cases.

    A case is a test rating with its squared error (RMSE), or a user with the figure of the list. `user` holds the user of each case.
    """
    if not len(user):
        return None
    _, row = np.unique(user, return_inverse=True)
    count = np.bincount(row)
    columns = [np.bincount(row, before), np.bincount(row, after), count.astype(np.float64)]
    sums = np.stack(columns, 1)  # (U, 3)
    rng = np.random.default_rng([seed, 7])
    drawn, most = [], max(1, _CHUNK // len(count))
    for start in range(0, DRAWS, most):
        share = np.full(len(count), 1 / len(count))
        weights = rng.multinomial(len(count), share, min(most, DRAWS - start))
        drawn.append(_gains(weights.astype(np.float64) @ sums, metric))
    gains = np.concatenate(drawn)
    low, high = np.quantile(gains, [0.025, 0.975])
    whole = sums.sum(0, keepdims=True)
    reference = float(measure(whole[:, 0], whole[:, 2], metric)[0])
    value = float(_gains(whole, metric)[0])
    return Gain(value, float(low), float(high), len(count), reference, float(gains.std(ddof=1)))


def _gains(sums: Floats, metric: str) -> Floats:
    change = measure(sums[:, 0], sums[:, 2], metric) - measure(sums[:, 1], sums[:, 2], metric)
    return change if metric == "rmse" else -change


def p_value(value: float, error: float, freedom: float) -> float:
    """Return the chance of a gain at least as far from 0 as `value` if there is none, by Student's t.

    `error` is the standard error of the gain and `freedom` the degrees of freedom.
    """
    from scipy.special import stdtr  # a member that trains need not load it

    if not value:
        return 1.0
    return float(2 * stdtr(freedom, -abs(value) / error)) if error else 0.0


def holm(chances: Sequence[float]) -> NDArray[np.bool_]:
    """Return which of several p-values are clear at `ERROR` for all of them together.

    The smallest is compared with ERROR / n, the next one with ERROR / (n - 1), and so on up to the first that fails.
    """
    values = np.asarray(chances, np.float64)
    order = np.argsort(values, kind="stable")
    passed = values[order] <= ERROR / np.arange(len(values), 0, -1)
    clear = np.zeros(len(values), bool)
    clear[order] = np.logical_and.accumulate(passed)
    return clear


def format_percent(value: float, low: float, high: float, unit: str = "%") -> str:
    """Format a gain with its interval, such as `+12.2 % (+11.2 to +13.3)`.

    There is one decimal, and a second one if an end of the interval that is not 0 would be printed as 0. Positive numbers have
    a plus, 0 has no sign, and a gain that is 0 for everybody has no interval.
    """
    if low == high == 0:
        return f"0 {unit}"
    digits = 1 if all(round(end, 1) or not end for end in (low, high)) else 2
    gain, first, last = (format_signed(number, digits) for number in (value, low, high))
    return f"{gain} {unit} ({first} to {last})"


def format_gain(row: Mapping[str, Any]) -> str:
    """Format the gain of a row of a table; with too few users it becomes a dash."""
    gained = row["gain"]
    if not gained or row["users"] < FEWEST_USERS:
        return "-"
    return format_percent(gained["percent"], gained["low_percent"], gained["high_percent"])


def format_signed(number: float, digits: int = 1) -> str:
    """Format a number with its sign; 0, also after rounding, has none."""
    rounded = round(number, digits) + 0.0  # without a negative zero
    return f"{rounded:+.{digits}f}" if rounded else f"{0:.{digits}f}"

"""The distribution of ratings over the scale, users, items and time, as labelled counts for bar charts, and its drift."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verfedgnn.data.ids import StrArray, find_positions
from verfedgnn.data.ratings import Ratings
from verfedgnn.data.value_parsing import EARLIEST, latest_plausible_time

Bars = tuple[tuple[str, int], ...]
"""Labels and counts of bars, in the order in which they are drawn."""

MOST_BARS = 24
_VALUES = 11
_DISTINCT = 50
"""Most distinct ratings that are compared one by one; a finer scale is divided into bins."""
_BINS = 20


@dataclass(frozen=True)
class Distribution:
    """Summary of a table of ratings."""

    ratings: int
    users: int
    items: int
    lowest: float
    highest: float
    mean: float
    values: Bars
    """Count of each rating, or of ten equal bins if there are many different ratings."""
    per_user: Bars
    """Number of users by their number of ratings, in growing bins: 1, 2-4, 5-9, 10-19, ..."""
    per_item: Bars
    """Number of items by their number of ratings, in the same bins."""
    first: str | None
    """Day of the first rating; None without times."""
    last: str | None
    """Day of the last rating; None without times."""
    over_time: Bars
    """Number of ratings by year, month or day, depending on the time span."""

    @property
    def density(self) -> float:
        """Share of all (user, item) pairs that are rated."""
        return self.ratings / max(1, self.users * self.items)


def describe_ratings(
    user: NDArray[np.integer],
    item: NDArray[np.integer],
    rating: NDArray[np.floating],
    time: NDArray[np.int64] | None,
    now: int | None = None,
) -> Distribution | None:
    """Describe ratings given by codes of users and items; return None if there are no ratings.

    Times before 1990 or after `now` are probably mistakes and would squeeze all others into one bar. They are
    left out unless all times are like that.
    """
    if not len(rating):
        return None
    by_user, by_item = (counts[counts > 0] for counts in (np.bincount(user), np.bincount(item)))
    first = last = None
    over_time: Bars = ()
    if time is not None:
        likely = (time >= EARLIEST) & (time <= latest_plausible_time(now))
        days, daily = np.unique((time[likely] if likely.any() else time) // 86_400, return_counts=True)
        dates = days.astype("datetime64[D]")
        first, last, over_time = str(dates[0]), str(dates[-1]), _periods(dates, daily)
    return Distribution(
        ratings=len(rating),
        users=len(by_user),
        items=len(by_item),
        lowest=float(rating.min()),
        highest=float(rating.max()),
        mean=float(rating.mean(dtype=np.float64)),
        values=_values(rating),
        per_user=bin_counts(by_user),
        per_item=bin_counts(by_item),
        first=first,
        last=last,
        over_time=over_time,
    )


def bin_counts(counts: NDArray[np.integer]) -> Bars:
    """Return how many counts fall into the bins 1, 2-4, 5-9, 10-19, 20-49, ..., without empty bins at the
    start.
    """
    edges = [step * 10**power for power in range(19) for step in (1, 2, 5)]
    edges = edges[: int(np.searchsorted(edges, counts.max(), "right")) + 1]
    found = np.histogram(counts, [*edges[:-1], np.inf])[0]
    labels = [str(low) if high == low + 1 else f"{low:,}-{high - 1:,}" for low, high in pairwise(edges)]
    smallest = int(np.argmax(found > 0))
    return tuple(zip(labels, found.tolist(), strict=True))[smallest:]


def _values(rating: NDArray[np.floating]) -> Bars:
    found, counts = np.unique(rating, return_counts=True)
    if len(found) <= _VALUES:
        return tuple((f"{value:g}", count) for value, count in zip(found, counts.tolist(), strict=True))
    counts, edges = np.histogram(rating, 10)
    return tuple(
        (f"{low:.3g} to {high:.3g}", n)
        for low, high, n in zip(edges, edges[1:], counts.tolist(), strict=False)
    )


def _periods(days: NDArray[np.datetime64], count: NDArray[np.integer]) -> Bars:
    """Count ratings by the finest of day, month and year that needs at most `MOST_BARS` bars.

    If even years need more, the oldest are merged into the first bar.
    """
    for unit in ("D", "M", "Y"):
        period = days.astype(f"datetime64[{unit}]")
        first = period.min()
        last = period.max()
        if int((last - first).astype(np.int64)) < MOST_BARS:
            break
    place = (period - last).astype(np.int64) + MOST_BARS - 1
    found = np.bincount(np.maximum(place, 0), weights=count, minlength=MOST_BARS).astype(int).tolist()
    start = max(0, MOST_BARS - 1 - int((last - first).astype(np.int64)))
    labels = [str(last - np.timedelta64(MOST_BARS - 1 - k, unit)) for k in range(MOST_BARS)]
    if (place < 0).any():
        labels[0] = f"to {labels[0]}"
    return tuple(zip(labels[start:], found[start:], strict=True))


def measure_drift(before: Ratings, after: Ratings) -> dict[str, Any]:
    """Return the distance of the distributions of ratings, their means, and the shares of users and items that are new.

    The distance is the total variation: the share of ratings that would have to change their value, from 0 to 1.
    """
    return {
        "rating_distance": _distance(before, after),
        "mean_rating": [float(table.rating.mean()) if len(table) else None for table in (before, after)],
        "unknown_users": _share_unknown(
            after.user_ids[np.unique(after.user)], before.user_ids[np.unique(before.user)]
        ),
        "unknown_items": _share_unknown(after.item_ids, before.item_ids),
    }


def _distance(before: Ratings, after: Ratings) -> float | None:
    if not len(before) or not len(after):
        return None
    both = np.concatenate([before.rating, after.rating])
    values, code = np.unique(both, return_inverse=True)
    if len(values) > _DISTINCT:
        edges = np.linspace(both.min(), both.max(), _BINS + 1)[1:-1]
        code = np.digitize(both, edges)
    size = int(code.max()) + 1
    old = np.bincount(code[: len(before)], minlength=size) / len(before)
    new = np.bincount(code[len(before) :], minlength=size) / len(after)
    return float(np.abs(old - new).sum() / 2)


def _share_unknown(now: StrArray, before: StrArray) -> float:
    return float((find_positions(now, before) < 0).mean()) if len(now) else 0.0

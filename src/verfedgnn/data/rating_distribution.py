"""The distribution of ratings over the scale, users, items and time, as labelled counts for bar charts."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from verfedgnn.data.time_parsing import EARLIEST, latest_plausible_time

Bars = tuple[tuple[str, int], ...]
"""Labels and counts of bars, in the order in which they are drawn."""

MOST_BARS = 24
_VALUES = 11


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
    if time is not None:
        likely = (time >= EARLIEST) & (time <= latest_plausible_time(now))
        time = time[likely] if likely.any() else time
    days, daily = (None, None) if time is None else _by_day(time)
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
        first=None if days is None else str(days[0]),
        last=None if days is None else str(days[-1]),
        over_time=() if days is None or daily is None else _periods(days, daily),
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
    # Sorting millions of ratings with a few distinct values would take longer than everything else.
    few = np.unique(rating[: 1 << 16])
    if len(few) <= _VALUES:
        place = np.minimum(np.searchsorted(few, rating), len(few) - 1)
        if (few[place] == rating).all():
            return tuple(
                (f"{value:g}", count) for value, count in zip(few, np.bincount(place).tolist(), strict=True)
            )
    found = np.unique(rating)
    if len(found) <= _VALUES:
        return tuple((f"{value:g}", int((rating == value).sum())) for value in found)
    counts, edges = np.histogram(rating, 10)
    return tuple(
        (f"{low:.3g} to {high:.3g}", int(n)) for low, high, n in zip(edges, edges[1:], counts, strict=False)
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


def _by_day(time: NDArray[np.int64]) -> tuple[NDArray[np.datetime64], NDArray[np.integer]]:
    """Return the days with ratings, in order, and the number of ratings on each."""
    day = time // 86_400
    first = int(day.min())
    if int(day.max()) - first > 1_000_000:  # Not plausible dates, and too many days to count each.
        found, count = np.unique(day, return_counts=True)
        return found.astype("datetime64[D]"), count
    count = np.bincount(day - first)
    there = np.flatnonzero(count)
    return (there + first).astype("datetime64[D]"), count[there]

"""How ratings are spread: over the scale, over users and items, over time; as labelled counts that can be drawn."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from verfedgnn.data.time_parsing import EARLIEST, latest_plausible_time

Bars = tuple[tuple[str, int], ...]
"""Labels and counts, in the order they are drawn."""

MOST_BARS = 24
_VALUES = 11


@dataclass(frozen=True)
class Distribution:
    """A table of ratings seen from afar."""

    ratings: int
    users: int
    items: int
    lowest: float
    highest: float
    mean: float
    values: Bars
    """How often each rating was given, or in ten equal bins where there are many different ones."""
    per_user: Bars
    """Users by how many ratings they have, in bins that grow: 1, 2-4, 5-9, 10-19, ..."""
    per_item: Bars
    """Items likewise."""
    first: str | None
    """The day of the first rating, if there are times."""
    last: str | None
    over_time: Bars
    """Ratings by year, month or day, whichever makes a readable number of bars."""

    @property
    def density(self) -> float:
        """The share of all pairs that are rated."""
        return self.ratings / max(1, self.users * self.items)


def describe_ratings(
    user: NDArray[np.integer],
    item: NDArray[np.integer],
    rating: NDArray[np.floating],
    time: NDArray[np.int64] | None,
    now: int | None = None,
) -> Distribution | None:
    """The distribution of ratings given by codes of users and items; None of no ratings.

    Times before 1990 or after `now` are mistakes, and would squeeze all others into one bar: they are drawn only if all are so.
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
    """How many counts fall into 1, 2-4, 5-9, 10-19, 20-49, ..., from the smallest to the largest."""
    edges = [step * 10**power for power in range(19) for step in (1, 2, 5)]
    edges = edges[: int(np.searchsorted(edges, counts.max(), "right")) + 1]
    found = np.histogram(counts, [*edges[:-1], np.inf])[0]
    labels = [str(low) if high == low + 1 else f"{low:,}-{high - 1:,}" for low, high in pairwise(edges)]
    smallest = int(np.argmax(found > 0))
    return tuple(zip(labels, found.tolist(), strict=True))[smallest:]


def _values(rating: NDArray[np.floating]) -> Bars:
    # A sort of millions for a handful of values would cost more than all the rest.
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
    """Ratings by the finest of day, month and year that needs few bars; very long spans end with the newest years."""
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
    """The days with ratings, in order, and how many each has."""
    day = time // 86_400
    first = int(day.min())
    if int(day.max()) - first > 1_000_000:  # no dates: a count of each would be too long a list
        found, count = np.unique(day, return_counts=True)
        return found.astype("datetime64[D]"), count
    count = np.bincount(day - first)
    there = np.flatnonzero(count)
    return (there + first).astype("datetime64[D]"), count[there]

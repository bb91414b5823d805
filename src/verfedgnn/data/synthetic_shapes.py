"""Generated ratings in the shape of a large data set: its counts to the last one, its long tails, its columns, on disk.

The real set may not be passed on, or not be at hand; what a federation costs depends on the shape alone. Ratings follow the
model of `data/synthetic.py`. Pairs are drawn as integers; text, stars and dates only ever exist for one row group.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from numpy.typing import NDArray

from verfedgnn.core.errors import DataError
from verfedgnn.data.synthetic import Tastes, fill, times

ROW_GROUP = 1 << 19
_TASTES, _NOISE = 2, 0.6
"""Two tastes, because a user of such sets has few ratings to tell them by."""
_ID = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", "S1")
_ID_LENGTH = 22


@dataclass(frozen=True)
class Shape:
    """A data set seen from outside."""

    users: int
    items: int
    ratings: int
    spread: float
    """Standard deviation of the logarithm of users' activity and of items' popularity."""
    columns: tuple[str, str, str, str, str]
    """Its names for user, item, rating, time and the items' category."""
    categories: tuple[str, ...]

    def __post_init__(self) -> None:
        least, most = max(self.users, self.items), self.users * self.most
        if self.users < 1 or self.items < 1:
            raise DataError(
                f"{self.users:,} users and {self.items:,} items make no data set: use at least 1 of each"
            )
        if not least <= self.ratings <= most:
            remedy = f"at least {least:,}" if self.ratings < least else f"at most {most:,}, half of all pairs"
            raise DataError(
                f"{self.ratings:,} ratings by {self.users:,} users on {self.items:,} items, each with one or more, cannot be:"
                f" use {remedy}"
            )

    @property
    def most(self) -> int:
        """Ratings a user has at most."""
        return max(1, self.items // 2)


LIKE = {
    "yelp": Shape(
        users=1_987_929,
        items=150_346,
        ratings=6_990_280,
        spread=1.5,
        columns=("user_id", "business_id", "stars", "date", "category"),
        categories=(
            "Restaurants",
            "Food",
            "Shopping",
            "Home Services",
            "Beauty & Spas",
            "Nightlife",
            "Health",
            "Hotels",
        ),
    )
}
"""By name. Yelp: the paper's counts; with this spread, as there, half of the users have one rating and some have thousands, half
of the items have 15 and some have ten thousand."""


def write_ratings(shape: Shape, path: Path, *, seed: int = 0) -> None:
    """Write a table of this shape as Parquet, the same for the same shape and seed; no pair occurs twice."""
    rng = np.random.default_rng(seed)
    pairs = _pairs(rng, shape)
    tastes = Tastes.drawn(rng, shape.users, shape.items, _TASTES)
    user_ids, item_ids = _ids(rng, shape.users), _ids(rng, shape.items)
    names = pa.array(shape.categories)
    category = rng.integers(0, len(names), shape.items, np.int32)
    kinds = (
        pa.string(),
        pa.string(),
        pa.float32(),
        pa.timestamp("s"),
        pa.dictionary(pa.int32(), pa.string()),
    )
    schema = pa.schema(list(zip(shape.columns, kinds, strict=True)))
    with pa.parquet.ParquetWriter(path, schema) as writer:
        for start in range(0, len(pairs), ROW_GROUP):
            user, item = np.divmod(pairs[start : start + ROW_GROUP], shape.items)
            stars, when = tastes.stars(rng, user, item, _NOISE), times(rng, len(user))
            columns = [
                user_ids.take(pa.array(user)),
                item_ids.take(pa.array(item)),
                pa.array(stars),
                pa.array(when, pa.timestamp("s")),
                pa.DictionaryArray.from_arrays(category[item], names),
            ]
            writer.write_table(pa.table(columns, schema))


def _pairs(rng: np.random.Generator, shape: Shape) -> NDArray[np.int64]:
    """Distinct pairs (user x M + item) in random order: every user as often as active, every item at least once."""
    count = user_counts(rng.lognormal(0, shape.spread, shape.users), shape.ratings, most=shape.most)
    # Every item gets one rating before popularity decides; whose it is, activity does.
    first = rng.choice(np.repeat(np.arange(shape.users), count), shape.items, replace=False)
    keys = fill(
        rng, first * shape.items + np.arange(shape.items), count, rng.lognormal(0, shape.spread, shape.items)
    )
    return rng.permutation(keys)


def user_counts(activity: NDArray[np.float64], ratings: int, *, most: int) -> NDArray[np.int64]:
    """Ratings of each user, in proportion to activity within 1 and `most`, adding up exactly."""

    def at(factor: float) -> NDArray[np.int64]:
        return np.clip(np.rint(factor * activity), 1, most).astype(np.int64)

    low, high = 0.0, most / activity.min()
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if at(middle).sum() <= ratings else (low, middle)
    count = at(low)
    short = ratings - int(count.sum())  # where users tie, rounding leaves a few over
    count[np.flatnonzero(count < most)[:short]] += 1
    return count


def _ids(rng: np.random.Generator, count: int) -> pa.Array:
    """So many ids of 22 letters, as Yelp's are; 132 random bits are never the same twice."""
    letters = _ID[rng.integers(0, len(_ID), (count, _ID_LENGTH), np.uint8)]
    return pa.array(letters.view(f"S{_ID_LENGTH}").ravel()).cast(pa.string())

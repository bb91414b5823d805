"""Generated ratings in the shape of a large data set: its exact counts, its long tails and its columns, written to disk.

The cost of a federation depends on the shape alone, and the real data set may be missing or not be redistributable. Ratings
follow the model of `synthetic.py`. Only one row group at a time is held as text, stars and dates.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from numpy.typing import NDArray

from verfedgnn.core.errors import DataError
from verfedgnn.data.synthetic import Tastes, draw_times, fill

ROW_GROUP = 1 << 19
_TASTES, _NOISE = 2, 0.6
"""Two tastes, because users of such data sets have few ratings."""
_ID = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", "S1")
_ID_LENGTH = 22


@dataclass(frozen=True)
class Shape:
    """The counts and columns of a data set."""

    users: int
    items: int
    ratings: int
    spread: float
    """Standard deviation of the logarithm of users' activity and of items' popularity."""
    columns: tuple[str, str, str, str, str]
    """Names of the columns for user, item, rating, time and category."""
    categories: tuple[str, ...]

    def __post_init__(self) -> None:
        least, most = max(self.users, self.items), self.users * self.most
        if self.users < 1 or self.items < 1:
            raise DataError(
                f"{self.users:,} users and {self.items:,} items are too few: use at least 1 of each"
            )
        if not least <= self.ratings <= most:
            remedy = f"at least {least:,}" if self.ratings < least else f"at most {most:,}, half of all pairs"
            raise DataError(
                f"{self.ratings:,} ratings do not fit {self.users:,} users and {self.items:,} items with one or more each:"
                f" use {remedy}"
            )

    @property
    def most(self) -> int:
        """Largest number of ratings of a user."""
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
    ),
    "yelpzip": Shape(
        users=260_277,
        items=5_044,
        ratings=608_598,
        spread=1.5,
        columns=("user_id", "business_id", "stars", "date", "category"),
        categories=("Restaurants",),
    ),
}
"""Shapes by name. Yelp has the paper's counts. With this spread, as in the original, half of the users have one rating and
some have thousands; half of the items have 15 and some have ten thousand. YelpZip (restaurants in several states) has the counts of
Rayana and Akoglu (2015): more users for each item, and 2.3 ratings a user."""


def write_ratings(shape: Shape, path: Path, *, seed: int = 0) -> None:
    """Write a Parquet table of this shape, the same for the same shape and seed, in which no pair occurs twice."""
    rng = np.random.default_rng(seed)
    pairs = _pairs(rng, shape)
    tastes = Tastes.draw(rng, shape.users, shape.items, _TASTES)
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
            stars, when = tastes.stars(rng, user, item, _NOISE), draw_times(rng, len(user))
            columns = [
                user_ids.take(pa.array(user)),
                item_ids.take(pa.array(item)),
                pa.array(stars),
                pa.array(when, pa.timestamp("s")),
                pa.DictionaryArray.from_arrays(category[item], names),
            ]
            writer.write_table(pa.table(columns, schema))


def _pairs(rng: np.random.Generator, shape: Shape) -> NDArray[np.int64]:
    """Draw distinct pairs (user x M + item) in random order, users by activity and every item at least once."""
    count = user_counts(rng.lognormal(0, shape.spread, shape.users), shape.ratings, most=shape.most)
    # Every item first gets one rating, by a user drawn by activity. Popularity decides about the others.
    first = rng.choice(np.repeat(np.arange(shape.users), count), shape.items, replace=False)
    keys = fill(
        rng, first * shape.items + np.arange(shape.items), count, rng.lognormal(0, shape.spread, shape.items)
    )
    return rng.permutation(keys)


def user_counts(activity: NDArray[np.float64], ratings: int, *, most: int) -> NDArray[np.int64]:
    """Return the number of ratings of each user, proportional to activity between 1 and `most`, with the exact sum."""

    def at(factor: float) -> NDArray[np.int64]:
        return np.clip(np.rint(factor * activity), 1, most).astype(np.int64)

    low, high = 0.0, most / activity.min()
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if at(middle).sum() <= ratings else (low, middle)
    count = at(low)
    short = ratings - int(count.sum())  # left over from rounding, where users tie
    count[np.flatnonzero(count < most)[:short]] += 1
    return count


def _ids(rng: np.random.Generator, count: int) -> pa.Array:
    """Return `count` ids of 22 letters, like Yelp's; 132 random bits do not repeat."""
    letters = _ID[rng.integers(0, len(_ID), (count, _ID_LENGTH), np.uint8)]
    return pa.array(letters.view(f"S{_ID_LENGTH}").ravel()).cast(pa.string())

"""Ratings from a known model, so that everything runs without a download and federation has something to find.

    rating = centre + user bias + item bias + <taste of the user, traits of the item> + noise,   rounded to whole stars

A user's taste is one vector for all categories: what someone rates at one organisation tells about them at the others.
Items are long-tailed (Zipf), users' activity is log-normal. `data/shapes.py` makes larger tables from the same parts, on disk.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from verfedgnn.core.errors import DataError
from verfedgnn.data.ids import StrArray
from verfedgnn.data.ratings import Ratings

CATEGORIES = ("film", "book", "album", "game", "podcast", "recipe", "course", "concert")
FEWEST = 5
"""Ratings every user has at least."""

_ZIPF = 0.7
_ACTIVITY = 0.7
_USER_BIAS, _ITEM_BIAS, _SIGNAL = 0.35, 0.4, 0.85
_START, _SPAN = 1_577_836_800, 3 * 365 * 86_400

Index = NDArray[np.integer]
"""Rows of users or items, one per rating."""


@dataclass(frozen=True)
class Tastes:
    """What decides a rating besides chance, drawn at random."""

    taste: NDArray[np.float32]
    """(N, dim)."""
    traits: NDArray[np.float32]
    """(M, dim)."""
    user_bias: NDArray[np.float32]
    item_bias: NDArray[np.float32]

    @classmethod
    def drawn(cls, rng: np.random.Generator, users: int, items: int, dim: int) -> "Tastes":
        """Of so many users and items, all independent."""
        return cls(
            rng.standard_normal((users, dim), np.float32),
            rng.standard_normal((items, dim), np.float32),
            _USER_BIAS * rng.standard_normal(users, np.float32),
            _ITEM_BIAS * rng.standard_normal(items, np.float32),
        )

    def stars(
        self,
        rng: np.random.Generator,
        user: Index,
        item: Index,
        noise: float,
        scale: tuple[float, float] = (1, 5),
    ) -> NDArray[np.float32]:
        """The ratings of these pairs, rounded; `noise` is the standard deviation of what nobody can predict."""
        dim = self.taste.shape[1]
        match = np.zeros(len(user), np.float32)
        for k in range(dim):
            match += self.taste[user, k] * self.traits[item, k]
        # The scale of 1 to 5 is the unit of the constants above.
        unit = (scale[1] - scale[0]) / 4
        star = 3.6 + self.user_bias[user] + self.item_bias[item] + _SIGNAL / np.sqrt(dim) * match
        star += noise * rng.standard_normal(len(user), np.float32)
        rating: NDArray[np.float32] = np.clip(scale[0] + unit * np.rint(star - 1), *scale).astype(np.float32)
        return rating


def synthetic_ratings(
    *,
    users: int = 1000,
    items: int = 600,
    ratings: int = 60_000,
    dim: int = 4,
    seed: int = 0,
    noise: float = 0.6,
    scale: tuple[float, float] = (1, 5),
    categories: int = 3,
) -> Ratings:
    """About `ratings` ratings, the same for the same arguments; memory grows with ratings, never with users x items.

    Every user has at least five ratings and every item at least one. Items have titles and the column "category".
    `dim` is the number of tastes, `noise` the standard deviation of what nobody can predict.
    """
    if users < 1 or items < FEWEST or dim < 1 or not 1 <= categories <= items or not scale[0] < scale[1]:
        raise DataError(
            f"synthetic data with {users} users, {items} items, {dim} dimensions and {categories} categories cannot be:"
            f" use at least 1 user, {FEWEST} items, 1 dimension, and no more categories than items"
        )
    rng = np.random.default_rng(seed)
    user, item = _who_rates_what(rng, users, items, ratings)
    rating = Tastes.drawn(rng, users, items, dim).stars(rng, user, item, noise, scale)
    ids, titles, category = _catalogue(rng, items, categories)
    # The ids are distinct by construction: coding 10 million of them anew would take longer than all the rest.
    order = np.argsort(ids)
    code = np.empty(items, np.int32)
    code[order] = np.arange(items, dtype=np.int32)
    return Ratings(
        user=user.astype(np.int32),
        item=code[item],
        rating=rating,
        user_ids=_numbered("u", np.arange(users)),
        item_ids=ids[order],
        time=times(rng, len(user)),
        titles=titles[order],
        columns={"category": category[order]},
        scale=(float(scale[0]), float(scale[1])),
        name="synthetic",
    )


def _who_rates_what(
    rng: np.random.Generator, users: int, items: int, ratings: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Distinct (user, item) pairs: as many per user as their activity says, items by popularity."""
    activity = rng.lognormal(0, _ACTIVITY, users)
    most = max(FEWEST, items // 2)
    count = np.clip(np.rint(activity * (ratings / activity.sum())), FEWEST, most).astype(np.int64)
    popularity = (1 + rng.permutation(items)) ** -_ZIPF
    keys = fill(rng, np.empty(0, np.int64), count, popularity)
    unseen = np.flatnonzero(np.bincount(keys % items, minlength=items) == 0)
    keys = np.concatenate([keys, rng.integers(0, users, len(unseen)) * items + unseen])
    keys = rng.permutation(keys)
    return keys // items, keys % items


def fill(
    rng: np.random.Generator,
    keys: NDArray[np.int64],
    count: NDArray[np.int64],
    popularity: NDArray[np.floating],
) -> NDArray[np.int64]:
    """`keys` (user x M + item) and so many more that every user has `count` different items, drawn by popularity; sorted."""
    users, items = len(count), len(popularity)
    cumulative = np.cumsum(popularity) / popularity.sum()
    lacking = count - np.bincount(keys // items, minlength=users)
    tries = 0
    while lacking.any():
        who = np.repeat(np.arange(users), lacking)
        # Users who want nearly everything would wait long for the tail: after some rounds, all items alike.
        drawn = (
            np.minimum(np.searchsorted(cumulative, rng.random(len(who)), "right"), items - 1)
            if tries < 5
            else rng.integers(0, items, len(who))
        )
        keys = _distinct(np.concatenate([keys, who * items + drawn]))
        lacking = count - np.bincount(keys // items, minlength=users)
        tries += 1
    return keys


def times(rng: np.random.Generator, count: int) -> NDArray[np.int64]:
    """When ratings were given: seconds since 1970, over three years."""
    return _START + rng.integers(0, _SPAN, count)


def _distinct(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """The different keys in order; for ten million, np.unique takes many times as long."""
    ordered: NDArray[np.int64] = np.sort(keys)
    new: NDArray[np.bool_] = np.append(True, ordered[1:] != ordered[:-1])
    return ordered[new]


def _catalogue(rng: np.random.Generator, items: int, categories: int) -> tuple[StrArray, StrArray, StrArray]:
    """Ids such as "film-017", titles such as "Film 017" and the category of each item."""
    names = np.array(
        [*CATEGORIES, *(f"category{n}" for n in range(len(CATEGORIES), categories))][:categories]
    )
    kind = rng.permutation(np.arange(items) % categories)
    order = np.argsort(kind, kind="stable")
    number = np.empty(items, np.int64)
    starts = np.cumsum(np.bincount(kind, minlength=categories)) - np.bincount(kind, minlength=categories)
    number[order] = 1 + np.arange(items) - starts[kind[order]]
    digits = np.strings.zfill(number.astype(np.str_), max(3, len(str(number.max()))))
    category: StrArray = names[kind]
    return (
        np.strings.add(np.strings.add(category, "-"), digits),
        np.strings.add(np.strings.add(np.strings.capitalize(category), " "), digits),
        category,
    )


def _numbered(prefix: str, numbers: NDArray[np.int64]) -> StrArray:
    width = max(4, len(str(int(numbers.max()))))
    return np.strings.add(prefix, np.strings.zfill(numbers.astype(np.str_), width))

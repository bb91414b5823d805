"""Generated ratings from a known model, for examples and tests that need no download.

    rating = centre + user bias + item bias + <taste of the user, traits of the item> + noise,   rounded to whole stars

A user's taste is one vector for all categories, so ratings at one organisation say something about the others. The popularity
of items is long-tailed (Zipf), the activity of users log-normal.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from verfedgnn.core.errors import DataError
from verfedgnn.data.ids import StrArray
from verfedgnn.data.ratings import Ratings

CATEGORIES = ("film", "book", "album", "game", "podcast", "recipe", "course", "concert")
FEWEST = 5
"""Smallest number of ratings of a user."""

_ZIPF = 0.7
_ACTIVITY = 0.7
_TASTES = 4
_USER_BIAS, _ITEM_BIAS, _SIGNAL, _NOISE = 0.35, 0.4, 0.85, 0.6
_START, _SPAN = 1_577_836_800, 3 * 365 * 86_400
Index: TypeAlias = NDArray[np.integer]
Scale: TypeAlias = tuple[float, float]


@dataclass(frozen=True)
class Tastes:
    """The parameters of the model, drawn at random."""

    taste: NDArray[np.float32]
    """Tastes of the users (N, 4)."""
    traits: NDArray[np.float32]
    """Traits of the items (M, 4)."""
    user_bias: NDArray[np.float32]
    item_bias: NDArray[np.float32]

    @classmethod
    def draw(cls, rng: np.random.Generator, users: int, items: int) -> "Tastes":
        """Draw independent parameters for so many users and items."""
        taste, traits = (rng.standard_normal((count, _TASTES), np.float32) for count in (users, items))
        user_bias, item_bias = (rng.standard_normal(count, np.float32) for count in (users, items))
        return cls(taste, traits, _USER_BIAS * user_bias, _ITEM_BIAS * item_bias)

    def stars(
        self, rng: np.random.Generator, user: Index, item: Index, scale: Scale = (1, 5)
    ) -> NDArray[np.float32]:
        """Return the ratings of these pairs, rounded."""
        match = np.zeros(len(user), np.float32)
        for k in range(_TASTES):
            match += self.taste[user, k] * self.traits[item, k]
        # The constants above are in units of a scale from 1 to 5.
        unit = (scale[1] - scale[0]) / 4
        star = 3.6 + self.user_bias[user] + self.item_bias[item] + _SIGNAL / np.sqrt(_TASTES) * match
        star += _NOISE * rng.standard_normal(len(user), np.float32)
        return np.clip(scale[0] + unit * np.rint(star - 1), *scale).astype(np.float32)  # type: ignore[no-any-return]


def synthetic_ratings(
    *,
    users: int = 1000,
    items: int = 600,
    ratings: int = 60_000,
    seed: int = 0,
    scale: Scale = (1, 5),
    categories: int = 3,
) -> Ratings:
    """Generate about `ratings` ratings, the same for the same arguments.

    Every user has at least five ratings and every item at least one. Items have titles and the column "category". Memory grows
    with the number of ratings, not with users times items.
    """
    if users < 1 or items < FEWEST or not 1 <= categories <= items or not scale[0] < scale[1]:
        raise DataError(
            f"cannot generate {users} users, {items} items and {categories} categories: use at least 1 user,"
            f" {FEWEST} items, and no more categories than items"
        )
    rng = np.random.default_rng(seed)
    user, item = _who_rates_what(rng, users, items, ratings)
    rating = Tastes.draw(rng, users, items).stars(rng, user, item, scale)
    kind = rng.permutation(np.arange(items) % categories)
    ids = _numbered("u", np.arange(users))
    names: StrArray = np.array(_categories(categories))[kind]
    table = _make_table(rng, "synthetic", (user, item, rating), ids, names, scale)
    return replace(table, columns={"category": np.char.partition(table.item_ids, "-")[:, 0]})


def synthetic_tables(
    parties: int, overlap: float, *, users: int = 1000, items: int = 200, ratings: int = 20_000, seed: int = 0
) -> list[Ratings]:
    """Generate a table of so many users, items and, roughly, ratings for each party.

    `overlap` is the share of a party's users who are at every party. The others are at this party only.
    """
    if parties < 1 or not 0 <= overlap <= 1 or users < 1 or items < FEWEST:
        raise DataError(
            f"cannot generate {parties} parties of {users} users and {items} items with overlap {overlap:g}: use at least 1"
            f" party, 1 user and {FEWEST} items, and an overlap from 0 to 1"
        )
    rng = np.random.default_rng(seed)
    shared = round(overlap * users)
    own = users - shared
    tastes = Tastes.draw(rng, shared + parties * own, parties * items)
    user_ids = _numbered("u", rng.permutation(shared + parties * own))
    tables = []
    for party, name in enumerate(_categories(parties)):
        rows = np.concatenate([np.arange(shared), shared + party * own + np.arange(own)])
        user, item = _who_rates_what(rng, users, items, ratings)
        stars = tastes.stars(rng, rows[user], party * items + item)
        tables.append(_make_table(rng, name, (user, item, stars), user_ids[rows], np.full(items, name)))
    return tables


def _make_table(
    rng: np.random.Generator,
    name: str,
    rows: tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]],
    user_ids: StrArray,
    names: StrArray,
    scale: Scale = (1, 5),
) -> Ratings:
    """Return a table in the order of ids; an item is called after its category in `names`, as in film-017, Film 017."""
    number = np.empty(len(names), np.int64)
    for category in np.unique(names):
        places = np.flatnonzero(names == category)
        number[places] = 1 + np.arange(len(places))
    digits = np.strings.zfill(number.astype(np.str_), max(3, len(str(number.max()))))
    user, item, rating = rows
    table = Ratings(
        user=user,
        item=item,
        rating=rating,
        user_ids=user_ids,
        item_ids=np.strings.add(np.strings.add(names, "-"), digits),
        time=_START + rng.integers(0, _SPAN, len(user)),
        titles=np.strings.add(np.strings.add(np.strings.capitalize(names), " "), digits),
        scale=(float(scale[0]), float(scale[1])),
        scale_declared=True,
        catalogue=len(names),
        name=name,
    )
    return table.select_users(np.argsort(user_ids)).select_items(np.argsort(table.item_ids))


def write_tables(tables: Sequence[Ratings], folder: Path) -> list[Path]:
    """Write each generated table to a Parquet file of its name in `folder`, and return the files."""
    files = [folder / f"{table.name}.parquet" for table in tables]
    for file, table in zip(files, tables, strict=True):
        assert table.titles is not None
        user, item, title = table.user_ids[table.user], table.item_ids[table.item], table.titles[table.item]
        texts = {"user": user.tolist(), "item": item.tolist(), "title": title.tolist()}
        pq.write_table(pa.table(texts | {"rating": table.rating, "time": table.time}), file)
    return files


def _who_rates_what(
    rng: np.random.Generator, users: int, items: int, ratings: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Draw distinct (user, item) pairs, users by activity and items by popularity."""
    activity = rng.lognormal(0, _ACTIVITY, users)
    most = max(FEWEST, items // 2)
    count = np.clip(np.rint(activity * (ratings / activity.sum())), FEWEST, most).astype(np.int64)
    popularity = (1 + rng.permutation(items)) ** -_ZIPF
    cumulative = np.cumsum(popularity) / popularity.sum()
    keys, lacking = np.empty(0, np.int64), count
    tries = 0
    while lacking.any():
        who = np.repeat(np.arange(users), lacking)
        # Users of nearly all items would wait long for the tail, so after some rounds all items are equally likely.
        drawn = (
            np.minimum(np.searchsorted(cumulative, rng.random(len(who)), "right"), items - 1)
            if tries < 5
            else rng.integers(0, items, len(who))
        )
        keys = np.sort(np.concatenate([keys, who * items + drawn]))
        # np.unique takes many times as long for ten million.
        keys = keys[np.append(True, keys[1:] != keys[:-1])]
        lacking = count - np.bincount(keys // items, minlength=users)
        tries += 1
    unseen = np.flatnonzero(np.bincount(keys % items, minlength=items) == 0)
    keys = np.concatenate([keys, rng.integers(0, users, len(unseen)) * items + unseen])
    keys = rng.permutation(keys)
    return (keys // items).astype(np.int32), (keys % items).astype(np.int32)


def _categories(count: int) -> list[str]:
    return [*CATEGORIES, *(f"category{n}" for n in range(len(CATEGORIES), count))][:count]


def _numbered(prefix: str, numbers: NDArray[np.int64]) -> StrArray:
    width = max(4, len(str(int(numbers.max()))))
    return np.strings.add(prefix, np.strings.zfill(numbers.astype(np.str_), width))

"""Generated ratings from a known model, for examples and tests that need no download.

    affinity = <taste of the user, genre of the item>                           one taste for all categories
    who rates what:  a genre by its popularity x exp(CHOICE x affinity), then an item of it by popularity (Zipf)
    rating = centre + user bias + item bias + SIGNAL x affinity + noise         rounded to whole stars
    when:            within STAY after the user has come to the category, at a random date

What users rate says what they like, also in the categories to which they come later. A title tells the genre, as in Dark film
017. The number of ratings of users is log-normal.
"""

from collections.abc import Sequence
from dataclasses import dataclass
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
GENRES = np.array(["Classic", "Dark", "Funny", "Modern", "Quiet", "Wild"])
FEWEST = 5
"""Smallest number of ratings of a user."""

_ZIPF = 0.5
_ACTIVITY = 0.7
_CHOICE = 1.5
_CENTRE, _USER_BIAS, _ITEM_BIAS, _SIGNAL, _NOISE = 2.9, 0.35, 0.4, 0.85, 0.6
_START, _SPAN, _STAY = 1_577_836_800, 3 * 365 * 86_400, 0.5
Random: TypeAlias = np.random.Generator
Index: TypeAlias = NDArray[np.integer]
Scale: TypeAlias = tuple[float, float]


@dataclass(frozen=True)
class _World:
    """The parameters of users and items, drawn at random."""

    activity: NDArray[np.float64]
    taste: NDArray[np.float32]
    """Tastes of the users (N, genres)."""
    genre: NDArray[np.int8]
    """Genres of the items (M,)."""
    user_bias: NDArray[np.float32]
    item_bias: NDArray[np.float32]

    @classmethod
    def draw(cls, rng: Random, users: int, items: int) -> "_World":
        """Draw independent parameters for so many users and items."""
        activity = rng.lognormal(0, _ACTIVITY, users)
        taste = rng.standard_normal((users, len(GENRES)), np.float32)
        user_bias, item_bias = (rng.standard_normal(count, np.float32) for count in (users, items))
        genre = rng.integers(0, len(GENRES), items, np.int8)
        return cls(activity, taste, genre, _USER_BIAS * user_bias, _ITEM_BIAS * item_bias)

    def choose(self, rng: Random, ratings: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Draw about so many distinct (user, item) pairs: users by activity, items by taste and popularity."""
        users, items = len(self.taste), len(self.genre)
        wanted = np.rint(self.activity * (ratings / self.activity.sum()))
        count = np.clip(wanted, FEWEST, max(FEWEST, items // 2)).astype(np.int64)
        popularity = (1 + rng.permutation(items)) ** -_ZIPF
        by_genre = np.argsort(self.genre, kind="stable")
        cumulative = np.cumsum(popularity[by_genre])
        ends = cumulative[np.cumsum(np.bincount(self.genre, minlength=len(GENRES))) - 1]
        starts = np.append(0, ends[:-1])
        chances = np.cumsum((ends - starts) * np.exp(_CHOICE * self.taste), axis=1)
        keys, lacking, tries = np.empty(0, np.int64), count, 0
        while lacking.any():
            who = np.repeat(np.arange(users), lacking)
            if tries < 5:
                spot = rng.random(len(who)) * chances[who, -1]
                genre = sum((spot > chances[who, k]).astype(np.int8) for k in range(len(GENRES) - 1))
                spot = starts[genre] + rng.random(len(who)) * (ends - starts)[genre]
                drawn = by_genre[np.minimum(np.searchsorted(cumulative, spot, "right"), items - 1)]
            else:  # users of nearly all items would wait long for the tail
                drawn = rng.integers(0, items, len(who))
            keys = np.sort(np.concatenate([keys, who * items + drawn]))
            # np.unique takes many times as long for ten million.
            keys = keys[np.append(True, keys[1:] != keys[:-1])]
            lacking = count - np.bincount(keys // items, minlength=users)
            tries += 1
        unseen = np.flatnonzero(np.bincount(keys % items, minlength=items) == 0)
        keys = np.concatenate([keys, rng.integers(0, users, len(unseen)) * items + unseen])
        keys = rng.permutation(keys)
        return (keys // items).astype(np.int32), (keys % items).astype(np.int32)

    def stars(self, rng: Random, user: Index, item: Index, scale: Scale) -> NDArray[np.float32]:
        """Return the ratings of these pairs, rounded."""
        # The constants above are in units of a scale from 1 to 5.
        unit = (scale[1] - scale[0]) / 4
        star = _CENTRE + self.user_bias[user] + self.item_bias[item]
        star = star + _SIGNAL * self.taste[user, self.genre[item]]
        star += _NOISE * rng.standard_normal(len(user), np.float32)
        return np.clip(scale[0] + unit * np.rint(star - 1), *scale).astype(np.float32)  # type: ignore[no-any-return]

    def table(
        self, rng: Random, ratings: int, name: str, user_ids: StrArray, kind: StrArray, scale: Scale
    ) -> Ratings:
        """Draw a table in the order of ids; an item is called after its category in `kind`, as in film-017, Dark film 017."""
        user, item = self.choose(rng, ratings)
        rating = self.stars(rng, user, item, scale)
        names, category = np.unique(kind, return_inverse=True)
        number = np.empty(len(kind), np.int64)
        for k in range(len(names)):
            number[category == k] = 1 + np.arange((category == k).sum())
        digits = np.strings.zfill(number.astype(np.str_), max(3, len(str(number.max()))))
        came = rng.random((len(user_ids), len(names)))[user, category[item]]
        date = came + np.minimum(1 - came, _STAY) * rng.random(len(user))
        table = Ratings(
            user=user,
            item=item,
            rating=rating,
            user_ids=user_ids,
            item_ids=_join(kind, "-", digits),
            time=_START + (_SPAN * date).astype(np.int64),
            titles=_join(GENRES[self.genre], " ", kind, " ", digits),
            columns={"category": kind},
            scale=(float(scale[0]), float(scale[1])),
            scale_declared=True,
            catalogue=len(kind),
            name=name,
        )
        return table.select_users(np.argsort(user_ids)).select_items(np.argsort(table.item_ids))


def synthetic_ratings(
    *,
    users: int = 3000,
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
    kind = np.array(_categories(categories))[rng.permutation(np.arange(items) % categories)]
    ids = _numbered("u", np.arange(users))
    return _World.draw(rng, users, items).table(rng, ratings, "synthetic", ids, kind, scale)


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
    world = _World.draw(rng, shared + parties * own, parties * items)
    user_ids = _numbered("u", rng.permutation(shared + parties * own))
    tables = []
    for party, name in enumerate(_categories(parties)):
        rows = np.concatenate([np.arange(shared), shared + party * own + np.arange(own)])
        there = slice(party * items, (party + 1) * items)
        tastes = world.activity[rows], world.taste[rows], world.genre[there]
        part = _World(*tastes, world.user_bias[rows], world.item_bias[there])
        tables.append(part.table(rng, ratings, name, user_ids[rows], np.full(items, name), (1, 5)))
    return tables


def write_tables(tables: Sequence[Ratings], folder: Path, *, likes: bool = False) -> list[Path]:
    """Write each generated table to a Parquet file of its name in `folder`, with `likes` without ratings; return the files."""
    files = [folder / f"{table.name}.parquet" for table in tables]
    for file, table in zip(files, tables, strict=True):
        assert table.titles is not None
        user, item, title = table.user_ids[table.user], table.item_ids[table.item], table.titles[table.item]
        texts = {"user": user.tolist(), "item": item.tolist(), "title": title.tolist()}
        rating = {} if likes else {"rating": table.rating}
        pq.write_table(pa.table(texts | rating | {"time": table.time}), file)
    return files


def _categories(count: int) -> list[str]:
    return [*CATEGORIES, *(f"category{n}" for n in range(len(CATEGORIES), count))][:count]


def _numbered(prefix: str, numbers: NDArray[np.int64]) -> StrArray:
    width = max(4, len(str(int(numbers.max()))))
    return np.strings.add(prefix, np.strings.zfill(numbers.astype(np.str_), width))


def _join(first: StrArray, *others: StrArray | str) -> StrArray:
    for other in others:
        first = np.strings.add(first, other)
    return first

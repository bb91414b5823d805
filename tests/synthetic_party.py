"""Synthetic parties of any size. The cost of a round depends on counts and tails, not on rating values."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from verfedgnn.config import Config
from verfedgnn.core.pairs import Pairs, PartyInput

SPREAD = 1.5
"""Standard deviation of the logarithm of users' activity and of items' popularity, as at Yelp."""


def made_party(name: str, users: int, items: int, ratings: int, parties: int, seed: int = 0) -> PartyInput:
    """Return one of `parties` equal parties that share the items and ratings, with Yelp's tails; 60 %
    train, 20 % validate.
    """
    rng = np.random.default_rng([seed, users, items, ratings])
    count = user_counts(rng.lognormal(0, SPREAD, users), ratings, most=max(1, items // 2))
    here = ratings // parties
    own = items // parties
    user = rng.choice(np.repeat(np.arange(users, dtype=np.int32), count), here, replace=False)
    popular = np.cumsum(rng.lognormal(0, SPREAD, own))
    item = np.searchsorted(popular, rng.random(here) * popular[-1]).clip(max=own - 1)
    pairs = rng.permutation(np.unique(user.astype(np.int64) * own + item))  # a pair drawn twice counts once
    first = int(0.6 * len(pairs))
    last = int(0.8 * len(pairs))
    train, valid = (_pairs(part, own, rng) for part in (pairs[:first], pairs[first:last]))
    return PartyInput(name, users, own, (1.0, 5.0), train, valid)


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


def _pairs(keys: NDArray[np.int64], items: int, rng: np.random.Generator) -> Pairs:
    user, item = np.divmod(keys, items)
    stars = rng.choice(np.arange(1, 6, dtype=np.float32), len(keys), p=(0.15, 0.08, 0.1, 0.21, 0.46))
    return Pairs(
        torch.from_numpy(user.astype(np.int32)),
        torch.from_numpy(item.astype(np.int32)),
        torch.from_numpy(stars),
    )


def scale_config(
    *,
    dim: int = 20,
    layers: int = 2,
    participation: float = 0.5,
    seed: int = 0,
) -> Config:
    """Return preset paper as the paper runs Yelp (App. I.3: GCN, D = 20, participation 0.5), on all
    ratings; without Phi, whose cost grows with the square of the users.
    """
    values = {
        "batch": 0,
        "epochs": 10**6,
        "evaluate_every": 10**6,
        "participation": participation,
        "exchange": 0,
        "unprotected": "projection",
    }
    return Config.preset("paper", model="gcn", seed=seed, dim=dim, layers=layers, **values)

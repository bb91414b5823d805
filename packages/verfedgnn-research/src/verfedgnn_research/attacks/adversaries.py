"""Adversarial users (Sec. 4.1): fake accounts that an attacker opens at the target party, each rating one
of its items.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from verfedgnn.core.errors import DataError
from verfedgnn.data import TRAIN, PartyData, Ratings
from verfedgnn.data.ids import StrArray


@dataclass(frozen=True)
class Planted:
    """A federation that contains adversarial users."""

    parties: list[PartyData]
    parts: list[NDArray[np.int8]]
    """`TRAIN`, `VALID` or `TEST` for each rating of each party; all adversarial ratings are in `TRAIN`."""
    target: int
    """Position of the party whose items the adversaries rate."""
    users: NDArray[np.int64]
    """Row of each adversarial user (A,)."""
    items: NDArray[np.int64]
    """Item that each adversarial user rates at the target (A,), in random order."""

    @property
    def honest(self) -> int:
        """Number of honest users; their rows come first."""
        return self.parties[0].ratings.n_users - len(self.users)

    def count(self, share: float) -> int:
        """Return how many adversaries make up p_ad = `share`. They are the first ones, so a smaller p_ad
        is a subset of a larger one.
        """
        wanted = adversaries(self.parties[self.target].ratings.n_items, share)
        if wanted > len(self.users):
            raise DataError(
                f"p_ad = {share:g} needs {wanted:,} adversarial users, but only {len(self.users):,} are planted; plant more"
            )
        return wanted


def adversaries(items: int, share: float) -> int:
    """Return p_ad times the target's items, rounded and at least one."""
    if not 0 < share <= 1:
        raise DataError(
            f"p_ad = {share:g} is not a share of the target's items; choose a value above 0 and at most 1"
        )
    return max(1, round(share * items))


def choose_items(items: int, share: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """Choose p_ad of the target's items in random order."""
    return rng.permutation(items)[: adversaries(items, share)]


def plant(
    parties: Sequence[PartyData],
    parts: Sequence[NDArray[np.int8]],
    *,
    target: int,
    items: NDArray[np.int64],
) -> Planted:
    """Return the parties with a new user for each of some items of the target (`choose_items`), who rates it with the highest rating.

    The new users are appended to every party's users, because users are aligned before training; only the
    target has their ratings.
    """
    if not 0 <= target < len(parties):
        raise DataError(f"there is no party {target}; number the target from 0 to {len(parties) - 1}")
    table = parties[target].ratings
    users = np.arange(len(items)) + table.n_users
    user_ids = np.concatenate([table.user_ids, _new_ids(table.user_ids, len(items))])
    planted = []
    planted_parts = []
    for p, (party, part) in enumerate(zip(parties, parts, strict=True)):
        ratings = replace(party.ratings, user_ids=user_ids)
        if p == target:
            ratings = _with_top_ratings(ratings, users, items)
            part = np.concatenate([part, np.full(len(items), TRAIN, np.int8)])
        planted.append(PartyData(party.name, ratings))
        planted_parts.append(part)
    return Planted(planted, planted_parts, target, users, items)


def _new_ids(known: StrArray, count: int) -> StrArray:
    """Return ids that no user has."""
    prefix = "adversary-"
    while np.strings.startswith(known, prefix).any():
        prefix = "another-" + prefix
    digits: StrArray = np.strings.zfill(np.arange(count).astype(np.str_), len(str(count)))
    return np.strings.add(prefix, digits)


def _with_top_ratings(ratings: Ratings, users: NDArray[np.int64], items: NDArray[np.int64]) -> Ratings:
    top = np.full(len(items), ratings.scale[1], np.float32)
    time = ratings.time
    return replace(
        ratings,
        user=np.concatenate([ratings.user, users.astype(np.int32)]),
        item=np.concatenate([ratings.item, items.astype(np.int32)]),
        rating=np.concatenate([ratings.rating, top]),
        time=None
        if time is None
        else np.concatenate([time, np.full(len(items), time.max(initial=0), time.dtype)]),
    )

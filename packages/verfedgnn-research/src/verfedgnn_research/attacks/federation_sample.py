"""A sample of a federation, so that attacks on large data take minutes and a few gigabytes.

Sparse recovery compares every pair of items, so its memory grows with the square of their number, and recorded rounds
grow with users and items. A sample has the most rated items of each party. Attackers have fewer items to tell apart
there, so what they reach is rather too much than too little.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from verfedgnn.data import PartyData
from verfedgnn.data.parties import place_users

Parts = NDArray[np.int8]
PARTY_USERS = 20
"""Users of each party that are always in a sample, if it has so many."""


def sample_users(
    parties: Sequence[PartyData], parts: Sequence[Parts], most: int, rng: np.random.Generator
) -> tuple[list[PartyData], list[Parts]]:
    """Return the parties and parts of a random sample of `most` users with ratings, or of all such users."""
    user_ids = parties[0].ratings.user_ids
    rated = np.unique(np.concatenate([party.ratings.user for party in parties]))
    if len(rated) == len(user_ids) <= most:
        return list(parties), list(parts)
    order = rng.permutation(rated.astype(np.int64))
    first = [order[np.isin(order, party.ratings.user)][:PARTY_USERS] for party in parties]
    wanted = dict.fromkeys(np.concatenate([*first, order]).tolist())
    chosen = np.sort(np.array(list(wanted)[:most]))
    rows = np.full(len(user_ids), -1)
    rows[chosen] = np.arange(len(chosen))
    sampled = [PartyData(party.name, place_users(party.ratings, rows, user_ids[chosen])) for party in parties]
    kept = [part[rows[party.ratings.user] >= 0] for party, part in zip(parties, parts, strict=True)]
    return sampled, kept


def sample_items(
    parties: Sequence[PartyData], parts: Sequence[Parts], most: int
) -> tuple[list[PartyData], list[Parts]]:
    """Return the parties and parts with the `most` items of each party that have most ratings."""
    sampled = []
    kept = []
    for party, part in zip(parties, parts, strict=True):
        table = party.ratings
        counts = np.bincount(table.item, minlength=table.n_items)
        chosen = np.sort(np.argsort(-counts, kind="stable")[:most])
        rows = np.full(table.n_items, -1, np.int32)
        rows[chosen] = np.arange(len(chosen))
        stay = rows[table.item] >= 0
        smaller = replace(
            table,
            user=table.user[stay],
            item=rows[table.item[stay]],
            rating=table.rating[stay],
            time=None if table.time is None else table.time[stay],
            item_ids=table.item_ids[chosen],
            titles=None if table.titles is None else table.titles[chosen],
            columns={name: column[chosen] for name, column in table.columns.items()},
        )
        sampled.append(PartyData(party.name, smaller))
        kept.append(part[stay])
    return sampled, kept

"""All parties' ratings in one place, as no federation has them: for baselines and experiments on one machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from verfedgnn.config import Config
from verfedgnn.data import PartyData, Ratings
from verfedgnn.data.ids import StrArray, find_positions
from verfedgnn.data.ratings import pool_tables
from verfedgnn.runs.prepared_data import Prepared, leave_out_twins, prepare


def pool_parties(parties: Sequence[PartyData], column: str = "party") -> Ratings:
    """Return all parties' ratings in one table, as of one organisation; the item column `column` names the party.

    Parties have their own items. If two of them use the same id, all ids get the party's name as a prefix.
    """
    ids = zip(parties, _pooled_item_ids(parties), strict=True)
    tables = [replace(party.ratings, name=party.name, item_ids=items) for party, items in ids]
    return pool_tables(tables, column, "+".join(table.name for table in tables))


def find_pooled_items(parties: Sequence[PartyData], pool: Ratings) -> list[NDArray[np.int64]]:
    """Return the rows of each party's items in `pool_parties(parties)`."""
    return [find_positions(items, pool.item_ids) for items in _pooled_item_ids(parties)]


def prepare_judged(parties: Sequence[PartyData], config: Config, device: torch.device) -> list[Prepared]:
    """Split every party's ratings as `train` does: the same withheld users, and without test cases that a twin answers."""
    prepared = prepare(parties, config, device)
    return leave_out_twins(prepared, config) if config.split.kind == "random" else prepared


def _pooled_item_ids(parties: Sequence[PartyData]) -> list[StrArray]:
    """Return the item ids of each party; with the party's name as a prefix if an id is used twice."""
    ids = [party.ratings.item_ids for party in parties]
    if len(np.unique(np.concatenate(ids))) == sum(map(len, ids)):
        return ids
    return [np.char.add(f"{party.name}: ", items) for party, items in zip(parties, ids, strict=True)]


def declare_sizes(parties: Sequence[PartyData]) -> list[PartyData]:
    """Declare scales and catalogues that are not declared yet as they are found in the ratings.

    They reveal something about single ratings, so this is for experiments on one machine only.
    """
    tables = [replace(party.ratings, scale_declared=True) for party in parties]
    sized = [
        table.with_catalogue(table.n_items if table.catalogue is None else table.catalogue)
        for table in tables
    ]
    return [PartyData(party.name, table) for party, table in zip(parties, sized, strict=True)]

"""All parties' ratings in one place, as no federation has them: for baselines and experiments on one machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from verfedgnn.config import Config
from verfedgnn.data import PartyData, Ratings
from verfedgnn.data.ids import StrArray, find_positions, sort_ids
from verfedgnn.runs.prepared_data import Prepared, leave_out_twins, prepare


def pool_parties(parties: Sequence[PartyData], column: str = "party") -> Ratings:
    """Return all parties' ratings in one table, as of one organisation; the item column `column` names the party.

    Parties have their own items. If two of them use the same id, all ids get the party's name as a prefix. Users and items are in the
    order of ids. Times, titles and item columns are kept if every table has them.
    """
    ids = zip(parties, _pooled_item_ids(parties), strict=True)
    tables = [replace(party.ratings, name=party.name, item_ids=items) for party, items in ids]
    user_ids = sort_ids(np.unique(np.concatenate([t.user_ids for t in tables])))
    all_items = np.concatenate([t.item_ids for t in tables])
    item_ids = sort_ids(all_items)
    order = find_positions(item_ids, all_items)
    times = [t.time for t in tables if t.time is not None]
    sizes = [t.catalogue for t in tables if t.catalogue is not None]
    titles = [t.titles for t in tables if t.titles is not None]
    shared = [key for key in tables[0].columns if key != column and all(key in t.columns for t in tables)]
    columns = {key: np.concatenate([t.columns[key] for t in tables])[order] for key in shared}
    columns[column] = np.repeat([t.name for t in tables], [t.n_items for t in tables])[order]
    return Ratings(
        user=np.concatenate([find_positions(t.user_ids, user_ids)[t.user] for t in tables]).astype(np.int32),
        item=np.concatenate([find_positions(t.item_ids, item_ids)[t.item] for t in tables]).astype(np.int32),
        rating=np.concatenate([t.rating for t in tables]),
        user_ids=user_ids,
        item_ids=item_ids,
        time=np.concatenate(times) if len(times) == len(tables) else None,
        titles=np.concatenate(titles)[order] if len(titles) == len(tables) else None,
        columns=columns,
        scale=(min(t.scale[0] for t in tables), max(t.scale[1] for t in tables)),
        scale_declared=all(t.scale_declared for t in tables),
        catalogue=sum(sizes) if len(sizes) == len(tables) else None,
        name="+".join(table.name for table in tables),
        notes=tuple(f"{t.name}: {note}" for t in tables for note in t.notes),
    )


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

"""Pooling of tables with different items into one."""

from collections.abc import Sequence

import numpy as np

from verfedgnn.core.errors import DataError
from verfedgnn.data.ids import find_positions, sort_ids
from verfedgnn.data.ratings import Ratings, format_count


def pool_tables(tables: Sequence[Ratings], column: str, name: str) -> Ratings:
    """Pool all ratings in one table; the item column `column` names the table that each item came from.

    Users and items are the union over all tables, in the order of ids, so tables with the same users keep
    their codes. Times, titles and item columns are kept if every table has them.
    """
    refuse_shared_items(tables)
    user_ids = tables[0].user_ids
    same = all(t.user_ids is user_ids or np.array_equal(t.user_ids, user_ids) for t in tables)
    if not same:
        user_ids = sort_ids(np.unique(np.concatenate([t.user_ids for t in tables])))
    users = [t.user if same else find_positions(t.user_ids, user_ids)[t.user] for t in tables]
    all_items = np.concatenate([t.item_ids for t in tables])
    item_ids = sort_ids(all_items)
    order = find_positions(item_ids, all_items)
    times = [t.time for t in tables if t.time is not None]
    sizes = [t.catalogue for t in tables if t.catalogue is not None]
    titles = [t.titles for t in tables if t.titles is not None]
    shared = [key for key in tables[0].columns if key != column and all(key in t.columns for t in tables)]
    return Ratings(
        user=np.concatenate(users).astype(np.int32),
        item=np.concatenate([find_positions(t.item_ids, item_ids)[t.item] for t in tables]).astype(np.int32),
        rating=np.concatenate([t.rating for t in tables]),
        user_ids=user_ids,
        item_ids=item_ids,
        time=np.concatenate(times) if len(times) == len(tables) else None,
        titles=np.concatenate(titles)[order] if len(titles) == len(tables) else None,
        columns={
            **{key: np.concatenate([t.columns[key] for t in tables])[order] for key in shared},
            column: np.repeat(np.array([t.name for t in tables]), [t.n_items for t in tables])[order],
        },
        scale=(min(t.scale[0] for t in tables), max(t.scale[1] for t in tables)),
        scale_declared=all(t.scale_declared for t in tables),
        catalogue=sum(sizes) if len(sizes) == len(tables) else None,
        name=name,
        notes=tuple(f"{t.name}: {note}" for t in tables for note in t.notes),
    )


def refuse_shared_items(tables: Sequence[Ratings]) -> None:
    """Raise `DataError` if an item is in more than one of the tables."""
    unique, count = np.unique(np.concatenate([t.item_ids for t in tables]), return_counts=True)
    if (count > 1).any():
        item = str(unique[count > 1][0])
        first, second = [t.name for t in tables if item in t.item_ids][:2]
        shared = int((count > 1).sum())
        raise DataError(
            f"item {item!r} is in both {first!r} and {second!r} ({format_count(shared, 'such item')}); an item belongs to"
            " one party. Remove it from one of them, or prefix the ids if they mean different items"
        )

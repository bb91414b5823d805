"""Drift: how far a party's ratings of today are from those of an earlier run."""

from __future__ import annotations

from typing import Any

import numpy as np

from verfedgnn.data.ids import StrArray, find_positions
from verfedgnn.data.ratings import Ratings

_VALUES = 50
"""Most distinct ratings that are counted one by one; a finer scale is divided into bins."""
_BINS = 20


def measure_drift(before: Ratings, after: Ratings) -> dict[str, Any]:
    """Return the distance of the distributions of ratings, their means, and the shares of users and items that are new.

    The distance is the total variation: the share of ratings that would have to change their value, from 0 to 1.
    """
    return {
        "rating_distance": _distance(before, after),
        "mean_rating": [float(table.rating.mean()) if len(table) else None for table in (before, after)],
        "unknown_users": _share_unknown(
            after.user_ids[np.unique(after.user)], before.user_ids[np.unique(before.user)]
        ),
        "unknown_items": _share_unknown(after.item_ids, before.item_ids),
    }


def _distance(before: Ratings, after: Ratings) -> float | None:
    if not len(before) or not len(after):
        return None
    both = np.concatenate([before.rating, after.rating])
    values, code = np.unique(both, return_inverse=True)
    if len(values) > _VALUES:
        edges = np.linspace(both.min(), both.max(), _BINS + 1)[1:-1]
        code = np.digitize(both, edges)
    size = int(code.max()) + 1
    old = np.bincount(code[: len(before)], minlength=size) / len(before)
    new = np.bincount(code[len(before) :], minlength=size) / len(after)
    return float(np.abs(old - new).sum() / 2)


def _share_unknown(now: StrArray, before: StrArray) -> float:
    return float((find_positions(now, before) < 0).mean()) if len(now) else 0.0

"""How two runs differ: configuration, data, figures on the same test ratings, and recommendations."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verfedgnn.data import Ratings
from verfedgnn.evaluation.matched_runs import MatchedParty, compare_runs, in_both_tests, match_parties
from verfedgnn.runs.run import Run

TOP = 10
"""Length of the lists whose overlap is measured."""
SAMPLE = 1000
"""Users whose lists are compared, at most."""
MOST_AFFECTED = 10
"""Users with the smallest overlap that are named."""


def difference(before: Run, after: Run, *, sample: int = SAMPLE) -> dict[str, Any]:
    """Return the differences from the earlier run to the later one.

    `sample` is the largest number of users whose recommendations are compared.
    """
    parties = match_parties(before, after)
    return {
        "configuration": compare_configurations(before, after),
        "data": compare_data(before, after, parties),
        "figures": compare_runs(before, after, parties, in_both_tests),
        "recommendations": compare_recommendations(before, after, parties, sample),
    }


def compare_configurations(before: Run, after: Run) -> list[dict[str, Any]]:
    """Return the settings that differ, with both values; None for a setting that a run does not have."""
    old, new = (_flatten(tomllib.loads(run.judged.config.to_toml())) for run in (before, after))
    names = sorted(old.keys() | new.keys())
    return [
        {"setting": name, "before": old.get(name), "after": new.get(name)}
        for name in names
        if old.get(name) != new.get(name)
    ]


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in tree.items():
        found |= (
            _flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
        )
    return found


def compare_data(before: Run, after: Run, parties: Sequence[MatchedParty]) -> dict[str, Any]:
    """Return the parties, users, items and ratings that were added and removed."""
    names = [[party.name for party in run.parties] for run in (before, after)]
    old, new = (_known_users([party.ratings for party in run.parties]) for run in (before, after))
    return {
        "parties_added": [name for name in names[1] if name not in names[0]],
        "parties_removed": [name for name in names[0] if name not in names[1]],
        "users": _changes(old, new),
        "parties": [_compare_party(before, after, party) for party in parties],
    }


def _compare_party(before: Run, after: Run, party: MatchedParty) -> dict[str, Any]:
    old = before.parties[party.before].ratings
    new = after.parties[party.after].ratings
    kept = party.earlier_rating >= 0
    changed = new.rating[kept] != old.rating[party.earlier_rating[kept]]
    ratings = {
        "before": len(old),
        "after": len(new),
        "added": len(new) - int(kept.sum()),
        "removed": len(old) - int(kept.sum()),
        "changed": int(changed.sum()),
    }
    users = _changes(_known_users([old]), _known_users([new]))
    items = _changes(set(old.item_ids.tolist()), set(new.item_ids.tolist()))
    means = [float(table.rating.mean()) if len(table) else None for table in (old, new)]
    return {
        "name": party.name,
        "ratings": ratings,
        "users": users,
        "items": items,
        "mean_rating": {"before": means[0], "after": means[1]},
    }


def _known_users(tables: Sequence[Ratings]) -> set[str]:
    """Return the ids of the users who have a rating in one of the tables."""
    return {user for table in tables for user in table.user_ids[np.unique(table.user)].tolist()}


def _changes(old: set[str], new: set[str]) -> dict[str, int]:
    return {"before": len(old), "after": len(new), "added": len(new - old), "removed": len(old - new)}


def compare_recommendations(
    before: Run, after: Run, parties: Sequence[MatchedParty], sample: int = SAMPLE
) -> dict[str, Any]:
    """Return the overlap of the ten best items, as each run would serve them, over a sample of the users of both runs."""
    table = after.parties[0].ratings
    rows = parties[0].earlier_users if parties else np.full(table.n_users, -1)
    common = np.flatnonzero(rows >= 0)
    rng = np.random.default_rng(0)
    users = np.sort(rng.choice(common, min(sample, len(common)), replace=False))
    old = _best_items(before, rows[users])
    new = _best_items(after, users)
    longest = [max(1, len(a), len(b)) for a, b in zip(old, new, strict=True)]
    overlap = np.array([len(a & b) / most for a, b, most in zip(old, new, longest, strict=True)])
    added = np.zeros(table.n_users, np.int64)
    for party in parties:
        fresh = party.earlier_rating < 0
        added += np.bincount(after.parties[party.after].ratings.user[fresh], minlength=table.n_users)
    most = np.argsort(overlap, kind="stable")[:MOST_AFFECTED]
    return {
        "top": TOP,
        "users_in_both": len(common),
        "users_compared": len(users),
        "overlap": float(overlap.mean()) if len(overlap) else None,
        "unchanged": float((overlap == 1).mean()) if len(overlap) else None,
        "most_affected": [
            {
                "user": str(table.user_ids[users[place]]),
                "overlap": float(overlap[place]),
                "ratings_added": int(added[users[place]]),
            }
            for place in most.tolist()
            if overlap[place] < 1
        ],
    }


def _best_items(run: Run, users: NDArray[np.int64]) -> list[set[tuple[str, str]]]:
    """Return the party and id of the `TOP` items that each user would be recommended, over all catalogues."""
    lists = run.recommend(run.parties[0].ratings.user_ids[users].tolist(), TOP)
    return [{(item.party, item.item) for item in found} for found in lists]

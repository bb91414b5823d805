"""Two runs side by side: configuration, data, and figures on the same test ratings.

Parties are matched by name, users and items by id, ratings by both ids. Parts of ratings are those of the judged trainings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from verfedgnn.core.metrics import rank_each
from verfedgnn.core.pairs import Pairs
from verfedgnn.core.rating_scale import upper_quarter
from verfedgnn.data import TEST, TRAIN, VALID, Ratings
from verfedgnn.data.ids import find_positions
from verfedgnn.evaluation.chance import Floats, gain
from verfedgnn.runs.run import Run

ABSENT = -1
"""Part, in the earlier run, of a rating that it did not have."""

Ints = NDArray[np.int64]
Chosen = Callable[["MatchedParty"], NDArray[np.bool_]]
"""Returns which ratings of the later run's table to judge."""
Cases = tuple[Ints, Floats, Floats]
"""User, value of the earlier and value of the later run, of each case."""


@dataclass(frozen=True)
class MatchedParty:
    """A party that takes part in both runs; rows are those of the later run unless they are called earlier."""

    name: str
    before: int
    """Number of the party in the earlier run."""
    after: int
    """Number of the party in the later run."""
    old: Ratings
    new: Ratings
    earlier_users: Ints
    """Earlier row of each user, -1 if the earlier run does not have the user."""
    earlier_items: Ints
    """Earlier row of each item, -1 if the earlier run does not have the item."""
    earlier_rating: Ints
    """Earlier row of each rating, -1 if the earlier run does not have one of that user and item."""
    earlier_part: NDArray[np.int8]
    """Part of each rating in the earlier run, `ABSENT` if it does not have it."""
    part: NDArray[np.int8]
    """Part of each rating in the later run."""

    @property
    def known(self) -> NDArray[np.bool_]:
        """Whether both runs have the user and the item of each rating, so that both can predict it."""
        return np.asarray((self.earlier_users[self.new.user] >= 0) & (self.earlier_items[self.new.item] >= 0))

    @property
    def rating(self) -> NDArray[np.float32]:
        """Value of each rating: that of the earlier run where it has one, so that a bad load cannot judge itself."""
        had = self.earlier_rating >= 0
        return np.where(had, self.old.rating[self.earlier_rating * had], self.new.rating)


def match_parties(before: Run, after: Run) -> list[MatchedParty]:
    """Match the parties of two runs."""
    earlier = {party.name: number for number, party in enumerate(before.parties)}
    ids = after.parties[0].ratings.user_ids
    users = find_positions(ids, before.parties[0].ratings.user_ids)
    users[ids == ""] = -1  # users of other parties
    found = []
    for number, party in enumerate(after.parties):
        if party.name not in earlier:
            continue
        other = earlier[party.name]
        old, new = before.parties[other].ratings, party.ratings
        items = find_positions(new.item_ids, old.item_ids)
        rows = _find_ratings(new, old, users, items)
        part = np.where(rows >= 0, before.judged.parts[other][rows], ABSENT).astype(np.int8)
        own = after.judged.parts[number]
        found.append(MatchedParty(party.name, other, number, old, new, users, items, rows, part, own))
    return found


def _find_ratings(now: Ratings, before: Ratings, users: Ints, items: Ints) -> Ints:
    """Return the earlier row of each rating of `now`, -1 if there is none."""
    if not len(before):
        return np.full(len(now), -1, np.int64)
    keys = before.user.astype(np.int64) * before.n_items + before.item
    order = np.argsort(keys)
    user, item = users[now.user], items[now.item]
    wanted = np.where((user >= 0) & (item >= 0), user * before.n_items + item, -1)
    place = np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)
    return np.where(keys[order[place]] == wanted, order[place], -1)


def difference(before: Run, after: Run) -> dict[str, Any]:
    """Return the differences from the earlier run to the later one; a setting that a run does not have is None."""
    parties = match_parties(before, after)
    old, new = (run.judged.config.values() for run in (before, after))
    return {
        "configuration": [
            {"setting": name, "before": old.get(name), "after": new.get(name)}
            for name in sorted(old.keys() | new.keys())
            if old.get(name) != new.get(name)
        ],
        "data": compare_data(before, after, parties),
        "figures": compare_runs(before, after, parties, in_both_tests),
    }


# -- data ------------------------------------------------------------------------------------------------------------


def compare_data(before: Run, after: Run, parties: Sequence[MatchedParty]) -> dict[str, Any]:
    """Return the parties, users, items and ratings that were added and removed."""
    names = [[party.name for party in run.parties] for run in (before, after)]
    users = [_known_users([party.ratings for party in run.parties]) for run in (before, after)]
    return {
        "parties_added": [name for name in names[1] if name not in names[0]],
        "parties_removed": [name for name in names[0] if name not in names[1]],
        "users": _changes(*users),
        "parties": [_compare_party(party) for party in parties],
    }


def _compare_party(party: MatchedParty) -> dict[str, Any]:
    old, new, rows = party.old, party.new, party.earlier_rating
    kept = int((rows >= 0).sum())
    changed = new.rating[rows >= 0] != old.rating[rows[rows >= 0]]
    counts = {"before": len(old), "after": len(new), "added": len(new) - kept, "removed": len(old) - kept}
    return {
        "name": party.name,
        "ratings": counts | {"changed": int(changed.sum())},
        "users": _changes(_known_users([old]), _known_users([new])),
        "items": _changes(set(old.item_ids.tolist()), set(new.item_ids.tolist())),
    }


def _known_users(tables: Sequence[Ratings]) -> set[str]:
    """Return the ids of the users who have a rating in one of the tables."""
    return {user for table in tables for user in table.user_ids[np.unique(table.user)].tolist()}


def _changes(old: set[str], new: set[str]) -> dict[str, int]:
    return {"before": len(old), "after": len(new), "added": len(new - old), "removed": len(old - new)}


# -- figures ---------------------------------------------------------------------------------------------------------


def in_both_tests(party: MatchedParty) -> NDArray[np.bool_]:
    """Choose the test ratings of both runs."""
    return np.asarray((party.part == TEST) & (party.earlier_part == TEST))


def compare_runs(
    before: Run, after: Run, parties: Sequence[MatchedParty], chosen: Chosen
) -> dict[str, dict[str, Any]]:
    """Return RMSE and NDCG@20 of two judged runs on the same test ratings, by metric: overall, by party, gain and verdict.

    Ratings whose user or item only one of the runs knows are left out. Lists rank the items that both runs have, without those
    that the user rated in the later run's training or validation part. A rating that changed since is judged with its earlier value.
    A positive gain means that the later run is better.
    """
    before, after = before.judged, after.judged
    cases = {}
    if not before.config.ranks and not after.config.ranks:
        cases["rmse"] = [_rate(before, after, party, chosen) for party in parties]
    cases["ndcg@20"] = [_rank(before.ranker, after.ranker, party, chosen) for party in parties]
    none = (np.zeros(0, np.int64), np.zeros(0), np.zeros(0))
    return {
        metric: {
            "overall": _figures(metric, *map(np.concatenate, zip(*(each or [none]), strict=True))),
            "parties": [
                {"name": party.name, **_figures(metric, *case)}
                for party, case in zip(parties, each, strict=True)
            ],
        }
        for metric, each in cases.items()
    }


def _figures(metric: str, user: Ints, before: Floats, after: Floats) -> dict[str, Any]:
    result = gain(user, before, after, metric)
    row: dict[str, Any] = {"cases": len(user), "users": len(np.unique(user)), "before": None, "after": None}
    if result is None:
        return row | {"gain": None, "better": "cannot tell"}
    sign = -1 if metric == "rmse" else 1
    row |= {"before": result.reference, "after": result.reference + sign * result.value}
    return row | {"gain": result.to_dict(), "better": result.pays}


def _rate(before: Run, after: Run, party: MatchedParty, chosen: Chosen) -> Cases:
    """Return the squared errors of both runs on the chosen ratings that both can predict."""
    rows = np.flatnonzero(chosen(party) & party.known)
    user, item = party.new.user[rows].astype(np.int64), party.new.item[rows].astype(np.int64)
    rating = party.rating[rows].astype(np.float64)

    def error(run: Run, number: int, users: Ints, items: Ints) -> Floats:
        predicted = run.models[number].predict_rows(torch.from_numpy(users), torch.from_numpy(items))
        return np.square(predicted.cpu().numpy().clip(*run.parties[number].ratings.scale) - rating)

    earlier = error(before, party.before, party.earlier_users[user], party.earlier_items[item])
    return user, earlier, error(after, party.after, user, item)


def _rank(before: Run, after: Run, party: MatchedParty, chosen: Chosen) -> Cases:
    """Return each user's NDCG@20 in both runs, among the items that both have."""
    table, rating, known = party.new, party.rating, party.known
    common = np.flatnonzero(party.earlier_items >= 0)
    column = np.full(table.n_items, -1, np.int64)
    column[common] = np.arange(len(common))

    def pairs(which: NDArray[np.bool_]) -> Pairs:
        rows = np.flatnonzero(which & known)
        columns = (table.user[rows].astype(np.int64), column[table.item[rows]], rating[rows])
        return Pairs(*map(torch.from_numpy, columns))

    wanted = pairs(chosen(party) & (rating >= upper_quarter(table.scale)))
    seen = pairs(np.isin(party.part, (TRAIN, VALID)))
    users, then = torch.from_numpy(party.earlier_users), torch.from_numpy(party.earlier_items[common])
    old, new, now = before.models[party.before], after.models[party.after], torch.from_numpy(common)
    sizes = (table.n_users, len(common))
    earlier = rank_each(lambda rows: old.score(users[rows])[:, then], *sizes, [seen], wanted)
    later = rank_each(lambda rows: new.score(rows)[:, now], *sizes, [seen], wanted)
    return later.users.numpy(), earlier.ndcg.numpy(), later.ndcg.numpy()

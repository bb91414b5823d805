"""Two runs side by side: which ratings, users and items they share, and the errors of both on the same cases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from verfedgnn.core.metrics import rank_each
from verfedgnn.core.pairs import Pairs, upper_quarter
from verfedgnn.data import TEST, TRAIN, VALID, Ratings
from verfedgnn.data.ids import find_positions
from verfedgnn.evaluation.chance import Floats, Metric, gain
from verfedgnn.runs.run import Run

ABSENT = -1
"""Part, in the earlier run, of a rating that it did not have."""

Ints = NDArray[np.int64]
Chosen = Callable[["MatchedParty"], NDArray[np.bool_]]
"""Returns which ratings of the later run's table to judge."""


@dataclass(frozen=True)
class MatchedParty:
    """A party that takes part in both runs; rows are those of the later run unless they are called earlier."""

    name: str
    before: int
    """Number of the party in the earlier run."""
    after: int
    """Number of the party in the later run."""
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
    known: NDArray[np.bool_]
    """Whether both runs have the user and the item of each rating, so that both can predict it."""
    rating: NDArray[np.float32]
    """Value of each rating: that of the earlier run where it has one, so that a bad load cannot judge itself."""


def match_parties(before: Run, after: Run) -> list[MatchedParty]:
    """Match the parties of two runs by name, their users and items by id, and their ratings by both ids.

    Parts are those of the judged trainings.
    """
    earlier = {party.name: number for number, party in enumerate(before.parties)}
    users = _find_users(after.parties[0].ratings, before.parties[0].ratings)
    found = []
    for number, party in enumerate(after.parties):
        if party.name not in earlier:
            continue
        other = earlier[party.name]
        table = party.ratings
        old = before.parties[other].ratings
        items = find_positions(table.item_ids, old.item_ids)
        rows = _find_ratings(table, old, users, items)
        part = np.where(rows >= 0, before.judged.parts[other][rows], ABSENT).astype(np.int8)
        known = (users[table.user] >= 0) & (items[table.item] >= 0)
        rating = table.rating.copy()
        rating[rows >= 0] = old.rating[rows[rows >= 0]]
        found.append(
            MatchedParty(
                party.name,
                other,
                number,
                users,
                items,
                rows,
                part,
                after.judged.parts[number],
                np.asarray(known),
                rating,
            )
        )
    return found


def _find_users(now: Ratings, before: Ratings) -> Ints:
    """Return the earlier row of each user; users of other parties, whose id is empty, are not matched."""
    rows = find_positions(now.user_ids, before.user_ids)
    rows[now.user_ids == ""] = -1
    return rows


def _find_ratings(now: Ratings, before: Ratings, users: Ints, items: Ints) -> Ints:
    """Return the earlier row of each rating of `now`, -1 if there is none."""
    if not len(before):
        return np.full(len(now), -1, np.int64)
    keys = before.user.astype(np.int64) * before.n_items + before.item
    order = np.argsort(keys)
    user = users[now.user]
    item = items[now.item]
    wanted = np.where((user >= 0) & (item >= 0), user * before.n_items + item, -1)
    place = np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)
    return np.where(keys[order[place]] == wanted, order[place], -1)


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
    found = {}
    if not before.config.ranks and not after.config.ranks:
        found["rmse"] = _compare("rmse", [_rate(before, after, party, chosen) for party in parties], parties)
    lists = [_rank(before.ranker, after.ranker, party, chosen) for party in parties]
    found["ndcg@20"] = _compare("ndcg@20", lists, parties)
    return found


Cases = tuple[Ints, Floats, Floats]
"""User, value of the earlier and value of the later run, of each case."""


def _compare(metric: Metric, cases: Sequence[Cases], parties: Sequence[MatchedParty]) -> dict[str, Any]:
    empty = (np.zeros(0, np.int64), np.zeros(0), np.zeros(0))
    together = tuple(np.concatenate(columns) for columns in zip(*(cases or [empty]), strict=True))
    return {
        "overall": _figures(metric, *together),
        "parties": [
            {"name": party.name, **_figures(metric, *case)}
            for party, case in zip(parties, cases, strict=True)
        ],
    }


def _figures(metric: Metric, user: Ints, before: Floats, after: Floats) -> dict[str, Any]:
    result = gain(user, before, after, metric)
    row: dict[str, Any] = {"cases": len(user), "users": len(np.unique(user)), "before": None, "after": None}
    if result is None:
        return row | {"gain": None, "better": "cannot tell"}
    sign = -1 if metric == "rmse" else 1
    row |= {"before": result.reference, "after": result.reference + sign * result.value}
    return row | {"gain": result.to_dict(), "better": result.pays}


def _rate(before: Run, after: Run, party: MatchedParty, chosen: Chosen) -> Cases:
    """Return the squared errors of both runs on the chosen ratings that both can predict."""
    table = after.parties[party.after].ratings
    rows = np.flatnonzero(chosen(party) & party.known)
    user = table.user[rows].astype(np.int64)
    item = table.item[rows].astype(np.int64)
    rating = party.rating[rows].astype(np.float64)

    def error(run: Run, number: int, users: Ints, items: Ints) -> Floats:
        predicted = run.models[number].predict_rows(torch.from_numpy(users), torch.from_numpy(items))
        return np.square(predicted.cpu().numpy().clip(*run.parties[number].ratings.scale) - rating)

    earlier = error(before, party.before, party.earlier_users[user], party.earlier_items[item])
    return user, earlier, error(after, party.after, user, item)


def _rank(before: Run, after: Run, party: MatchedParty, chosen: Chosen) -> Cases:
    """Return each user's NDCG@20 in both runs, among the items that both have."""
    table = after.parties[party.after].ratings
    common = np.flatnonzero(party.earlier_items >= 0)
    column = np.full(table.n_items, -1, np.int64)
    column[common] = np.arange(len(common))

    def pairs(rows: Ints) -> Pairs:
        columns = (table.user[rows].astype(np.int64), column[table.item[rows]], party.rating[rows])
        user, item, rating = (torch.from_numpy(values) for values in columns)
        return Pairs(user, item, rating)

    liked = party.rating >= upper_quarter(table.scale)
    wanted = pairs(np.flatnonzero(chosen(party) & party.known & liked))
    seen = pairs(np.flatnonzero(np.isin(party.part, (TRAIN, VALID)) & party.known))
    users = torch.from_numpy(party.earlier_users)
    old = before.models[party.before]
    new = after.models[party.after]
    then = torch.from_numpy(party.earlier_items[common])
    now = torch.from_numpy(common)
    sizes = (table.n_users, len(common))
    earlier = rank_each(lambda rows: old.score(users[rows])[:, then], *sizes, [seen], wanted)
    later = rank_each(lambda rows: new.score(rows)[:, now], *sizes, [seen], wanted)
    return later.users.numpy(), earlier.ndcg.numpy(), later.ndcg.numpy()

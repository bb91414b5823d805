"""Two runs side by side: configuration, data, and figures on the same test ratings.

Parties are matched by name, users and items by id, ratings by both ids. Parts of ratings are those of the judged trainings.

Champion and challenger: tonight's run may replace the run that is served. The judged models are compared, never those that were
trained on all ratings, on the challenger's test ratings, which neither was trained on. This holds for two runs with the same seed
and the same kind of split, since the part of a rating follows from its ids; it is checked. The challenger is also compared with the
best run that was promoted before, so that tolerated losses of single nights do not add up. Every promoted run names that run, by
metric, in its folder.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from verfedgnn.core.errors import RunError
from verfedgnn.core.files import writing
from verfedgnn.core.metrics import rank_each
from verfedgnn.core.pairs import Pairs
from verfedgnn.core.rating_scale import upper_quarter
from verfedgnn.data import TEST, TRAIN, VALID, Ratings
from verfedgnn.data.ids import StrArray, find_positions
from verfedgnn.evaluation.chance import FEWEST_USERS, Floats, format_gain, gain
from verfedgnn.evaluation.verdict import is_judged
from verfedgnn.runs.nights import BEST
from verfedgnn.runs.run import Run, write_json

ABSENT = -1
"""Part, in the earlier run, of a rating that it did not have."""

_NAMES = {"rmse": "RMSE", "ndcg@20": "NDCG@20"}

Ints = NDArray[np.int64]
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

    def tested(self, earlier: int) -> NDArray[np.bool_]:
        """Whether each rating is in the test part, and was in the part `earlier` of the earlier run."""
        return np.asarray((self.part == TEST) & (self.earlier_part == earlier))

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
        "figures": compare_runs(before, after, parties, TEST),
    }


# -- data ------------------------------------------------------------------------------------------------------------


def compare_data(before: Run, after: Run, parties: Sequence[MatchedParty]) -> dict[str, Any]:
    """Return the parties, and each party's users, items and ratings, that were added and removed."""
    names = [[party.name for party in run.parties] for run in (before, after)]
    return {
        "parties_added": [name for name in names[1] if name not in names[0]],
        "parties_removed": [name for name in names[0] if name not in names[1]],
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
        "users": _changes(*(table.user_ids[np.unique(table.user)] for table in (old, new))),
        "items": _changes(old.item_ids, new.item_ids),
    }


def _changes(before: StrArray, after: StrArray) -> dict[str, int]:
    old, new = set(before.tolist()), set(after.tolist())
    return {"before": len(old), "after": len(new), "added": len(new - old), "removed": len(old - new)}


# -- figures ---------------------------------------------------------------------------------------------------------


def compare_runs(
    before: Run, after: Run, parties: Sequence[MatchedParty], earlier: int
) -> dict[str, dict[str, Any]]:
    """Return RMSE and NDCG@20 of two judged runs on the same test ratings, by metric: overall, by party, gain and verdict.

    These ratings were in the part `earlier` of the earlier run: `TEST`, or `ABSENT` for those that came since.
    Ratings whose user or item only one of the runs knows are left out. Lists rank the items that both runs have, without those
    that the user rated in the later run's training or validation part. A rating that changed since is judged with its earlier value.
    A positive gain means that the later run is better.
    """
    before, after = before.judged, after.judged
    cases = {}
    if not before.config.ranks and not after.config.ranks:
        cases["rmse"] = [_rate(before, after, party, party.tested(earlier)) for party in parties]
    ranks = before.ranker, after.ranker
    cases["ndcg@20"] = [_rank(*ranks, party, party.tested(earlier)) for party in parties]
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


def _rate(before: Run, after: Run, party: MatchedParty, chosen: NDArray[np.bool_]) -> Cases:
    """Return the squared errors of both runs on the chosen ratings that both can predict."""
    rows = np.flatnonzero(chosen & party.known)
    user, item = party.new.user[rows].astype(np.int64), party.new.item[rows].astype(np.int64)
    rating = party.rating[rows].astype(np.float64)

    def error(run: Run, number: int, users: Ints, items: Ints) -> Floats:
        predicted = run.models[number].predict_rows(torch.from_numpy(users), torch.from_numpy(items))
        return np.square(predicted.cpu().numpy().clip(*run.parties[number].ratings.scale) - rating)

    earlier = error(before, party.before, party.earlier_users[user], party.earlier_items[item])
    return user, earlier, error(after, party.after, user, item)


def _rank(before: Run, after: Run, party: MatchedParty, chosen: NDArray[np.bool_]) -> Cases:
    """Return each user's NDCG@20 in both runs for the chosen ratings, among the items that both have."""
    table, rating, known = party.new, party.rating, party.known
    common = np.flatnonzero(party.earlier_items >= 0)
    column = np.full(table.n_items, -1, np.int64)
    column[common] = np.arange(len(common))

    def pairs(which: NDArray[np.bool_]) -> Pairs:
        rows = np.flatnonzero(which & known)
        columns = (table.user[rows].astype(np.int64), column[table.item[rows]], rating[rows])
        return Pairs(*map(torch.from_numpy, columns))

    wanted = pairs(chosen & (rating >= upper_quarter(table.scale)))
    seen = pairs(np.isin(party.part, (TRAIN, VALID)))
    users, then = torch.from_numpy(party.earlier_users), torch.from_numpy(party.earlier_items[common])
    old, new, now = before.models[party.before], after.models[party.after], torch.from_numpy(common)
    sizes = (table.n_users, len(common))
    earlier = rank_each(lambda rows: old.score(users[rows])[:, then], *sizes, [seen], wanted)
    later = rank_each(lambda rows: new.score(rows)[:, now], *sizes, [seen], wanted)
    return later.users.numpy(), earlier.ndcg.numpy(), later.ndcg.numpy()


# -- promotion -------------------------------------------------------------------------------------------------------


def judge_challenger(
    champion: Run,
    challenger: Run,
    *,
    best: Mapping[str, Run] | None = None,
    tolerance: float = 0.0,
    max_lost: float = 10.0,
) -> dict[str, Any]:
    """Return whether the challenger may replace the champion, the reasons if not, and the figures of both.

    It may not if its RMSE or NDCG@20 is worse by more than `tolerance` per cent with the whole 95 % interval, either on the
    ratings that came since the champion or on those that both runs tested, or if it lacks more than `max_lost` per cent of the
    champion's parties, users, items or ratings. The same holds for the `best` promoted run of each metric instead of the
    champion; "best_in" lists the metrics in which the challenger is not worse than that run. Raise `RunError` if the runs cannot be
    judged fairly.
    """
    parties = match_parties(champion, challenger)
    if not parties:
        raise RunError("the two runs have no party in common; give two runs of the same organisations")
    figures = _compare(champion, challenger, parties)
    data = compare_data(champion, challenger, parties)
    reasons = [
        *_find_losses(data, max_lost),
        *_find_worse(figures["new"], "on the ratings that came since", tolerance),
        *_find_worse(figures["shared"], "on the test ratings of both runs", tolerance),
    ]
    judged = [part["overall"]["users"] for each in figures.values() for part in each.values()]
    if max(judged) < FEWEST_USERS:
        raise RunError(
            f"the two runs share test ratings of {max(judged)} users, and a verdict needs {FEWEST_USERS}; "
            "collect more ratings or switch the link by hand"
        )
    best_in = []
    for metric, run in (best or {}).items():
        compared = figures
        if run is not champion:
            compared = _compare(run, challenger, match_parties(run, challenger))
            for each in compared.values():
                own = {metric: each[metric]} if metric in each else {}
                reasons += _find_worse(own, "compared with the best promoted run", tolerance)
        rows = [each[metric]["overall"] for each in compared.values() if metric in each]
        if not any(is_judged(row) and row["gain"]["value"] < 0 for row in rows):
            best_in.append(metric)
    return {
        "promoted": not reasons,
        "reasons": reasons,
        "best_in": best_in,
        "figures": figures,
        "data": data,
    }


def write_best(folder: Path, best: Mapping[str, Path]) -> None:
    """Name the best promoted runs in the folder of a run that is promoted."""
    inside = folder.resolve()
    paths = {metric: os.path.relpath(path.resolve(), inside) for metric, path in best.items()}
    with writing(folder):
        write_json(folder / BEST, paths)


def _compare(
    champion: Run, challenger: Run, parties: list[MatchedParty]
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the figures of both runs on the ratings that came since, and on those that both tested.

    Raise `RunError` if the earlier run was trained on, or chosen by, a test rating of the challenger.
    """
    leaked = sum(int(((p.part == TEST) & np.isin(p.earlier_part, (TRAIN, VALID))).sum()) for p in parties)
    if leaked:
        tests = sum(int((party.part == TEST).sum()) for party in parties)
        raise RunError(
            f"{leaked:,} of the challenger's {tests:,} test ratings were training or validation ratings of the champion, so they "
            "cannot judge it; train both with the same seed and [split]"
        )

    both = {"new": ABSENT, "shared": TEST}
    return {name: compare_runs(champion, challenger, parties, earlier) for name, earlier in both.items()}


def _find_worse(figures: Mapping[str, Any], where: str, tolerance: float) -> list[str]:
    """Return a sentence for each metric by which the challenger is worse, with the whole interval beyond the tolerance."""
    found = []
    for metric, part in figures.items():
        row = part["overall"]
        if not is_judged(row) or row["gain"]["high_percent"] >= -tolerance:
            continue
        found.append(
            f"{_NAMES[metric]} {where} is worse: {row['after']:.4f} instead of {row['before']:.4f}, "
            f"{format_gain(row)}"
        )
    return found


def _find_losses(data: Mapping[str, Any], max_lost: float) -> list[str]:
    """Return a sentence for each party, and each party's users, items or ratings, of which too many are gone."""
    found = [f"party '{name}' is gone" for name in data["parties_removed"]]
    for party in data["parties"]:
        for what in ("users", "items", "ratings"):
            change = party[what]
            lost = 100 * change["removed"] / max(1, change["before"])
            if lost > max_lost:
                found.append(
                    f"{lost:.0f} % of the {what} of party '{party['name']}' are gone ({change['removed']:,} of {change['before']:,})"
                )
    return found

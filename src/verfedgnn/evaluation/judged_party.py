"""The errors of one party's models on its test cases, and the tables of lift made from them.

The three models of a party are called ways: simple, alone and federated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from verfedgnn.core.list_metrics import rank_each
from verfedgnn.evaluation.bootstrap import Floats, Metric, gain, measure
from verfedgnn.evaluation.chance import p_value
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.prepared_data import Prepared
from verfedgnn.training.simple_models import liked

WAYS = ("simple", "alone", "federated")
"""simple: user and item means, or popularity; alone: the best mixture a party has without the federation; federated: what it serves (newcomers: what a
second training without their ratings would serve)."""
WITHOUT_JOINING = ("alone", "simple")
"""The ways that a party has without joining. The gain of a row is over the better of them."""
BANDS = ((0, 0), (1, 2), (3, 5), (6, 10), (11, 20), (21, 50), (51, None))
"""Ranges of a known customer's number of training ratings at the party, by which lift is broken down."""
BANDS_ELSEWHERE = ((1, 5), (6, 20), (21, None))
"""Ranges of a newcomer's number of training ratings at other parties; there are few newcomers, so the ranges are wide."""

Choice = Callable[["JudgedParty"], NDArray[np.bool_]]
"""Returns which cases of a party to include."""


@dataclass(frozen=True)
class Elsewhere:
    """What the other parties know about each user of a party, in their training parts."""

    parties: NDArray[np.int64]
    """Number of other parties at which a user has ratings (N,)."""
    ratings: NDArray[np.int64]
    """Number of ratings of a user at other parties (N,)."""


@dataclass(frozen=True)
class JudgedParty:
    """Test cases of one party with the result of each way: ratings (squared error), or users who want items (NDCG@20)."""

    name: str
    metric: Metric
    user: NDArray[np.int64]
    """Row of the user of each case."""
    values: dict[str, Floats]
    """Squared error or NDCG@20 of each case, by way."""
    extra: dict[str, dict[str, Floats]]
    """Recall@20 and HitRate@20 of each case, by way; empty for ratings."""
    own_ratings: NDArray[np.int64]
    """Number of training ratings of the case's user at the party."""
    other_parties: NDArray[np.int64]
    """Number of other parties at which the case's user has training ratings."""
    other_ratings: NDArray[np.int64]
    """Number of training ratings of the case's user at other parties."""

    @property
    def newcomers(self) -> NDArray[np.bool_]:
        """Whether the user of each case is new to this party and known to another."""
        return np.asarray((self.own_ratings == 0) & (self.other_parties > 0))


def count_ratings(party: Prepared) -> NDArray[np.int64]:
    """Return the number of training ratings of each user at a party (N,)."""
    counts = torch.bincount(party.train.user.long(), minlength=party.party.ratings.n_users)
    return counts.cpu().numpy().astype(np.int64)


def count_elsewhere(prepared: Sequence[Prepared]) -> list[Elsewhere]:
    """Return, for each party, what the others know about each user."""
    counts = [count_ratings(party) for party in prepared]
    present = [(each > 0).astype(np.int64) for each in counts]
    return [
        Elsewhere(sum(present) - here, sum(counts) - own) for here, own in zip(present, counts, strict=True)
    ]


def judge_party(
    party: Prepared, models: Mapping[str, PartyModel], elsewhere: Elsewhere, *, ranks: bool
) -> JudgedParty:
    """Evaluate a party's models, given by way, on its test part; `elsewhere` counts each user's ratings at other parties."""
    counts = count_ratings(party)
    values: dict[str, Floats] = {}
    extra: dict[str, dict[str, Floats]] = {}
    if ranks:
        data = party.input
        wanted = liked(party.test, data.scale)
        user = np.zeros(0, np.int64)
        for way, model in models.items():
            found = rank_each(model.score, data.users, data.items, [party.train, party.valid], wanted)
            user = found.users.cpu().numpy()
            values[way] = found.ndcg.cpu().numpy()
            extra[way] = {"recall@20": found.recall.cpu().numpy(), "hitrate@20": found.hit.cpu().numpy()}
    else:
        user = party.test.user.cpu().numpy().astype(np.int64)
        rating = party.test.rating.double().cpu().numpy()
        for way, model in models.items():
            predicted = model.predict(party.test).cpu().numpy().clip(*party.party.ratings.scale)
            values[way] = np.square(predicted - rating)
    return JudgedParty(
        party.party.name,
        "ndcg@20" if ranks else "rmse",
        user,
        values,
        extra,
        counts[user],
        elsewhere.parties[user],
        elsewhere.ratings[user],
    )


def lift_row(judged: Sequence[JudgedParty], chosen: Choice | None = None) -> dict[str, Any]:
    """Return one row of a lift table: the result of each way over the chosen cases, the gain and the verdict.

    The gain is over the better of the two ways that a party has without joining, on the same cases; `reference` names it.
    """
    picked = [np.ones(len(each.user), bool) if chosen is None else chosen(each) for each in judged]

    def collect(values: Callable[[JudgedParty], NDArray[Any]]) -> NDArray[Any]:
        return np.concatenate([values(each)[which] for each, which in zip(judged, picked, strict=True)])

    metric = judged[0].metric
    user = collect(lambda each: each.user)
    ways = [way for way in WAYS if all(way in each.values for each in judged)]
    by_way = {way: collect(lambda each, way=way: each.values[way]) for way in ways}  # type: ignore[misc]
    row: dict[str, Any] = {"cases": len(user), "users": len(np.unique(user))}
    row |= {way: _figure(values, metric) for way, values in by_way.items()}
    for name in ("recall@20", "hitrate@20"):
        if all(each.extra for each in judged):
            row[name] = {
                way: _mean(collect(lambda each, way=way, name=name: each.extra[way][name]))  # type: ignore[misc]
                for way in ways
            }
    if not len(user):
        return row | {"reference": None, "gain": None, "pays": "cannot tell"}
    better = min if metric == "rmse" else max
    reference = better(WITHOUT_JOINING, key=lambda way: row[way])
    found = gain(user, by_way[reference], by_way["federated"], metric)
    assert found is not None
    chance = {"p": p_value(found.value, found.error, max(1, found.users - 1))}
    return row | {"reference": reference, "gain": found.to_dict() | chance, "pays": found.pays}


def lift_by_party(judged: Sequence[JudgedParty]) -> dict[str, Any]:
    """Return the lift of all parties together and of each party."""
    return {
        "metric": judged[0].metric,
        "overall": lift_row(judged),
        "parties": [{"name": each.name, **lift_row([each])} for each in judged],
    }


def lift_tables(judged: Sequence[JudgedParty], *, newcomers: bool = False) -> dict[str, Any]:
    """Return the lift tables by party and by groups of customers.

    Groups are by ratings at the party, or at other parties for `newcomers`, and by number of other parties. They are there for all
    parties together and, in the row of a party, for that party. A single group would repeat the row of all its customers, and is
    left out: the same customers are judged once.
    """
    tables = lift_by_party(judged) | _by_group(judged, newcomers)
    for row, each in zip(tables["parties"], judged, strict=True):
        row |= _by_group([each], newcomers)
    return tables


def _by_group(judged: Sequence[JudgedParty], newcomers: bool) -> dict[str, Any]:
    groups = {"by_other_parties": _by_other_parties(judged)}
    if newcomers:
        groups["by_other_ratings"] = _by_ratings(judged, BANDS_ELSEWHERE, lambda each: each.other_ratings)
    else:
        groups["by_own_ratings"] = _by_ratings(judged, BANDS, lambda each: each.own_ratings)
    return {name: rows if len(rows) > 1 else [] for name, rows in groups.items()}


def _by_ratings(
    judged: Sequence[JudgedParty],
    bands: Sequence[tuple[int, int | None]],
    count: Callable[[JudgedParty], NDArray[np.int64]],
) -> list[dict[str, Any]]:
    rows = []
    for low, high in bands:
        most = np.iinfo(np.int64).max if high is None else high

        def inside(each: JudgedParty, low: int = low, most: int = int(most)) -> NDArray[np.bool_]:
            return np.asarray((count(each) >= low) & (count(each) <= most))

        if any(inside(each).any() for each in judged):
            rows.append({"from": low, "to": high, **lift_row(judged, inside)})
    return rows


def _by_other_parties(judged: Sequence[JudgedParty]) -> list[dict[str, Any]]:
    numbers = np.unique(np.concatenate([each.other_parties for each in judged]))
    return [
        {
            "other_parties": int(number),
            **lift_row(judged, lambda each, number=number: each.other_parties == number),  # type: ignore[misc]
        }
        for number in numbers
    ]


def _figure(values: Floats, metric: Metric) -> float | None:
    if not len(values):
        return None
    return float(measure(values.sum(keepdims=True), np.array([float(len(values))]), metric)[0])


def _mean(values: Floats) -> float | None:
    return float(values.mean()) if len(values) else None

"""Lift: what joining gains a party, in lists and in ratings, for customers whom it knows and for new ones.

A party computes all of it at home, from its own test part and from the models that it holds. So a party of a federation and `train`
on one machine give the same figures.

- *Known* customers have a training rating at the party. *New* ones are withheld: nothing of them is in the party's training part.
- The ways to serve are `simple` (the party's means, or popularity), `means` (own models and means shared with the others, for ratings), `alone` (the
  best mixture without the others) and `federated` (what is served). The gain is over the better of `simple` and `alone`.
- Ratings are judged by RMSE, lists by HitRate@20: the share of customers who find something they like among the first 20.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from verfedgnn.core.files import replacing
from verfedgnn.core.metrics import rank_each, score_unseen
from verfedgnn.core.pairs import Pairs
from verfedgnn.core.rating_scale import upper_quarter
from verfedgnn.evaluation.chance import Floats, gain, holm, measure
from verfedgnn.evaluation.verdict import choose_word, describe_lift, is_judged, judged_tables
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.prepared_data import Prepared
from verfedgnn.runs.run import Run
from verfedgnn.runs.run_folder import check_outside

WAYS = ("simple", "means", "alone", "federated")
WITHOUT_JOINING = ("alone", "simple")
"""The ways that a party has without joining."""
BANDS = ((1, 2), (3, 5), (6, 10), (11, 20), (21, 50), (51, None))
"""Ranges of a known customer's number of training ratings at the party, by which lift is broken down."""

Row = dict[str, Any]
Ways = Mapping[str, PartyModel]


@dataclass(frozen=True)
class Cases:
    """Test cases of one party: ratings with a squared error, or customers with a list."""

    user: NDArray[np.int64]
    """Row of the customer of each case."""
    values: dict[str, dict[str, Floats]]
    """Figure of each case, by metric and way. The first metric gives the verdict."""
    ratings: NDArray[np.int64]
    """Training ratings of the case's customer at the party."""

    def take(self, chosen: NDArray[np.bool_]) -> Cases:
        """Return the chosen cases."""
        values = {
            name: {way: each[chosen] for way, each in ways.items()} for name, ways in self.values.items()
        }
        return Cases(self.user[chosen], values, self.ratings[chosen])


def measure_lift(prepared: Sequence[Prepared], trainings: Sequence[tuple[bool, Sequence[Ways]]]) -> Row:
    """Return the `lift` part of metrics.json.

    `trainings` holds, for ratings and for lists, whether the models order lists, and the models of each party by way. Ratings come
    first in the result, and lists in its part `lists`; without ratings, it has only lists.
    """
    lift: Row = {}
    names = [party.party.name for party in prepared]
    for ranks, ways in trainings:
        known, new = (
            _make_table(
                names,
                [
                    judge(party, models, ranks=ranks, new=new)
                    for party, models in zip(prepared, ways, strict=True)
                ],
            )
            for new in (False, True)
        )
        known["newcomers"] = new
        lift |= {"lists": known} if ranks else known
    decide(lift)
    return lift | describe_lift(lift)


def judge(party: Prepared, ways: Ways, *, ranks: bool, new: bool) -> Cases:
    """Evaluate a party's models, given by way, on the test cases of known or of new customers."""
    data = party.input
    counts = torch.bincount(party.train.user.long(), minlength=data.users)
    pairs = party.newcomers if new else party.test.take(counts[party.test.user.long()] > 0)
    user = pairs.user
    if ranks:
        wanted = pairs.take(pairs.rating >= upper_quarter(data.scale))
        user = torch.unique(wanted.user)
        sizes = data.users, data.items
        ranked = {
            way: rank_each(model.score, *sizes, [party.train, party.valid], wanted)
            for way, model in ways.items()
        }
        values = {
            f"{name}@20": {way: getattr(each, figure).cpu().numpy() for way, each in ranked.items()}
            for name, figure in (("hitrate", "hit"), ("ndcg", "ndcg"), ("recall", "recall"))
        }
    else:
        errors = {
            way: model.predict(pairs).clamp(*data.scale) - pairs.rating.double()
            for way, model in ways.items()
        }
        values = {"rmse": {way: error.square().cpu().numpy() for way, error in errors.items()}}
    rows = user.cpu().numpy().astype(np.int64)
    return Cases(rows, values, counts.cpu().numpy().astype(np.int64)[rows])


def _make_table(names: Sequence[str], parties: Sequence[Cases]) -> Row:
    """Return the rows of all parties together and of each party, with those of its customers by activity."""
    rows = []
    for name, cases in zip(names, parties, strict=True):
        groups = []
        for low, high in BANDS:
            chosen = (cases.ratings >= low) & (cases.ratings <= (cases.ratings if high is None else high))
            if chosen.any():
                groups.append({"from": low, "to": high, **_make_row([cases.take(chosen)])})
        whole = _make_row([cases])
        rows.append({"name": name, **whole, "by_own_ratings": groups if len(groups) > 1 else []})
    overall = _make_row(parties) if len(parties) > 1 else dict(whole)
    return {"metric": next(iter(parties[0].values)), "overall": overall, "parties": rows}


def _make_row(parties: Sequence[Cases]) -> Row:
    """Return the figure of each way over all cases, and the gain over the better of the ways without joining."""
    metric, *others = parties[0].values
    user = np.concatenate([cases.user for cases in parties])
    ways = [way for way in WAYS if all(way in cases.values[metric] for cases in parties)]
    row: Row = {"cases": len(user), "users": len(np.unique(user))}
    if not len(user):
        return row | dict.fromkeys(ways) | {"reference": None, "gain": None, "pays": "cannot tell"}

    def join(name: str, way: str) -> Floats:
        return np.concatenate([cases.values[name][way] for cases in parties])

    count = np.array([float(len(user))])
    for way in ways:
        row[way] = float(measure(join(metric, way).sum(keepdims=True), count, metric)[0])
    for name in others:
        row[name] = {way: float(join(name, way).mean()) for way in ways}
    better = min if metric == "rmse" else max
    reference = better(WITHOUT_JOINING, key=lambda way: row[way])
    gained = gain(user, join(metric, reference), join(metric, "federated"), metric)
    assert gained is not None
    return row | {"reference": reference, "gain": gained.to_dict(), "pays": gained.pays}


def decide(lift: Row) -> None:
    """Set the word `pays` in every row of a lift.

    The rows of a party are corrected together, and so are those of all parties together. A party's groups of customers are a family
    of their own.
    """
    tables = [table for _, table in judged_tables(lift)]
    _decide([table["overall"] for table in tables])
    for place in range(len(tables[0]["parties"])):
        rows = [table["parties"][place] for table in tables]
        _decide(rows)
        _decide([group for row in rows for group in row["by_own_ratings"]])


def _decide(rows: Sequence[Row]) -> None:
    judged = [row for row in rows if is_judged(row)]
    for row, clear in zip(judged, holm([row["gain"]["p"] for row in judged]), strict=True):
        row["pays"] = choose_word(row, clear=bool(clear))


def write_predictions(run: Run, path: Path, k: int = 20) -> int:
    """Write the test ratings with the predictions of the judged models, with and without the federation, as Parquet; return their number.

    `predicted` is in stars and absent where only lists are trained; `place` is the item's place in the user's list of `k`, 0 if it is
    not in it, among the items without a training or validation rating. An item is `liked` from the upper quarter of the scale.
    Customers are known or new, as in the verdict, or unjudged: neither withheld nor with a training rating at the party.
    """
    check_outside(path)
    judged, tables = run.judged, []
    ways = {"": (judged.models, judged.ranker.models)}
    if judged.alone is not None and judged.ranker.alone is not None:
        ways["_alone"] = (judged.alone, judged.ranker.alone)
    for p, party in enumerate(judged.prepared()):
        table = party.party.ratings
        for others, pairs in (("unjudged", party.test), ("new", party.newcomers)):
            user, item, trained = (x.cpu().numpy() for x in (pairs.user, pairs.item, party.train.user))
            liked = (pairs.rating >= upper_quarter(table.scale)).cpu().numpy()
            columns = {
                "party": np.full(len(user), party.party.name),
                "customers": np.where(np.isin(user, trained), "known", others),
                "user": table.user_ids[user],
                "item": table.item_ids[item],
                "rating": pairs.rating.cpu().numpy(),
                "liked": liked,
            }
            for way, (rated, ordered) in ways.items():
                if not judged.config.ranks:
                    predicted = rated[p].predict(pairs).clamp(*table.scale)
                    columns[f"predicted{way}"] = predicted.cpu().numpy()
                columns[f"place{way}"] = _places(party, ordered[p], pairs, k)
            tables.append(pa.table({name: pa.array(list(values)) for name, values in columns.items()}))
    whole = pa.concat_tables(tables)
    with replacing(path) as file:
        pq.write_table(whole, file)
    return len(whole)


def _places(party: Prepared, model: PartyModel, pairs: Pairs, k: int) -> NDArray[np.int64]:
    """Return the place of each pair's item in the list of its user, from 1 to k; 0 if it is not in it."""
    sizes = party.party.ratings.n_users, party.party.ratings.n_items
    places = torch.zeros(len(pairs), dtype=torch.long, device=pairs.user.device)
    judged = torch.unique(pairs.user).long()
    for row_of, scores in score_unseen(model.score, judged, *sizes, [party.train, party.valid]):
        row = row_of[pairs.user.long()]
        here = torch.nonzero(row >= 0).squeeze(1)
        best = scores.topk(min(k, sizes[1]), 1).indices[row[here]]
        found = best == pairs.item[here].long().unsqueeze(1)
        places[here] = torch.where(found.any(1), found.int().argmax(1) + 1, 0)
    return places.cpu().numpy()

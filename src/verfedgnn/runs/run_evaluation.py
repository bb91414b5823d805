"""Accuracy and ranking scores of a model, per party and overall, as in metrics.json."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from verfedgnn.core.list_metrics import Score
from verfedgnn.core.metrics import RankingScores, RatingErrors, measure_errors, measure_ranking
from verfedgnn.core.rating_means import fit_means
from verfedgnn.core.rating_scale import upper_quarter
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.prepared_data import Prepared


def evaluate(
    parties: Sequence[Prepared],
    models: Sequence[PartyModel],
    k: int = 20,
    *,
    ranks: bool = False,
    lists: Sequence[PartyModel] | None = None,
) -> dict[str, Any]:
    """Return `test`, `valid`, `means`, `popularity` and `parties` of metrics.json for the parties' served models.

    Predictions are clipped to the party's scale, as in serving. `lists` are the models that order lists, by default `models`. A
    test item is wanted if its rating is in the upper quarter of the scale. Items that a user rated in the training or
    validation part are not ranked. With `ranks`, the models predict no ratings and have no RMSE. `means` has the RMSE of each
    party's own user and item means, `popularity` the quality of lists of the items with the most training ratings.
    """
    rows: list[dict[str, Any]] = []
    tests = RatingErrors.zero()
    valids = RatingErrors.zero()
    simple = RatingErrors.zero()
    rankings = RankingScores.zero()
    populars = RankingScores.zero()
    for party, model, order in zip(parties, models, lists or models, strict=True):
        scale = party.party.ratings.scale
        test = RatingErrors.zero()
        valid = RatingErrors.zero()
        means = RatingErrors.zero()
        if not ranks:
            means = _errors_of_means(party)
            test = measure_errors(model.users, model.items, party.test, scale)
            valid = measure_errors(model.users, model.items, party.valid, scale)
        found = judge_lists(party, order.score, k)
        popular = judge_lists(party, popularity_score(party), k)
        tests += test
        valids += valid
        simple += means
        rankings += found
        populars += popular
        table = party.party.ratings
        rows.append(
            {
                "name": party.party.name,
                "items": table.n_items,
                "ratings": len(table),
                "test": _figures(test, found, k),
                "valid": {"rmse": valid.rmse, "mae": valid.mae},
                "means": {"rmse": means.rmse},
                "popularity": popular.means(k),
            }
        )
    return {
        "test": _figures(tests, rankings, k),
        "valid": {"rmse": valids.rmse, "mae": valids.mae},
        "means": {"rmse": simple.rmse},
        "popularity": populars.means(k),
        "parties": rows,
    }


def rating_errors(parties: Sequence[Prepared], models: Sequence[PartyModel]) -> RatingErrors:
    """Return the errors of all parties' models on their test parts."""
    total = RatingErrors.zero()
    for party, model in zip(parties, models, strict=True):
        total += measure_errors(model.users, model.items, party.test, party.party.ratings.scale)
    return total


def judge_lists(party: Prepared, score: Score, k: int = 20) -> RankingScores:
    """Return the quality of the lists that `score` orders, on the test part of a party."""
    table = party.party.ratings
    wanted = party.test.take(party.test.rating >= upper_quarter(table.scale))
    return measure_ranking(score, table.n_users, table.n_items, [party.train, party.valid], wanted, k)


def _errors_of_means(party: Prepared) -> RatingErrors:
    """Return the errors on the test part of the means that `core.rating_means` fits; the absolute errors are not measured."""
    data = party.input
    means = fit_means(data.train, data.valid, data.users, data.items, data.scale)
    squares = means.squared_error(means.user_offset, party.test, data.scale)
    return RatingErrors(squares, 0.0, len(party.test))


def popularity_score(party: Prepared) -> Score:
    """Return a function that scores each item by its number of training ratings."""
    count = torch.bincount(party.train.item.long(), minlength=party.party.ratings.n_items).float()
    return lambda users: count.repeat(len(users), 1)


def _figures(errors: RatingErrors, found: RankingScores, k: int) -> dict[str, float | None]:
    return {"rmse": errors.rmse, "mae": errors.mae, **found.means(k)}

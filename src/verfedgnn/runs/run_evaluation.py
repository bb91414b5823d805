"""Accuracy and ranking scores of a model, per party and overall, as in metrics.json."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from verfedgnn.core.metrics import RankingScores, RatingErrors, measure_errors, measure_ranking
from verfedgnn.core.rating_scale import upper_quarter
from verfedgnn.runs.prepared_data import Prepared


def evaluate(
    parties: Sequence[Prepared], models: Sequence[tuple[Tensor, Tensor]], k: int = 20, *, ranks: bool = False
) -> dict[str, Any]:
    """Compute `test`, `valid` and `parties` of metrics.json from each party's h_u and h_v.

    A test item is wanted if its rating is in the upper quarter of the scale. Items that a user rated in the
    training and validation parts are not ranked. A model that `ranks` does not predict ratings, so it has no
    rating errors.
    """
    rows: list[dict[str, Any]] = []
    tests = RatingErrors.zero()
    valids = RatingErrors.zero()
    rankings = RankingScores.zero()
    for party, (users, items) in zip(parties, models, strict=True):
        test = valid = RatingErrors.zero()
        if not ranks:
            test = measure_errors(users, items, party.test)
            valid = measure_errors(users, items, party.valid)
        wanted = party.test.take(party.test.rating >= upper_quarter(party.party.ratings.scale))
        found = measure_ranking(users, items, [party.train, party.valid], wanted, k)
        tests = tests + test
        valids = valids + valid
        rankings = rankings + found
        table = party.party.ratings
        rows.append(
            {
                "name": party.party.name,
                "items": table.n_items,
                "ratings": len(table),
                "test": _figures(test, found, k),
                "valid": {"rmse": valid.rmse, "mae": valid.mae},
            }
        )
    return {
        "test": _figures(tests, rankings, k),
        "valid": {"rmse": valids.rmse, "mae": valids.mae},
        "parties": rows,
    }


def _figures(errors: RatingErrors, found: RankingScores, k: int) -> dict[str, float | None]:
    return {"rmse": errors.rmse, "mae": errors.mae, **found.means(k)}

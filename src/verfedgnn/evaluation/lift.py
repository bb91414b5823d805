"""Lift: what joining is worth to each party. The same model trained by each alone, together, and on pooled data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from verfedgnn.core.errors import ConfigError
from verfedgnn.data import TEST, TRAIN, VALID, PartyData, pool_parties
from verfedgnn.evaluation.bootstrap import gain
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.run import Run
from verfedgnn.training.alone import train_alone
from verfedgnn.training.progress import Progress
from verfedgnn.training.user_item_means import bias_predictions

WAYS = ("biases", "alone", "federated", "pooled")
BANDS = ((0, 0), (1, 2), (3, 5), (6, 10), (11, 20), (21, 50), (51, None))
"""Numbers of own training ratings by which lift is told apart."""

Floats = NDArray[np.float64]


def lift(
    run: Run,
    *,
    stack: bool = True,
    watch: Callable[[Progress], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """The `lift` part of metrics.json: test RMSE by `WAYS`, for each party, overall, and by number of own ratings.

    `biases` is what a party reaches alone with nothing but user and item means; the better of that and `alone` on its
    validation part is what the federation is compared with, as `gain` with a bootstrap interval. All are judged on the same
    ratings. Alone and pooled trainings have nobody to protect from, so they run without protection, for as many rounds an epoch
    as the federation; model, steps, parts and selection are the same.
    """
    if run.config.training.ranks:
        raise ConfigError(
            "lift compares errors of ratings, and a ranking predicts none; use training.objective = rating"
        )
    total = sum(len(party.ratings) for party in run.parties)
    options: dict[str, Any] = {"stack": stack, "watch": watch, "stop": stop}
    pool = PartyData("pooled", pool_parties(run.parties))
    pooled = train_alone(
        pool, np.concatenate(run.parts), run.config, 1.0, run.device, label="pooled", **options
    )
    together = _predicted(pooled, pool)  # in the order of the parties
    judged, start = [], 0
    for p, (data, parts) in enumerate(zip(run.parties, run.parts, strict=True)):
        if run.alone is not None:
            alone = run.alone[p]
        else:
            alone = train_alone(data, parts, run.config, len(data.ratings) / total, run.device, **options)
        predicted = {"alone": _predicted(alone, data), "federated": _predicted(run.models[p], data)}
        judged.append(_Judged(data, parts, predicted | {"pooled": together[start : start + len(parts)]}))
        start += len(parts)
    return {
        "overall": _row(judged),
        "parties": [{"name": each.data.name, **_row([each])} for each in judged],
        "by_own_ratings": _by_own_ratings(judged),
    }


class _Judged:
    """Squared errors of one party's ratings, by way."""

    def __init__(self, data: PartyData, parts: NDArray[np.int8], predicted: dict[str, Floats]) -> None:
        self.data = data
        table = data.ratings
        predicted = predicted | {"biases": bias_predictions(table, parts)}
        squared = {name: np.square(values - table.rating) for name, values in predicted.items()}
        valid, test = parts == VALID, parts == TEST
        best = min(("alone", "biases"), key=lambda way: squared[way][valid].sum())
        self.reference = squared[best][test]
        """Of what the party would serve without a federation."""
        self.squared = {way: squared[way][test] for way in WAYS}
        self.user = table.user[test].astype(np.int64)
        trained = np.bincount(table.user[parts == TRAIN], minlength=table.n_users)
        self.own_ratings = trained[table.user[test]]


def _predicted(model: PartyModel, data: PartyData) -> Floats:
    user = torch.from_numpy(data.ratings.user).to(model.users.device)
    item = torch.from_numpy(data.ratings.item).to(model.users.device)
    return np.asarray(model.predict_rows(user, item).cpu().numpy(), np.float64)


def _row(
    judged: Sequence[_Judged], chosen: Callable[[_Judged], NDArray[np.bool_]] | None = None
) -> dict[str, Any]:
    """RMSE of each way over the chosen test ratings, and the gain over what each party would serve without a federation."""

    def all_of(values: Callable[[_Judged], NDArray[Any]]) -> NDArray[Any]:
        return np.concatenate(
            [values(each) if chosen is None else values(each)[chosen(each)] for each in judged]
        )

    row: dict[str, Any] = {way: _rmse(all_of(lambda each, way=way: each.squared[way])) for way in WAYS}  # type: ignore[misc]
    found = gain(
        all_of(lambda each: each.user),
        all_of(lambda each: each.reference),
        all_of(lambda each: each.squared["federated"]),
    )
    if found is None:
        return row | {"gain": None, "pays": "cannot tell"}
    return row | {"gain": {"rmse": found.value, "low": found.low, "high": found.high}, "pays": found.pays}


def _rmse(squared: Floats) -> float | None:
    return float(np.sqrt(squared.mean())) if len(squared) else None


def _by_own_ratings(judged: Sequence[_Judged]) -> list[dict[str, Any]]:
    """Test ratings told apart by how many training ratings their user has at the same party."""
    rows = []
    for low, high in BANDS:

        def inside(each: _Judged, low: int = low, high: int | None = high) -> NDArray[np.bool_]:
            return np.asarray(
                (each.own_ratings >= low) & (each.own_ratings <= (np.inf if high is None else high))
            )

        count = int(sum(inside(each).sum() for each in judged))
        if count:
            rows.append({"from": low, "to": high, "ratings": count, **_row(judged, inside)})
    return rows

"""Lift: what joining is worth to each party. The same model trained by each alone, together, and on pooled data."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from verfedgnn.config import Config
from verfedgnn.data import TEST, PartyData, pool_parties
from verfedgnn.evaluation.bias import bias_errors
from verfedgnn.evaluation.metrics import Errors, rating_errors
from verfedgnn.prepare import Prepared
from verfedgnn.protocol.loss import Pairs
from verfedgnn.run import Run
from verfedgnn.training import train


def lift(
    run: Run,
    *,
    stack: bool = True,
    watch: Callable[[str, int, int], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """The `lift` part of metrics.json: test RMSE alone, federated and pooled, for each party and overall.

    `biases` is what each party reaches alone with nothing but user and item means.

    All are judged on the same ratings. Alone and pooled trainings have nobody to protect from, so they run without
    protection, for as many rounds an epoch as the federation; model, steps, parts and selection are the same.
    """
    prepared = run.prepared()
    total = sum(len(party.ratings) for party in run.parties)

    def solo(data: PartyData, parts: NDArray[np.int8], label: str) -> Run:
        return train(
            [data],
            solo_config(run.config, len(data.ratings) / total),
            device=run.device,
            stack=stack,
            parts=[parts],
            watch=None if watch is None else lambda p: watch(label, p.round, p.rounds),
            stop=stop,
        )

    all_parts = np.concatenate([party.parts for party in prepared])
    pooled = solo(PartyData("pooled", pool_parties(run.parties)), all_parts, "pooled")
    pooled_errors = _by_party(pooled, all_parts, prepared)
    sums, rows = [Errors.none()] * 4, []
    for party, model, together in zip(prepared, run.models, pooled_errors, strict=True):
        own = solo(_with_ratings(party.party), party.parts, f"{party.party.name} alone")
        errors = [
            bias_errors(party.party.ratings, party.parts),
            _errors(own, party.parts == TEST),
            rating_errors(model.users, model.items, party.test),
            together,
        ]
        rows.append({"name": party.party.name, **_row(errors)})
        sums = [whole + part for whole, part in zip(sums, errors, strict=True)]
    return {"overall": _row(sums), "parties": rows}


def solo_config(config: Config, share: float) -> Config:
    """The configuration of a training without others: nothing exchanged, nothing protected, batches in proportion."""
    batch = config.training.batch
    return config.with_values(
        {
            "masking": False,
            "exchange.mode": "none",
            "exchange.backward": False,
            "exchange.noise": 0.0,
            "exchange.row_clip": None,
            "gradients.mechanism": "none",
            "gradients.clip": None,
            "training.participation": 1.0,
            "training.batch": math.ceil(batch * share) if batch else 0,
        }
    )


def _with_ratings(data: PartyData) -> PartyData:
    """A party alone knows only the users that rated something there."""
    return PartyData(data.name, data.ratings.select_users(np.unique(data.ratings.user)))


def _by_party(pooled: Run, parts: NDArray[np.int8], parties: list[Prepared]) -> list[Errors]:
    """Errors of the pooled model on each party's test part; pooled ratings stand in the order of the parties."""
    ends = np.cumsum([len(party.parts) for party in parties])
    row = np.arange(len(parts))
    return [
        _errors(pooled, (parts == TEST) & (row >= end - len(party.parts)) & (row < end))
        for party, end in zip(parties, ends, strict=True)
    ]


def _errors(run: Run, chosen: NDArray[np.bool_]) -> Errors:
    """Errors of a one-party run on the chosen ratings of its table."""
    table, model = run.parties[0].ratings, run.models[0]
    user, item = (torch.from_numpy(rows[chosen]).to(run.device) for rows in (table.user, table.item))
    rating = torch.from_numpy(table.rating[chosen]).to(run.device)
    return rating_errors(model.users, model.items, Pairs(user, item, rating))


def _row(errors: list[Errors]) -> dict[str, float | None]:
    return dict(zip(("biases", "alone", "federated", "pooled"), (e.rmse for e in errors), strict=True))

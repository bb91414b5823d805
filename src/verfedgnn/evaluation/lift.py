"""Lift: what joining is worth to each party. The same model trained by each alone, together, and on pooled data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from verfedgnn.config import Config
from verfedgnn.data import PartyData, pool_parties
from verfedgnn.evaluation.metrics import Errors, rating_errors
from verfedgnn.run import Run
from verfedgnn.training import train


def lift(run: Run, *, stack: bool = True, watch: Callable[[str, int, int], None] | None = None) -> dict[str, Any]:
    """The `lift` part of metrics.json: test RMSE alone, federated and pooled, for each party and overall.

    Alone and pooled trainings have nobody to protect from, so they run without protection, for as many rounds an epoch as
    the federation; model, steps, split and selection are the same.
    """
    total = sum(len(party.ratings) for party in run.parties)

    def solo(data: PartyData, label: str) -> Run:
        return train(
            [_with_ratings(data)],
            solo_config(run.config, len(data.ratings) / total),
            device=run.device,
            stack=stack,
            watch=None if watch is None else lambda p: watch(label, p.round, p.rounds),
        )

    alone = [solo(party, f"{party.name} alone") for party in run.parties]
    pooled = solo(PartyData("pooled", pool_parties(run.parties)), "pooled")
    pooled_errors = _errors_by_column(pooled, "party")
    federated = [
        rating_errors(model.users, model.items, prepared.test) for model, prepared in zip(run.models, run.prepared(), strict=True)
    ]
    total_errors = [Errors.none()] * 3
    rows = []
    for party, own, together in zip(run.parties, alone, federated, strict=True):
        errors = [rating_errors(own.models[0].users, own.models[0].items, own.prepared()[0].test)]
        errors += [together, pooled_errors[party.name]]
        rows.append({"name": party.name, **_row(*errors)})
        total_errors = [whole + part for whole, part in zip(total_errors, errors, strict=True)]
    return {"overall": _row(*total_errors), "parties": rows}


def solo_config(config: Config, share: float) -> Config:
    """The configuration of a training without others: nothing exchanged, nothing protected, batches in proportion."""
    batch = config.training.batch
    return config.with_values(
        {
            "exchange.mode": "none",
            "gradients.mechanism": "none",
            "gradients.clip": None,
            "training.participation": 1.0,
            "training.batch": math.ceil(batch * share) if batch else 0,
        }
    )


def _with_ratings(data: PartyData) -> PartyData:
    """A party alone knows only the users that rated something there."""
    return PartyData(data.name, data.ratings.select_users(np.unique(data.ratings.user)))


def _errors_by_column(run: Run, column: str) -> dict[str, Errors]:
    prepared, model = run.prepared()[0], run.models[0]
    owner = run.parties[0].ratings.columns[column]
    names: Sequence[str] = sorted(set(owner.tolist()))
    rows = {}
    for name in names:
        chosen = owner[prepared.test.item.cpu().numpy()] == name
        rows[name] = rating_errors(model.users, model.items, prepared.test.take(torch.from_numpy(chosen).to(run.device)))
    return rows


def _row(alone: Errors, federated: Errors, pooled: Errors) -> dict[str, float]:
    return {"alone": alone.rmse, "federated": federated.rmse, "pooled": pooled.rmse}

"""The coordinator's attacks on gradients of user embeddings (`verfedgnn attack --as coordinator`).

The coordinator tries to learn who has ratings at which party. An AUC of 1/2 is a coin toss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.data import PartyData
from verfedgnn.research.attacks.curious_coordinator import read_trip
from verfedgnn.research.attacks.many_releases import ReleaseAverage, cosines
from verfedgnn.research.attacks.recording import TOGETHER, RecordedFederation, record_federation
from verfedgnn.research.attacks.separation import rank_correlation, separate

SINGLE_ROUNDS = 20
"""Number of rounds that are also read one by one."""


def attack_gradients(
    parties: Sequence[PartyData],
    config: Config,
    *,
    rounds: int,
    at: Sequence[int] = (1, 10, 100),
    seed: int = 0,
    watch: Callable[[int, int], None] = lambda round, rounds: None,
) -> dict[str, Any]:
    """Record `rounds` of a training and return what the coordinator reads in user gradients.

    `batch` holds means over single rounds: how well a row tells whether a user has ratings in a party's batch. `rounds` holds,
    for the mean over the first `at` rounds, means over parties:

    - `any`: AUC for any training rating at the party. `guess`: AUC of a user's number of ratings at all parties together,
      which masked sums tend to show because active users have ratings everywhere.
    - `degree`: rank correlation with the number of ratings at the party.
    - `cosine`: between the mean release and the mean gradient of the same sender, over users with ratings.
    """
    generator = torch.Generator().manual_seed(seed)
    federation = record_federation(parties, config.with_values({"training.user_blocks": 1}))
    averages: dict[str, ReleaseAverage] = {}
    true: list[Tensor] = []
    single: list[dict[str, float]] = []
    found: dict[str, Any] = {}
    counts = [
        torch.bincount(p.train.user.long(), minlength=p.party.ratings.n_users) for p in federation.prepared
    ]
    for number in range(1, rounds + 1):
        trip = federation.round()
        for name, rows in federation.sent_gradients(trip).items():
            averages.setdefault(name, ReleaseAverage()).add(rows)
        gradients = [federation.of_users(party.gradient).double() for party in federation.parties]
        true = [a + b for a, b in zip(true, gradients, strict=True)] if true else gradients
        if number <= SINGLE_ROUNDS:
            for each in read_trip(federation, trip, generator).values():
                single.append({"auc": each.separation.auc, "proven": each.proven, "false": each.false})
        if number in at or number == rounds:
            found[str(number)] = _judge_averages(federation, averages, true, counts, generator)
        watch(number, rounds)
    batch = {key: _rounded(np.mean([each[key] for each in single])) for key in single[0]} if single else None
    return {"batch": batch, "rounds": found}


def _judge_averages(
    federation: RecordedFederation,
    averages: dict[str, ReleaseAverage],
    true: list[Tensor],
    counts: list[Tensor],
    generator: torch.Generator,
) -> dict[str, float]:
    """Return the figures of the mean release so far, as means over parties."""
    figures: dict[str, list[float]] = {
        "any": [],
        "guess": [],
        "degree": [],
        "proven": [],
        "false": [],
        "cosine": [],
    }
    overall = torch.stack(counts).sum(0)
    if TOGETHER in averages:
        true = [torch.stack(true).sum(0)] * len(true)
    for party, gradient, count in zip(federation.parties, true, counts, strict=True):
        average = averages.get(party.data.name, averages.get(TOGETHER))
        assert average is not None
        rated = count > 0
        if bool(rated.all()):
            continue
        figures["any"].append(separate(average.activity, rated, generator).auc)
        figures["guess"].append(separate(overall, rated, generator).auc)
        figures["degree"].append(rank_correlation(average.activity, count))
        figures["proven"].append(float(average.proven[rated].double().mean()))
        figures["false"].append(float(average.proven[~rated].double().mean()))
        figures["cosine"].append(float(cosines(average.mean, gradient)[rated].mean()))
    return {name: _rounded(np.mean(values)) for name, values in figures.items() if values}


def _rounded(value: float | np.floating[Any] | NDArray[Any]) -> float:
    return round(float(value), 6)

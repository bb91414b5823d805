"""The coordinator's attacks on gradients of user embeddings (`verfedgnn attack --as coordinator`).

The coordinator tries to learn who has ratings at which party. An AUC of 1/2 is a coin toss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.data import PartyData
from verfedgnn_research.attacks.many_releases import ReleaseAverage
from verfedgnn_research.attacks.recording import TOGETHER, RecordedFederation, record_federation
from verfedgnn_research.attacks.separation import rank_correlation, separate


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

    `rounds` holds, for the mean over the first `at` rounds, means over parties:

    - `any`: AUC for any training rating at the party. `guess`: AUC of a user's number of ratings at all parties together,
      which masked sums tend to show because active users have ratings everywhere.
    - `degree`: rank correlation with the number of ratings at the party.
    """
    generator = torch.Generator().manual_seed(seed)
    federation = record_federation(parties, config)
    averages: dict[str, ReleaseAverage] = {}
    found: dict[str, Any] = {}
    counts = [
        torch.bincount(p.train.user.long(), minlength=p.party.ratings.n_users) for p in federation.prepared
    ]
    for number in range(1, rounds + 1):
        for name, rows in federation.sent_gradients(federation.round()).items():
            averages.setdefault(name, ReleaseAverage()).add(rows)
        if number in at or number == rounds:
            found[str(number)] = _judge_averages(federation, averages, counts, generator)
        watch(number, rounds)
    return {"rounds": found}


def _judge_averages(
    federation: RecordedFederation,
    averages: dict[str, ReleaseAverage],
    counts: list[Tensor],
    generator: torch.Generator,
) -> dict[str, float]:
    """Return the figures of the mean release so far, as means over parties."""
    figures: dict[str, list[float]] = {"any": [], "guess": [], "degree": [], "proven": [], "false": []}
    overall = torch.stack(counts).sum(0)
    for party, count in zip(federation.parties, counts, strict=True):
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
    return {name: round(float(np.mean(values)), 6) for name, values in figures.items() if values}

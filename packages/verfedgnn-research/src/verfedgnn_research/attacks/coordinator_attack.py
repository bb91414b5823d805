r"""The coordinator's attacks on gradients of user embeddings (`verfedgnn attack --as coordinator`).

The coordinator tries to learn who has ratings at which party. An AUC of 1/2 is a coin toss.

Gradients: Q(x) is unbiased, so the mean of T ternary releases of one x is x with an error that falls with the
root of T,

.. math::
    E \left| \tfrac1T \sum_t Q_t(x) - x \right|^2 = \frac{1}{T} \sum_i \left( r |x_i| - x_i^2 \right),

and the mean of |Q| is |x|: the frequency of values other than 0 in a user's row shows how many ratings the
party has of that user. Who: the coordinator; without masking for each party, with masking for their sum. Needs: the releases of T
rounds. Tries to learn: whether a user has any rating at a party, and how many.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.data import PartyData
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


class ReleaseAverage:
    """Running sums over one sender's releases: gradients of user embeddings (N, D) as the coordinator
    reads them.
    """

    def __init__(self) -> None:
        self.releases = 0
        self._sum: Tensor | float = 0.0
        self._size: Tensor | float = 0.0

    def add(self, release: Tensor) -> None:
        """Accumulate one release."""
        self.releases += 1
        self._sum = self._sum + release.double()
        self._size = self._size + release.double().abs().sum(1)

    @property
    def mean(self) -> Tensor:
        """Mean release (N, D): an estimate of the mean gradient, up to the public scale."""
        return torch.as_tensor(self._sum) / max(1, self.releases)

    @property
    def activity(self) -> Tensor:
        """Mean of |release| for each user (N,); with ternary releases, how often a coordinate is not 0."""
        return torch.as_tensor(self._size) / max(1, self.releases)

    @property
    def proven(self) -> Tensor:
        """Users with anything but zeros so far (N,). A ternary release of 0 is 0, so these users have
        ratings at the sender.
        """
        return self.activity > 0

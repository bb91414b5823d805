"""Each party trained alone, which shows what staying out of the federation costs. Not in the paper."""

from __future__ import annotations

import time
from collections.abc import Sequence

from verfedgnn.config import Config
from verfedgnn.data import PartyData
from verfedgnn.runs.ledger import Ledger
from verfedgnn_research.baselines.method import Declaration, Method, MethodResult, Where
from verfedgnn_research.baselines.pooled_parties import prepare_judged
from verfedgnn_research.baselines.solo_training import solo_config, train_alone


class Alone(Method):
    """The same GNN on a party's own ratings. Nothing is exchanged, not even user embeddings.

    A party stops after ten epochs without a better validation, since there are as many trainings as parties.
    """

    name = "alone"
    title = "Each party alone"
    declares = Declaration(
        high_order=True,
        gradient_protection=True,
        cross_graph=False,
        storage="local",
        protects="everything: nothing is sent",
    )

    def configure(self, base: Config) -> Config:
        """Return settings without exchange and protection."""
        return solo_config(base, 1.0).with_values({"training.patience": 10})

    def train(self, parties: Sequence[PartyData], config: Config, where: Where) -> MethodResult:
        """Train each party separately, with as many rounds per epoch as a federation has."""
        began = time.perf_counter()
        total = sum(len(party.ratings) for party in parties)
        models = []
        for party, prepared in zip(parties, prepare_judged(parties, config, where.device), strict=True):
            share = len(party.ratings) / total
            models.append(
                train_alone(
                    party, prepared.parts, config, share, where.device, watch=where.watch, stop=where.stop
                )
            )
        return MethodResult(models, Ledger(), 0, 0, time.perf_counter() - began)

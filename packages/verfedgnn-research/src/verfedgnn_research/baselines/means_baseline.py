"""User and item means of pooled data, the least that a model must beat. Not in the paper."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from verfedgnn.config import Config
from verfedgnn.data import PartyData
from verfedgnn.runs.prepared_data import prepare, split_ratings
from verfedgnn.training.own_models import fit_party_means, means_model
from verfedgnn_research.baselines.central_gnn import CENTRAL, cut, handed_over
from verfedgnn_research.baselines.method import Declaration, Method, MethodResult, Where
from verfedgnn_research.baselines.pooled_parties import pool_parties
from verfedgnn_research.baselines.solo_training import solo_config


class Bias(Method):
    """mu + b_u + b_v in closed form, with damping chosen on the validation part
    (`core.rating_means`).
    """

    name = "bias"
    title = "User and item means"
    settings = "dampings are chosen on the validation part"
    by_gnn = False
    declares = Declaration(
        high_order=False, gradient_protection=False, cross_graph=False, storage="central", protects=CENTRAL
    )

    def configure(self, base: Config) -> Config:
        """Return `base`; only its split and seed matter."""
        return solo_config(base, 1.0)

    def train(self, parties: Sequence[PartyData], config: Config, where: Where) -> MethodResult:
        """Compute the means; there are no rounds."""
        began = time.perf_counter()
        table = pool_parties(parties)
        parts = np.concatenate([split_ratings(party, config.split, config.seed) for party in parties])
        (pool,) = prepare([PartyData("pooled", table)], config, where.device, [parts])
        means = fit_party_means(pool.input)
        models = cut(means_model(means, means.user_offset, where.device), table, parties)
        return MethodResult(models, handed_over(parties), 0, 0, time.perf_counter() - began)

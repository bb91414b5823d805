"""User and item means of pooled data, the least that a model must beat. Not in the paper."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch

from verfedgnn.config import Config
from verfedgnn.data import PartyData, pool_parties
from verfedgnn.research.baselines.central_gnn import CENTRAL, cut, handed_over
from verfedgnn.research.baselines.method import Declaration, Method, MethodResult, Where
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.prepared_data import split_ratings
from verfedgnn.training.alone import solo_config
from verfedgnn.training.user_item_means import fit_biases


class Bias(Method):
    """mu + b_u + b_v in closed form, with damping chosen on the validation part
    (`training.user_item_means`).
    """

    name = "bias"
    title = "User and item means"
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
        parts = np.concatenate([split_ratings(party.ratings, config.split, config.seed) for party in parties])
        mean, by_user, by_item = fit_biases(table, parts)
        users = (
            torch.from_numpy(np.stack([mean + by_user, np.ones_like(by_user)], 1)).float().to(where.device)
        )
        items = torch.from_numpy(np.stack([np.ones_like(by_item), by_item], 1)).float().to(where.device)
        models = cut(PartyModel(users, items, items), table, parties)
        return MethodResult(models, handed_over(parties), 0, 0, time.perf_counter() - began)

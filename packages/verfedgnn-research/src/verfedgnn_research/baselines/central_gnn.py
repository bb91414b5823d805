"""CentralGNN of the paper's Table 2, trained on pooled data, and the functions it shares with other
central methods.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from verfedgnn.config import Config
from verfedgnn.data import PartyData, Ratings
from verfedgnn.runs.ledger import Ledger
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.training.train import train
from verfedgnn_research.baselines.method import Declaration, Method, MethodResult, Where
from verfedgnn_research.baselines.pooled_parties import find_pooled_items, pool_parties, prepare_judged
from verfedgnn_research.baselines.solo_training import solo_config

RATING_BYTES = 12
"""Bytes of a user, an item and a rating, which a party hands over once."""

CENTRAL = "nothing: whoever trains holds all ratings"


class CentralGNN(Method):
    """One organisation with all items and ratings: exact degrees, every neighbour, unprotected gradients."""

    name = "central"
    title = "CentralGNN"
    declares = Declaration(
        high_order=True, gradient_protection=False, cross_graph=False, storage="central", protects=CENTRAL
    )

    def configure(self, base: Config) -> Config:
        """Return settings without exchange and protection."""
        return solo_config(base, 1.0)

    def train(self, parties: Sequence[PartyData], config: Config, where: Where) -> MethodResult:
        """Train once on the pooled table."""
        return pooled(parties, config, where)


def pooled(parties: Sequence[PartyData], config: Config, where: Where) -> MethodResult:
    """Train on all ratings with the parties' own splits, and cut the model into one for each party."""
    table = pool_parties(parties)
    parts = np.concatenate([each.parts for each in prepare_judged(parties, config, where.device)])
    run = train(
        [PartyData("pooled", table)],
        config,
        device=where.device,
        parts=[parts],
        watch=where.watch,
        stop=where.stop,
    )
    metrics = run.metrics
    models = cut(run.models[0], table, parties)
    return MethodResult(
        models, handed_over(parties), metrics["rounds"], metrics["best_round"], metrics["seconds"]
    )


def cut(model: PartyModel, table: Ratings, parties: Sequence[PartyData]) -> list[PartyModel]:
    """Cut a model of the pooled table into one for each party's catalogue, so that all methods are
    evaluated alike.
    """
    models = []
    for found in find_pooled_items(parties, table):
        rows = torch.from_numpy(found).to(model.items.device)
        models.append(PartyModel(model.users, model.items[rows], model.embeddings[rows]))
    return models


def handed_over(parties: Sequence[PartyData]) -> Ledger:
    """Return the bytes of pooling: every rating is sent once."""
    ledger = Ledger()
    for party in parties:
        ledger.record("Ratings", "up", party.name, RATING_BYTES * len(party.ratings))
    return ledger

"""VerFedGNN with the paper's settings and with ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from verfedgnn.config import Config
from verfedgnn.data import PartyData
from verfedgnn.protocol.party import Party
from verfedgnn.training.train import train
from verfedgnn_research.baselines.method import Declaration, Method, MethodResult, Where


class VerFedGNN(Method):
    """Projected neighbourhoods (q = N/5), ternary gradients (r = 3) and all parties active, as in the
    paper's Table 2.
    """

    name = "verfedgnn"
    title = "VerFedGNN"
    declares = Declaration(
        high_order=True,
        gradient_protection=True,
        cross_graph=True,
        storage="local",
        protects="gradients: ternary, (0, 1/3)-DP a release; neighbourhoods: projected; item embeddings stay",
    )

    def train(self, parties: Sequence[PartyData], config: Config, where: Where) -> MethodResult:
        """Train the federation."""
        return federated(parties, config, where)


class VerFedGNNBest(VerFedGNN):
    """Preset best: items are solved at home, and users take one preconditioned step a round (docs/model.md)."""

    name = "best"
    title = "VerFedGNN, preset best"
    preset = "best"
    by_gnn = False
    settings = "those of preset best; the shared model only, without the gate"
    declares = Declaration(
        high_order=False,
        gradient_protection=True,
        cross_graph=False,
        storage="local",
        protects="gradients: masked, everybody sees their sums rounded to 8 bits; nothing else leaves a party",
    )

    def configure(self, base: Config) -> Config:
        """Return settings without the gate, which would mix in each party's own model."""
        return base.with_values({"training.gate": False})


class VerFedGNNGated(VerFedGNNBest):
    """Preset best as `verfedgnn train` serves it: each party mixes the shared model with its own, and lists have a model."""

    name = "best-gated"
    title = "VerFedGNN, preset best, gated"
    settings = "those of preset best; what `train --preset best` serves and reports"

    def configure(self, base: Config) -> Config:
        """Return the preset unchanged."""
        return base


class VerFedGNNPrivate(VerFedGNNBest):
    """Preset private: a federated factorisation with differential privacy of single ratings (docs/privacy.md)."""

    name = "private"
    title = "VerFedGNN, preset private (ε = 4)"
    preset = "private"
    settings = "those of preset private"
    declares = replace(
        VerFedGNNBest.declares,
        protects="every single rating, over the whole training: epsilon 4 at delta 1e-6, by noise on masked sums",
    )


def federated(
    parties: Sequence[PartyData], config: Config, where: Where, party: type[Party] = Party
) -> MethodResult:
    """Train a federation on one machine; every message is encoded and counted."""
    run = train(parties, config, device=where.device, party=party, watch=where.watch, stop=where.stop).judged
    metrics = run.metrics
    ledger = run.ledger
    rounds = metrics["rounds"]
    seconds = metrics["seconds"]
    if run.lists is not None:
        ledger = ledger.joined(run.lists.ledger)
        rounds += metrics["lists"]["rounds"]
        seconds += metrics["lists"]["seconds"]
    lists = None if run.lists is None else run.lists.models
    return MethodResult(run.models, ledger, rounds, metrics["best_round"], seconds, lists)

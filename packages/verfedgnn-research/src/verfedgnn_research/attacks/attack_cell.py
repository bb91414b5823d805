"""A training with adversarial users that is then attacked: a cell of the paper's Tables 3, 4, 5 and 7."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from verfedgnn.protocol.party import Party
from verfedgnn.runs.prepared_data import split_ratings
from verfedgnn.training.train import train
from verfedgnn_research.attacks.adversaries import choose_items, plant
from verfedgnn_research.attacks.paper_attacks import choose_victims, mount_paper_attacks, neighbours
from verfedgnn_research.attacks.run_view import RunInternals
from verfedgnn_research.attacks.subset_search import MOST
from verfedgnn_research.baselines import Where
from verfedgnn_research.baselines.fedpergnn import PseudoParty
from verfedgnn_research.experiments.training_cell import Cell

ATTACKS = 1
"""Version of these records. Raise it when a change of arithmetic makes old records wrong, so that they are
recomputed.
"""
SHARES = (0.2, 0.5, 0.8)
"""Values of p_ad in Tables 3 and 7."""
VICTIMS = 500
EPOCHS = 10
"""Number of epochs, enough to move embeddings away from their initial values. On ML-100K with GCN (one
seed), attacks on VerFedGNN reach the same F1 after 10 epochs as after 50, within 0.01.
"""
ATTACKER = 0
TARGET = 1
"""Positions of the two parties. Items are assigned at random, so any pair will do."""


@dataclass(frozen=True)
class AttackCell(Cell):
    """A training with adversaries, which serves all attacks on its method and every p_ad."""

    @property
    def name(self) -> str:
        """Name for progress lines."""
        return f"attacks on {super().name}"

    def key(self) -> str:
        """Return the hash that identifies the cell's record."""
        about = ["attacks", ATTACKS, SHARES, VICTIMS, super().key()]
        return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]

    def run(self, where: Where) -> dict[str, Any]:
        """Plant adversaries, train and attack, and return the record."""
        config = self.config()
        parties = self.read()
        rng = np.random.default_rng([self.seed, 7])
        parts = [split_ratings(party, config.split, config.seed) for party in parties]
        planted = plant(
            parties,
            parts,
            target=TARGET,
            items=choose_items(parties[TARGET].ratings.n_items, max(SHARES), rng),
        )
        kind = PseudoParty if self.method == "fedpergnn" else Party
        run = train(
            planted.parties,
            config,
            device=where.device,
            parts=planted.parts,
            party=kind,
            watch=where.watch,
            stop=where.stop,
        )
        began = time.perf_counter()
        truth, _ = neighbours(RunInternals.of(run), planted)
        victims = choose_victims(truth, VICTIMS, rng)
        noise = int(rng.integers(2**62))
        attacks = mount_paper_attacks(
            run, self.method, planted, attacker=ATTACKER, victims=victims, shares=SHARES, seed=noise
        )
        return {
            **self.about(where),
            "victims": len(victims),
            "few": round(float((truth[victims].sum(1) <= MOST).double().mean()), 4),
            "adversaries": len(planted.users),
            "attacks": attacks,
            "test": {"rmse": round(run.metrics["test"]["rmse"], 6)},
            "seconds": run.metrics["seconds"],
            "attack_seconds": round(time.perf_counter() - began, 3),
        }

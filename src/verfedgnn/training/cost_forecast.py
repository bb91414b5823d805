"""The expected time and bytes of a training, measured in a trial of its first rounds and extrapolated to all of them.

A trial runs three rounds and measures the third: in the first two, neighbourhoods are 0 or a solver shares other sums. The federation
of the trial is thrown away and changes nothing of the training that follows.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from verfedgnn.config import Config
from verfedgnn.core.item_item import MOST_ITEMS, TRIAL_ITEMS
from verfedgnn.data import PartyData
from verfedgnn.runs.prepared_data import Prepared, choose_config, count_data, prepare
from verfedgnn.training.local_runtime import local_federation
from verfedgnn.training.loop import device_of, usable_device
from verfedgnn.training.own_models import try_own
from verfedgnn.training.simple_models import EASE_DAMPINGS, liked

TRIAL = 3
"""Rounds of a trial; the last one is like all that follow."""
SHORT = 5_000_000
"""Ratings times epochs below which a training is over sooner than a forecast is worth."""
EASE_TRIAL = 1024
"""Size of the matrix whose inversion is timed, to expect the time of larger ones."""


@dataclass(frozen=True)
class TrainingCost:
    """The cost of one training if it runs to its last round."""

    rounds: int
    seconds: float
    bytes: float
    """Bytes of all parties, in both directions."""

    def of_rounds(self, rounds: int) -> TrainingCost:
        """Return the cost of a training of fewer rounds."""
        share = rounds / self.rounds
        return TrainingCost(rounds, share * self.seconds, share * self.bytes)


@dataclass(frozen=True)
class CostForecast:
    """The cost of the trainings of a command."""

    federated: dict[str, TrainingCost]
    """Cost of the trainings of all parties, by name: federation and lists."""
    alone: dict[str, float]
    """Seconds of each party's own trainings and of its EASE, by name."""

    @property
    def bytes(self) -> float:
        """Bytes of all parties, in both directions."""
        return sum(cost.bytes for cost in self.federated.values())

    def seconds_of(self, step: str) -> float:
        """Return the seconds of one step of a command (`TrainingPlan`)."""
        return self.federated[step].seconds if step in self.federated else self.alone.get(step, 0.0)


def forecast(parties: Sequence[PartyData], config: Config, *, device: str = "cpu") -> CostForecast | None:
    """Return the expected cost of the trainings of `train`; None if they are too short for a trial."""
    sizes = count_data(parties)
    config = choose_config(parties, config)
    if config.training.epochs <= TRIAL or sizes[1] * config.training.epochs < SHORT:
        return None
    prepared = prepare(parties, config, usable_device(device))
    configs = {"lists" if config.ranks else "federation": config}
    if config.federates_lists and all(len(liked(each.train, each.party.ratings.scale)) for each in prepared):
        configs["lists"] = config.for_lists()
    federated = {name: try_rounds(prepared, each) for name, each in configs.items()}
    if config.trains_final and config.model.form == "solved":
        final = config.for_final()
        for name in list(federated):
            whole = final.for_lists() if name == "lists" and not final.ranks else final
            federated[f"{name}, all ratings"] = federated[name].of_rounds(whole.training.epochs)
    return CostForecast(federated, own_seconds(prepared, configs) if config.training.gate else {})


def own_seconds(prepared: Sequence[Prepared], trainings: Iterable[str]) -> dict[str, float]:
    """Return the expected seconds of each party's own models and EASE by name, for the trainings `federation` and `lists`."""
    found: dict[str, float] = {}
    largest = max(prepared, key=lambda each: len(each.train))
    for name in trainings:
        lists = name == "lists"
        seconds = try_own(largest.input, ranks=lists)
        ease = ease_seconds(prepared) if lists else [0.0] * len(prepared)
        for party, more in zip(prepared, ease, strict=True):
            share = len(party.train) / max(1, len(largest.train))
            found[f"{party.party.name} alone{', lists' if lists else ''}"] = share * seconds + more
    return found


def ease_seconds(prepared: Sequence[Prepared]) -> list[float]:
    """Return the expected seconds of each party's EASE, which grow with the cube of the catalogue; 0 for small ones."""
    sizes = [min(MOST_ITEMS, len(np.unique(each.train.item.cpu().numpy()))) for each in prepared]
    if max(sizes) <= EASE_TRIAL:
        return [0.0] * len(sizes)
    matrix = torch.eye(EASE_TRIAL, dtype=torch.float64)
    began = time.perf_counter()
    torch.cholesky_inverse(torch.linalg.cholesky(matrix))
    each = time.perf_counter() - began
    trials = len(EASE_DAMPINGS) * (TRIAL_ITEMS / EASE_TRIAL) ** 3
    return [each * (trials + (size / EASE_TRIAL) ** 3) for size in sizes]


def try_rounds(prepared: Sequence[Prepared], config: Config) -> TrainingCost:
    """Run a few rounds of a training, and return the cost of all its rounds."""
    runtime = local_federation([each.input for each in prepared], config, device_of(prepared))
    rounds = runtime.coordinator.replica.rounds
    for _ in range(TRIAL - 1):
        runtime.round()
    before = runtime.ledger.total()
    began = time.perf_counter()
    runtime.round()
    seconds = time.perf_counter() - began
    size = runtime.ledger.total() - before
    return TrainingCost(rounds, rounds * seconds, runtime.ledger.total() + (rounds - TRIAL) * size)

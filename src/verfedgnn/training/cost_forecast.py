"""The expected time and bytes of a training, measured in a trial of its first rounds and extrapolated to all of them.

A trial runs three rounds and measures the third: in the first two, neighbourhoods are 0 or a solver shares other sums. The federation
of the trial is thrown away and changes nothing of the training that follows.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from verfedgnn.config import Config
from verfedgnn.data import PartyData
from verfedgnn.runs.prepared_data import Prepared, choose_config, prepare
from verfedgnn.training.local_runtime import local_federation
from verfedgnn.training.loop import device_of, usable_device
from verfedgnn.training.own_models import all_like

TRIAL = 3
"""Rounds of a trial; the last one is like all that follow."""
SHORT = 5_000_000
"""Ratings times epochs below which a training is over sooner than a forecast is worth."""
OWN_ROUNDS = 30
"""Rounds after which most models that a party trains alone are finished; one is like a round of the federation on its ratings."""


@dataclass(frozen=True)
class TrainingCost:
    """The cost of one training if it runs to its last round."""

    rounds: int
    seconds: float
    bytes: float
    """Bytes of all parties, in both directions."""


@dataclass(frozen=True)
class CostForecast:
    """The cost of the trainings of a command."""

    federated: dict[str, TrainingCost]
    """Cost of the trainings of all parties, by name: federation and lists."""
    alone: dict[str, float]
    """Seconds of each party's own trainings, by name."""

    @property
    def bytes(self) -> float:
        """Bytes of all parties, in both directions."""
        return sum(cost.bytes for cost in self.federated.values())

    def seconds_of(self, step: str) -> float:
        """Return the seconds of one step of a command (`TrainingPlan`)."""
        return self.federated[step].seconds if step in self.federated else self.alone.get(step, 0.0)


def forecast(parties: Sequence[PartyData], config: Config, *, device: str = "cpu") -> CostForecast | None:
    """Return the expected cost of the trainings of `train`; None if they are too short for a trial."""
    config = choose_config(parties, config)
    ratings = sum(len(party.ratings) for party in parties)
    if config.training.epochs <= TRIAL or ratings * config.training.epochs < SHORT:
        return None
    prepared = prepare(parties, config, usable_device(device))
    configs = {"lists" if config.ranks else "federation": config}
    if config.federates_lists and all_like(prepared):
        configs["lists"] = config.for_lists()
    federated = {name: try_rounds(prepared, each) for name, each in configs.items()}
    alone: dict[str, float] = {}
    if config.training.gate:
        trained = sum(len(each.train) for each in prepared)
        for name, cost in federated.items():
            seconds = OWN_ROUNDS * cost.seconds / cost.rounds / max(1, trained)
            step = " alone, lists" if name == "lists" else " alone"
            alone |= {f"{each.party.name}{step}": seconds * len(each.train) for each in prepared}
    if config.trains_final and config.model.solved:
        final = config.for_final()
        for name in list(federated):
            whole = final.for_lists() if name == "lists" and not final.ranks else final
            rounds, judged = whole.training.epochs, federated[name]
            share = rounds / judged.rounds
            repeated = TrainingCost(rounds, share * judged.seconds, share * judged.bytes)
            federated[f"{name}, all ratings"] = repeated
    return CostForecast(federated, alone)


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

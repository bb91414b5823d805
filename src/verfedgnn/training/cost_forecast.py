"""The expected time and bytes of a training, measured in a trial of its first rounds and extrapolated to all of them.

A trial runs two cycles of the exchange, each `exchange.every` passes over all users. The second one has every kind of round, and
messages of the usual size: neighbourhoods are 0 at first, and zeros take few bytes. The federation of the trial is thrown away and
changes nothing of the training that follows.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from verfedgnn.config import Config
from verfedgnn.core.item_item import MOST_ITEMS, invert
from verfedgnn.data import PartyData
from verfedgnn.protocol.round.exchange_plan import exchange_cycle
from verfedgnn.runs.prepared_data import Prepared, prepare
from verfedgnn.runs.run import Run
from verfedgnn.training.local_runtime import LocalRuntime, local_federation
from verfedgnn.training.loop import device_of, usable_device
from verfedgnn.training.own_models import try_own
from verfedgnn.training.simple_models import EASE_DAMPINGS, liked

FEWEST_ROUNDS = 100
"""Number of rounds below which a forecast takes longer than it is worth."""
EASE_TRIAL = 1024
"""Size of the matrix whose inversion is timed, to expect the time of larger ones."""


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
    """Seconds of each party's own trainings and of its EASE, by name."""

    @property
    def bytes(self) -> float:
        """Bytes of all parties, in both directions."""
        return sum(cost.bytes for cost in self.federated.values())

    def seconds_of(self, step: str) -> float:
        """Return the seconds of one step of a command (`list_steps`)."""
        name = step.removeprefix("newcomers, ")
        if name in self.federated:
            return self.federated[name].seconds
        return self.alone.get(name, 0.0)


def measured_cost(run: Run) -> CostForecast:
    """Return the cost of the trainings of a finished run from its metrics, and that of the parties' own models from a trial."""
    measured = {"lists" if run.config.training.ranks else "federation": run.metrics}
    if "lists" in run.metrics:
        measured["lists"] = run.metrics["lists"]
    federated = {
        name: TrainingCost(each["rounds"], each["seconds"], each["bytes"]["up"] + each["bytes"]["down"])
        for name, each in measured.items()
    }
    return CostForecast(federated, own_seconds(run.prepared(), federated))


def forecast(
    parties: Sequence[PartyData], config: Config, *, device: str = "cpu", stack: bool = True
) -> CostForecast | None:
    """Return the expected cost of the trainings of `train`; None if they are too short for a trial."""
    config = config.with_code().for_parties(len(parties))
    if config.training.epochs * config.training.user_blocks < FEWEST_ROUNDS:
        return None
    prepared = prepare(parties, config, usable_device(device))
    configs = {"lists" if config.training.ranks else "federation": config}
    if config.trains_lists and all(len(liked(each.train, each.party.ratings.scale)) for each in prepared):
        configs["lists"] = config.for_lists()
    federated = {name: try_rounds(prepared, each, stack=stack) for name, each in configs.items()}
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
    invert(matrix)
    each = len(EASE_DAMPINGS) * (time.perf_counter() - began)
    return [each * (size / EASE_TRIAL) ** 3 for size in sizes]


def try_rounds(prepared: Sequence[Prepared], config: Config, *, stack: bool = True) -> TrainingCost:
    """Run two cycles of a training and one validation, and return the cost of all its rounds."""
    cycle = exchange_cycle(config)
    trial = config.with_values({"training.evaluate_every": 2 * cycle + 2})
    runtime = local_federation([each.input for each in prepared], trial, device_of(prepared), stack=stack)
    joined = runtime.ledger.total()
    seconds, sizes = zip(*(_measure_round(runtime) for _ in range(2 * cycle + 2)), strict=True)
    trained = runtime.ledger.total()
    runtime.finish()
    replica = runtime.coordinator.replica
    usual = slice(cycle + 1, 2 * cycle + 1)
    # The second round of a cycle, with and without a validation.
    validation = max(0.0, seconds[-1] - seconds[cycle + 1])
    validations = replica.rounds // (config.training.evaluate_every or replica.rounds_per_epoch)
    return TrainingCost(
        replica.rounds,
        replica.rounds * sum(seconds[usual]) / cycle + validations * validation,
        joined
        + sum(sizes[: cycle + 1])
        + (replica.rounds - cycle - 1) * sum(sizes[usual]) / cycle
        + runtime.ledger.total()
        - trained,
    )


def _measure_round(runtime: LocalRuntime) -> tuple[float, int]:
    """Run a round and return its seconds and bytes."""
    sent = runtime.ledger.total()
    began = time.perf_counter()
    runtime.round()
    return time.perf_counter() - began, runtime.ledger.total() - sent

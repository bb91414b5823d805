"""The expected time and bytes of a command's trainings, from a trial of the first rounds, which changes nothing of what follows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from verfedgnn.config import Config
from verfedgnn.data import PartyData
from verfedgnn.runs.prepared_data import choose_config, prepare
from verfedgnn.training.local_runtime import local_federation
from verfedgnn.training.loop import usable_device
from verfedgnn.training.own_models import all_like

TRIAL = 3
"""Rounds of a trial; in the first two, less is sent than in all that follow."""
SHORT = 2_500_000
"""Ratings times rounds below which trainings are over sooner than a forecast is worth."""
USUAL = {"federation": 0.95, "lists": 0.8}
"""Share of its rounds after which a training usually stops early: the mean of six data sets."""
OWN_ROUNDS = 22
"""Rounds after which a model that a party trains alone usually stops; one is like a round of the federation on its ratings."""


class Cost(NamedTuple):
    """Expected cost of one step of a command."""

    seconds: float
    bytes: float = 0.0
    """Bytes of all parties, in both directions."""


def forecast(parties: Sequence[PartyData], config: Config, *, device: str = "cpu") -> dict[str, Cost]:
    """Return the expected cost of each step of `train` (`TrainingPlan`); nothing if a trial would take longer than it saves."""
    config = choose_config(parties, config)
    ratings = sum(len(party.ratings) for party in parties)
    if config.training.epochs <= TRIAL or ratings * config.training.epochs < SHORT:
        return {}
    prepared = prepare(parties, config, usable_device(device))
    loops = {"lists" if config.ranks else "federation": config}
    if config.federates_lists and all_like(prepared):
        loops["lists"] = config.for_lists()
    costs = {}
    for name, chosen in loops.items():
        runtime = local_federation([each.input for each in prepared], chosen, prepared[0].train.user.device)
        began = time.perf_counter()
        for _ in range(TRIAL - 1):
            runtime.round()
        before = runtime.ledger.total()
        runtime.round()
        seconds, size = (time.perf_counter() - began) / TRIAL, runtime.ledger.total() - before
        rounds = (USUAL[name] if chosen.training.patience else 1) * runtime.coordinator.rounds
        costs[name] = Cost(rounds * seconds, before + (rounds - TRIAL + 1) * size)
        final = config.for_final() if chosen is config else config.for_final().for_lists()
        costs[f"{name}, all ratings"] = Cost(final.training.epochs * seconds, final.training.epochs * size)
        for party in prepared:
            share = len(party.train) / max(1, sum(len(each.train) for each in prepared))
            step = f"{party.party.name} alone{', lists' * chosen.ranks}"
            costs[step] = Cost(OWN_ROUNDS * seconds * share)
    return costs

"""Measure how many rounds a training saves that starts from an earlier run.

    VERFEDGNN_DATA=... .venv/bin/python benchmarks/continue_numbers.py               # results/overlap/later.json

ML-100K, five parties. The earlier run has the first 80 % of the ratings by time, and their users and items. The later trainings
have all ratings. Validations are every second round. `night_numbers.py` measures the nights that users run.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from verfedgnn.config import Config
from verfedgnn.core.process_memory import keep_freed_memory
from verfedgnn.data import PartyData, align_users, read_ratings, split_items
from verfedgnn.protocol.checkpoint_state import CheckpointState
from verfedgnn.research.bench.measure import machine
from verfedgnn.research.experiments.training_cell import commit
from verfedgnn.runs.prepared_data import prepare
from verfedgnn.runs.start_from import StartState, read_start
from verfedgnn.training.loop import TrainingLoop
from verfedgnn.training.train import train

FILE = Path(__file__).resolve().parent.parent / "results" / "overlap" / "later.json"
SEEDS = (0, 1, 2)
PARTIES = 5
EARLIER = 0.8
"""Share of the ratings, by time, that the earlier run has."""
WITHIN = 0.0005
"""Difference of RMSE that counts as reached."""
ROUNDS = 600
LATER_ROUNDS = 180


def main() -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    ratings = read_ratings("ml-100k")
    assert ratings.time is not None
    parties = split_items(ratings, PARTIES)
    cut = float(np.quantile(ratings.time, EARLIER))
    before = align_users([take_earlier(party, cut) for party in parties])
    about = {
        "users": [before[0].ratings.n_users, ratings.n_users],
        "items": [sum(party.ratings.n_items for party in before), ratings.n_items],
        "ratings": [sum(len(party.ratings) for party in before), len(ratings)],
        "machine": machine(),
        "commit": commit(),
    }
    FILE.write_text(
        json.dumps({**about, "seeds": [measure(seed, before, parties) for seed in SEEDS]}, indent=1) + "\n"
    )


def take_earlier(party: PartyData, cut: float) -> PartyData:
    """Return a party with its ratings up to a time, and the users and items that they are about."""
    assert party.ratings.time is not None
    table = party.ratings.take(party.ratings.time <= cut)
    table = table.select_users(np.unique(table.user))
    return PartyData(party.name, table.select_items(np.unique(table.item)))


def measure(seed: int, before: Sequence[PartyData], parties: Sequence[PartyData]) -> dict[str, Any]:
    """Return the rounds that new and continued trainings need for the best validation of a new one."""
    config = Config.preset(
        "best", seed=seed, epochs=ROUNDS, evaluate_every=2, patience=0, gate=False, lists=False
    )
    later = config.with_values({"epochs": LATER_ROUNDS})
    with tempfile.TemporaryDirectory() as name:
        run = Path(name) / "run"
        train(before, config, out=run)
        start = read_start(run, parties)
    assert start is not None
    fresh = validations(parties, config, None)
    best = min(fresh.values())
    trainings = {
        "new": fresh,
        "continued": validations(parties, later, start),
        "continued without Adagrad's sums": validations(parties, later, forget_sums(start)),
    }
    found = {
        name: {
            "reaches_after": next((round for round, error in errors.items() if error <= best + WITHIN), None),
            "best": min(errors.values()),
            "after_2_rounds": errors[2],
            "after_10_rounds": errors[10],
        }
        for name, errors in trainings.items()
    }
    print(seed, json.dumps(found), flush=True)
    return {"seed": seed, **found}


def validations(parties: Sequence[PartyData], config: Config, start: StartState | None) -> dict[int, float]:
    """Train, and return the validation RMSE by round."""
    loop = TrainingLoop(prepare(parties, config, torch.device("cpu")), config, start=start)
    return {entry["round"]: entry["valid_rmse"] for entry in loop.run().history}


def forget_sums(start: StartState) -> StartState:
    """Return a start with Adagrad's sums of squared gradients at zero."""
    public = replace(start.public, accumulator=torch.zeros_like(start.public.accumulator))
    private = {
        party: replace(
            each,
            state=CheckpointState(
                {
                    name: np.zeros_like(values) if name.endswith(".accumulator") else values
                    for name, values in each.state.arrays.items()
                }
            ),
        )
        for party, each in start.private.items()
    }
    return StartState(public, private)


if __name__ == "__main__":
    main()

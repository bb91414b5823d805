"""Measure how many rounds a training saves that starts from an earlier run.

    VERFEDGNN_DATA=... .venv/bin/python benchmarks/continue_numbers.py              # results/overlap/later.json
    VERFEDGNN_DATA=... .venv/bin/python benchmarks/continue_numbers.py --slice 3    # results/life/slice-3.json
    .venv/bin/python benchmarks/continue_numbers.py --table                         # the table of results/life.md

Without options: ML-100K, five parties. The earlier run has the first 80 % of the ratings by time, and their users and
items. The later trainings have all ratings. Validations are every second round.

With `--slice K`: ML-1M, five parties, seed 0. The first run has the first 70 % of the ratings by time. Each of K nights
adds 5 % and continues from the night before. The last night is compared with a training of the same ratings from
nothing. One thread; each slice is a process of its own, so that several can run at the same time.
"""

from __future__ import annotations

import argparse
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
from verfedgnn.runs.run import Run
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
LIFE = Path(__file__).resolve().parent.parent / "results" / "life"
FIRST = 0.7
"""Share of the ratings, by time, of the first run before the nights."""
SLICES = 6
NIGHT_ROUNDS = 80


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--slice", type=int, choices=range(1, SLICES + 1), help="measure this night of ML-1M")
    parser.add_argument("--data", default="ml-1m", help="data of --slice")
    parser.add_argument("--table", action="store_true", help="print the table of all measured nights")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    if chosen.table:
        print(nights_table())
    elif chosen.slice is not None:
        measure_night(chosen.slice, chosen.data)
    else:
        measure_later()


def measure_night(night: int, data: str) -> None:
    """Measure one night and write its figures."""
    ratings = read_ratings(data)
    assert ratings.time is not None
    shares = np.linspace(FIRST, 1, SLICES + 1)[: night + 1]
    cuts = np.quantile(ratings.time, shares)
    days = [align_users([take_earlier(p, cut) for p in split_items(ratings, PARTIES)]) for cut in cuts]
    config = Config.preset("best", gate=False, lists=False)
    nightly = config.with_values({"epochs": NIGHT_ROUNDS, "evaluate_every": 2, "patience": 0})
    with tempfile.TemporaryDirectory() as folder:
        runs = [Path(folder) / f"night-{number}" for number in range(night + 1)]
        train(days[0], config, out=runs[0])
        for before, run, parties in zip(runs[:-1], runs[1:], days[1:], strict=True):
            continued = train(parties, nightly, out=run, start_from=before)
    full = train(days[-1], config)
    found = {
        "slice": night,
        "data": data,
        "ratings": [sum(len(party.ratings) for party in parties) for parties in (days[-2], days[-1])],
        "full": summarise(full, full.metrics["valid"]["rmse"] + WITHIN),
        "continued": summarise(continued, full.metrics["valid"]["rmse"] + WITHIN),
        "machine": machine(),
        "commit": commit(),
    }
    LIFE.mkdir(parents=True, exist_ok=True)
    (LIFE / f"slice-{night}.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found))


def summarise(run: Run, aim: float) -> dict[str, Any]:
    """Return the rounds, bytes and RMSE of a training, and the rounds and bytes until its validation RMSE is `aim`."""
    reached = next((entry for entry in run.history if entry["valid_rmse"] <= aim), None)
    return {
        "rounds": run.metrics["rounds"],
        "bytes": run.history[-1]["bytes"],
        "best_round": run.metrics["best_round"],
        "best": run.metrics["valid"]["rmse"],
        "first": run.history[0]["valid_rmse"],
        "reaches_after": None if reached is None else {name: reached[name] for name in ("round", "bytes")},
    }


def nights_table() -> str:
    """Return the nights that were measured as a table in Markdown."""
    lines = [
        "| night | ratings | RMSE of a full training | its rounds | MB | rounds to within 0.0005 | nightly: rounds to within 0.0005 | MB | "
        "share of the rounds | share of the bytes | best RMSE |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for path in sorted(LIFE.glob("slice-*.json")):
        found = json.loads(path.read_text())
        full = found["full"]
        night = found["continued"]
        reached = night["reaches_after"]
        cells = [f"not in {night['rounds']}", "–", "–", "–"]
        if reached is not None:
            cells = [
                str(reached["round"]),
                f"{reached['bytes'] / 1e6:,.0f}",
                f"{reached['round'] / full['rounds']:.1%}",
                f"{reached['bytes'] / full['bytes']:.1%}",
            ]
        values = [
            str(found["slice"]),
            f"{found['ratings'][1]:,}",
            f"{full['best']:.4f}",
            str(full["rounds"]),
            f"{full['bytes'] / 1e6:,.0f}",
            str(full["reaches_after"]["round"]),
            *cells,
            f"{night['best']:.4f}",
        ]
        lines.append(f"| {' | '.join(values)} |")
    return "\n".join(lines)


def measure_later() -> None:
    """Measure trainings that continue a run with the first 80 % of ML-100K."""
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

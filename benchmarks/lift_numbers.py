"""Measure whether joining pays with preset best: two shops, a catalogue cut by genre, one cut at random.
Writes results/best/lift-*.json.

    VERFEDGNN_DATA=... .venv/bin/python benchmarks/lift_numbers.py [--only amazon] [--threads 1]

Every case is `verfedgnn train ... --lift`. The control answers what the gate would gain without a federation:
the same mixture of two models, both trained alone, from different initial values.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from verfedgnn.training.gate import blend, choose

from verfedgnn.config import Config
from verfedgnn.data import TEST, read_parties
from verfedgnn.evaluation.lift import lift
from verfedgnn.evaluation.lift_plots import draw_lift
from verfedgnn.runs.prepared_data import prepare
from verfedgnn.training.alone import train_alone
from verfedgnn.training.train import train

RESULTS = Path(__file__).resolve().parent.parent / "results"
NOISED = {"exchange.mode": "noised", "exchange.noise": 0.05, "exchange.row_clip": 0.5}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "amazon": (
        {"data": "amazon-books-movies-dense"},
        NOISED | {"model.residual": True, "training.l2_residual": 0.5, "training.l2_messages": 1.0},
    ),
    "genre": ({"data": "ml-1m", "by": "genre", "parties": 3}, {}),
    "ml-100k": ({"data": "ml-100k", "parties": 10}, {}),
    "ml-1m": ({"data": "ml-1m", "parties": 10}, {}),
}
"""Cases by name: the data, and the settings that differ from preset best."""
SEEDS = {"amazon": (0, 1, 2), "genre": (0,), "ml-100k": (0, 1, 2), "ml-1m": (0,)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", default=list(CASES))
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for name in options.only:
        for seed in SEEDS[name]:
            path = RESULTS / "best" / f"lift-{name}-{seed}.json"
            if not path.exists():
                path.write_text(json.dumps(run(name, seed)) + "\n")
                print(path.name, flush=True)


def run(name: str, seed: int) -> dict[str, Any]:
    """Run one case: the federation with its gate, the lift and the control."""
    source, settings = CASES[name]
    parties = read_parties(seed=seed, **source)
    config = Config.preset("best", seed=seed).with_values(settings)
    trained = train(parties, config)
    found = lift(trained)
    if seed == 0:
        draw_lift(found, RESULTS / f"lift-{name}.png")
    words = " ".join(
        [f"--{key} {value}" for key, value in source.items()]
        + [f"--set {k}={v}" for k, v in settings.items()]
    )
    kept = ("rounds", "best_round", "seconds", "bytes", "privacy")
    return {
        "command": f"verfedgnn train {words} --preset best --seed {seed} --lift",
        "lift": found,
        "gates": [row["gate"] for row in trained.metrics["parties"]],
        "control": control(parties, config) if name == "amazon" else None,
    } | {key: trained.metrics[key] for key in kept}


def control(parties: list[Any], config: Config) -> list[dict[str, float]]:
    """Return the test RMSE of a party alone, and of the gate's mixture of two models trained alone."""
    rows = []
    ratings = sum(len(party.ratings) for party in parties)
    for party in prepare(parties, config, torch.device("cpu")):
        share = len(party.party.ratings) / ratings
        first, second = (
            train_alone(party.party, party.parts, config.with_values({"seed": s}), share, torch.device("cpu"))
            for s in (config.seed, config.seed + 100)
        )
        mixed = blend(second, first, choose(second, first, party.valid))
        table = party.party.ratings
        test = party.parts == TEST
        user = torch.from_numpy(table.user[test])
        item = torch.from_numpy(table.item[test])
        errors = [
            float(
                np.sqrt(
                    np.square((m.users[user] * m.items[item]).sum(-1).numpy() - table.rating[test]).mean()
                )
            )
            for m in (first, mixed)
        ]
        rows.append({"alone": errors[0], "two alone, mixed": errors[1]})
    return rows


if __name__ == "__main__":
    main()

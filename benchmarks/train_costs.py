"""Measure the cost of whole trainings: validation RMSE against CPU seconds and bytes. Writes OUT/CASE-NAME-SEED.json.

    VERFEDGNN_DATA=... .venv/bin/python benchmarks/train_costs.py CASE NAME --out OUT [--preset best] [--model gcn] [--set dim=8]

results/scale/trainings.jsonl has the records that results/scale.md reports, one a line.
A case is one of pays_numbers.py, or `yelpzip` (the shape that `data synth --like yelpzip` writes, five parties). The gate and lists
are off: the figures are of the shared model. CPU seconds are of one thread for all parties and the coordinator; bytes are one party's.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pays_numbers import read_case
from verfedgnn.config import Config, parse_settings
from verfedgnn.data import PartyData, read_parties, read_ratings, split_items
from verfedgnn.data.synthetic_shapes import LIKE, write_ratings
from verfedgnn.training.progress import Progress
from verfedgnn.training.train import train

PARTIES = {"yelpzip": 5, "yelp": 10}


def read_data(case: str, seed: int) -> list[PartyData]:
    """Return the parties of a case. `yelpzip/8` has an eighth of the users, items and ratings; `ml-1m/100` has a hundred parties."""
    name, _, part = case.partition("/")
    if name not in LIKE:
        whole = read_ratings(Path(os.environ["VERFEDGNN_DATA"]) / name) if part else None
        return read_case(case, seed) if whole is None else split_items(whole, int(part), seed=seed)
    shape = LIKE[name]
    counts = {key: round(getattr(shape, key) / float(part or 1)) for key in ("users", "items", "ratings")}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ratings.parquet"
        write_ratings(replace(shape, **counts), path, seed=seed)
        return read_parties([str(path)], parties=PARTIES[name], seed=seed)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Train once and return the record."""
    torch.set_num_threads(1)
    launched = time.perf_counter()
    values: dict[str, Any] = {"seed": options.seed, "gate": False, "lists": False}
    config = Config.preset(options.preset, model=options.model).with_values(
        values | parse_settings(options.set)
    )
    parties = read_data(options.case, options.seed)
    began = [time.process_time(), time.perf_counter()]
    points: list[list[float]] = []

    def watch(event: Progress) -> None:
        if event.valid is not None:
            spent = [time.process_time() - began[0], time.perf_counter() - began[1]]
            points.append([event.round, event.bytes / len(parties), *spent, event.valid["rmse"]])
            if options.seconds and time.perf_counter() - launched > options.seconds:
                raise TimeoutError

    record: dict[str, Any] = {
        "case": options.case,
        "name": options.name,
        "preset": options.preset,
        "model": options.model,
        "settings": options.set,
        "seed": options.seed,
        "parties": len(parties),
        "users": parties[0].ratings.n_users,
        "ratings": sum(len(party.ratings) for party in parties),
    }
    try:
        run = train(parties, config, watch=watch, device=options.device)
        kept = ("test", "valid", "rounds", "best_round", "seconds", "bytes", "environment")
        record |= {name: run.metrics.get(name) for name in kept}
        record["party_bytes"] = run.ledger.total() / len(parties)
    except TimeoutError:
        record["stopped"] = "time"
    record["cpu"] = time.process_time() - began[0]
    record["wall"] = time.perf_counter() - began[1]
    record["points"] = points
    return record


def main() -> None:
    """Run one training and write its record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("case")
    parser.add_argument("name")
    parser.add_argument("--preset", default="best")
    parser.add_argument("--model", default="gcn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--seconds", type=float, default=0, help="stop after so many seconds, reading included"
    )
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    record = measure(options)
    options.out.mkdir(parents=True, exist_ok=True)
    name = f"{options.case.replace('/', '-')}-{options.name}-{options.seed}.json"
    (options.out / name).write_text(json.dumps(record) + "\n")
    best = min(record["points"], key=lambda point: point[-1])
    print(
        f"{name}: best {best[-1]:.4f} in round {best[0]:.0f}, {best[1] / 1e6:.1f} MB, {best[2]:.0f} s CPU; ",
        record.get("test"),
        f"{record['wall']:.0f} s in all",
        flush=True,
    )


if __name__ == "__main__":
    main()

"""Measure a training with items solved at home: rounds, bytes, seconds, and what parties serve. Writes results/rounds/CASE-SEED.json.

    VERFEDGNN_DATA=... .venv/bin/python benchmarks/round_numbers.py [--only ml-100k amazon] [--seeds 0 1 2] [--preset solved]
    .venv/bin/python benchmarks/round_numbers.py --table      # prints a table of the records

Ratings are split 60/20/20 at random. One thread.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from pays_numbers import CASES, RESULTS, read_case
from verfedgnn.config import Config
from verfedgnn.research.bench.measure import machine
from verfedgnn.research.experiments.training_cell import commit
from verfedgnn.runs.run import Run
from verfedgnn.training.train import train


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", default=list(CASES))
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--preset", default="solved")
    parser.add_argument("--out", type=Path, default=RESULTS / "rounds")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        print(table(options.out))
        return
    torch.set_num_threads(1)
    options.out.mkdir(exist_ok=True)
    for case in options.only:
        for seed in options.seeds:
            record = measure(case, Config.preset(options.preset, seed=seed))
            (options.out / f"{case}-{seed}.json").write_text(json.dumps(record) + "\n")
            print(case, seed, record["ratings"], record.get("lists"), flush=True)


def measure(case: str, config: Config) -> dict[str, Any]:
    """Train one case with all its lists, and return what it reached and cost."""
    parties = read_case(case, config.seed)
    began = time.process_time()
    run = train(parties, config)
    record: dict[str, Any] = {"case": case, "seed": config.seed, "cpu_seconds": time.process_time() - began}
    record |= {"commit": commit(), "machine": machine(), "config": config.digest()}
    record["ratings"] = figures(run, "rmse")
    if run.lists is not None:
        record["lists"] = figures(run.lists, "ndcg@20")
    return record


def figures(run: Run, metric: str) -> dict[str, Any]:
    """Return the served accuracy, the rounds and the bytes of one training."""
    metrics = run.metrics
    traffic = (metrics["bytes"]["up"] + metrics["bytes"]["down"]) / len(run.parties)
    return {
        "test": metrics["test"][metric],
        "valid": metrics["valid"].get(metric),
        "rounds": metrics["rounds"],
        "best_round": metrics["best_round"],
        "megabytes_per_party": traffic / 1e6,
    }


def table(folder: Path) -> str:
    """Return a table of the means over seeds."""
    records = [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))]
    lines = [
        "| data | seeds | served test RMSE | rounds | served test NDCG@20 | rounds | MB a party | CPU s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case in dict.fromkeys(record["case"] for record in records):
        chosen = [record for record in records if record["case"] == case]
        cells = [case, ", ".join(str(record["seed"]) for record in chosen)]
        for part, digits in (("ratings", 4), ("lists", 4)):
            known = [record[part] for record in chosen if part in record]
            cells.append(f"{statistics.mean(k['test'] for k in known):.{digits}f}" if known else "–")
            cells.append(f"{statistics.mean(k['rounds'] for k in known):.0f}" if known else "–")
        traffic = [
            record["ratings"]["megabytes_per_party"] + record.get("lists", {}).get("megabytes_per_party", 0.0)
            for record in chosen
        ]
        cells += [f"{statistics.mean(traffic):.1f}"]
        cells += [f"{statistics.mean(record['cpu_seconds'] for record in chosen):.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()

"""Compare the cost that `train` expects at its start with what the training takes. Prints a row of results/scale.md for each case.

    VERFEDGNN_DATA=... .venv/bin/python benchmarks/forecast_numbers.py ml-100k amazon ciao-all [--epochs 100]

Patience is 0, so that all rounds take place. Seconds are CPU seconds of one thread, because other programs slow a wall clock down.
"""

from __future__ import annotations

import argparse
import time

import torch

from train_costs import read_data
from verfedgnn.config import Config
from verfedgnn.reports.training_steps import list_steps
from verfedgnn.training import cost_forecast
from verfedgnn.training.train import train


def main() -> None:
    """Print expected and measured seconds and bytes of each case."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="+")
    parser.add_argument("--epochs", type=int, default=100)
    options = parser.parse_args()
    torch.set_num_threads(1)
    cost_forecast.time.perf_counter = time.process_time
    for case in options.cases:
        parties = read_data(case, 0)
        config = Config.preset("best").with_values({"epochs": options.epochs, "patience": 0})
        began = time.process_time()
        expected = cost_forecast.forecast(parties, config)
        trial = time.process_time() - began
        assert expected is not None
        steps = list_steps([party.name for party in parties], config.for_parties(len(parties)), lift=False)
        seconds = sum(expected.seconds_of(step) for step in steps)
        began = time.process_time()
        run = train(parties, config)
        took = time.process_time() - began
        sent = sum(
            part["bytes"]["up"] + part["bytes"]["down"] for part in (run.metrics, run.metrics["lists"])
        )
        print(
            f"| {case} | {len(steps)} | {seconds:.1f} | {took:.1f} | {seconds / took - 1:+.0%} "
            f"| {expected.bytes / 1e6:.1f} | {sent / 1e6:.1f} | {expected.bytes / sent - 1:+.1%} | {trial:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()

"""Measure serving: latency under load. Adds rows to results/serving.json.

    .venv/bin/python benchmarks/serving.py [--items 100000] [--rates 500 1000] [--seconds 20] [--repeats 3]

The server is `verfedgnn serve` in its own process. Its run has random vectors in the shape of preset best (35 columns, or 70 where
a gate mixes two models) and 50 rated items per user, with seed 0.

The load generator is another process. Requests for the ten best items of a random user arrive as a Poisson process, whether or not
earlier ones are answered (open loop), over 256 keep-alive connections. Latency is counted from the time a request was due. A request
that finds all connections busy is given up, and a lost connection is a failure.

A measurement waits until the machine is idle, for at most three minutes. Rows are added to results/serving.json; `--discard` drops the earlier ones.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import tempfile
from pathlib import Path

import torch

from serving_load import PATH, generate
from serving_server import ROOT, cpu_seconds, make_run, served, wait_for_quiet
from verfedgnn.core.installed import installed_version


def measure(
    folder: Path, rates: list[float], seconds: float, repeats: int, quiet: float
) -> list[dict[str, float]]:
    """Measure latency and CPU time at each rate, with a new server that has warmed up."""
    context, found = multiprocessing.get_context("spawn"), []
    with served(folder) as (pid, port):
        for rate, repeat in [(200.0, -1), *((rate, repeat) for repeat in range(repeats) for rate in rates)]:
            wait_for_quiet(quiet)
            queue, before = context.Queue(), cpu_seconds(pid)
            lasts = seconds if repeat >= 0 else 3
            process = context.Process(target=generate, args=(queue, port, rate, lasts, abs(repeat), PATH))
            process.start()
            row = queue.get(timeout=lasts + 60)
            process.join()
            used, load = cpu_seconds(pid) - before, os.getloadavg()[0]
            others = max(0.0, row.pop("busy") - row["generator"] - used) / row.pop("lasted")
            each = used / max(1, row["requests"] - row["failed"]) * 1000
            entry = row | {
                "asked": rate,
                "cpu_per_1000": each,
                "others": others,
                "load": load,
            }
            print({key: round(value, 3) for key, value in entry.items()}, flush=True)
            if repeat >= 0:
                found.append(entry)
    return found


def machine() -> str:
    """Describe the processor, its cores and the versions of Python and torch."""
    name = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        "?",
    )
    return f"{name}, {os.cpu_count()} cores; Python {platform.python_version()}, torch {torch.__version__}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--columns", type=int, default=35)
    parser.add_argument("--rates", type=float, nargs="+", default=[500.0])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--quiet",
        type=float,
        default=0.2,
        help="Cores that other processes may use when a measurement starts.",
    )
    parser.add_argument("--discard", action="store_true", help="Drop the earlier rows of this table.")
    given = parser.parse_args()
    torch.set_num_threads(1)
    path = ROOT / "results" / "serving.json"
    kept = json.loads(path.read_text()) if path.exists() else {"load": {}}
    kept["machine"] = machine()
    kept["version"] = installed_version()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        make_run(run, given.items, given.columns, 0)
        rows = measure(run, given.rates, given.seconds, given.repeats, given.quiet)
    version = kept["version"].partition("+")[0].rpartition(".")[2]
    title = f"Under load: {given.items:,} items, {given.columns} columns"
    before = [] if given.discard else kept["load"].get(title, [])
    kept["load"][title] = before + [row | {"version": version} for row in rows]
    path.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Measure the overhead of a federation: a coordinator and ten parties as processes on this machine, with
mutual TLS and masks.

    python benchmarks/federation_round.py [--data ml-1m] [--parties 10] [--rounds 200]

The same rounds in the local runtime, party by party in one thread, are the arithmetic; parties of a
federation compute at the same time, so on c cores a federation without any overhead would take max(arithmetic
/ c, one party's share). All in one run.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

import verfedgnn as vf
from verfedgnn.runs.prepared_data import prepare
from verfedgnn.training.local_runtime import local_federation

COMMAND = [sys.executable, "-m", "verfedgnn"]


def command(*words: object) -> None:
    subprocess.run([*COMMAND, *map(str, words), "--quiet"], check=True, stdout=subprocess.DEVNULL)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def write_tables(folder: Path, parties: list[vf.PartyData]) -> None:
    for party in parties:
        table = party.ratings
        with (folder / f"{party.name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["user", "item", "rating"])
            writer.writerows(
                zip(table.user_ids[table.user], table.item_ids[table.item], table.rating, strict=True)
            )


def local_round(parties: list[vf.PartyData], config: vf.Config, rounds: int) -> float:
    """Return the median seconds of a round in the local runtime."""
    prepared = prepare(parties, config, torch.device("cpu"))
    runtime = local_federation([p.input for p in prepared], config)
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        runtime.round()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def federated_round(parties: list[vf.PartyData], settings: list[str], folder: Path) -> dict[str, float]:
    """Return the median seconds of a round between processes, and its bytes."""
    write_tables(folder, parties)
    home = folder / "coordinator"
    command(
        "federation",
        "init",
        home,
        "--address",
        f"127.0.0.1:{free_port()}",
        "--name",
        "bench",
        "--alignment",
        "keyed",
        "--preset",
        "paper",
        *settings,
    )
    for party in parties:
        command("federation", "join-request", party.name, "--out", folder / party.name)
        command("federation", "approve", home, folder / party.name / f"{party.name}.csr", "--yes")
    started = [subprocess.Popen([*COMMAND, "coordinator", str(home), "--quiet"], stdout=subprocess.DEVNULL)]
    for party in parties:
        words = ["party", "--ratings", folder / f"{party.name}.csv", "--federation", home / "federation.toml"]
        words += ["--key", folder / party.name / "key.pem", "--quiet"]
        started.append(subprocess.Popen([*COMMAND, *map(str, words)], stdout=subprocess.DEVNULL))
    if any(process.wait() for process in started):
        raise SystemExit("a process of the federation failed")
    status = json.loads((home / "run" / "status.json").read_text())
    metrics = json.loads((home / "run" / "metrics.json").read_text())
    return {
        "round": status["seconds_per_round"],
        "bytes": metrics["bytes"]["per_party_per_round"],
        "rounds": metrics["rounds"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="ml-1m")
    parser.add_argument("--parties", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    torch.set_num_threads(1)
    ratings = vf.read_ratings(options.data)
    parties = vf.split_items(ratings, parties=options.parties, seed=0)
    # the paper's batch; validations are rare, so the median leaves them out
    values = {
        "epochs": 1,
        "evaluate_every": options.rounds,
        "batch": -(-int(len(ratings) * 0.6) // options.rounds),
        "masking": True,
    }
    config = vf.Config.preset("paper", **values)
    settings = [word for key, value in values.items() for word in ("--set", f"{key}={str(value).lower()}")]
    local = local_round(parties, config, 60)
    with tempfile.TemporaryDirectory() as folder:
        measured = federated_round(parties, settings, Path(folder))
    cores = os.cpu_count() or 1
    ideal = max(local / cores, local / options.parties)
    figures = {
        "data": options.data,
        "parties": options.parties,
        "cores": cores,
        "rounds": measured["rounds"],
        "local_ms": 1e3 * local,
        "arithmetic_on_all_cores_ms": 1e3 * ideal,
        "federated_ms": 1e3 * measured["round"],
        "overhead_ms": 1e3 * (measured["round"] - ideal),
        "bytes_per_party_and_round": measured["bytes"],
    }
    print(
        json.dumps(
            {key: round(value, 1) if isinstance(value, float) else value for key, value in figures.items()},
            indent=1,
        )
    )


if __name__ == "__main__":
    main()

"""Measure a night of a federation: a coordinator and three parties as processes on this machine, with mutual TLS and masks.

    python benchmarks/federated_night.py [--users 2400] [--parties 3] [--together]

Preset best, as shipped: ratings, lists, and both on all ratings. It prints how long a member takes to start while the others
wait, or with --together while all start, a round in comparison with the local runtime in one thread, the whole night once everybody is
there, and what a night takes on disk.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

import verfedgnn as vf
from federation_round import COMMAND, command, free_port, local_round, write_tables
from verfedgnn.data import synthetic_ratings

READY = {"coordinator": "listening", "party": "connected to the coordinator"}
"""The event that ends the start of a member."""


def federated_night(parties: list[vf.PartyData], folder: Path, *, together: bool) -> dict[str, Any]:
    """Run a night between processes; return its figures. Its members start `together`, or each when the one before is ready."""
    write_tables(folder, parties)
    home = folder / "hub"
    address = f"127.0.0.1:{free_port()}"
    command("federation", "init", home, "--address", address, "--name", "bench", "--preset", "best")
    for party in parties:
        command("federation", "join-request", party.name, "--out", folder / party.name)
        command("federation", "approve", home, folder / party.name / f"{party.name}.csr", "--yes")
    members = {"hub": ["coordinator", home]}
    for party in parties:
        (folder / party.name / "federation.toml").write_bytes((home / "federation.toml").read_bytes())
        words = ["party", "--federation", folder / party.name, "--ratings", folder / f"{party.name}.csv"]
        members[party.name] = words
    started, processes = {}, []
    for name, words in members.items():
        log = folder / f"{name}.log"
        with log.open("w") as stderr:
            started[name] = time.time()
            night = ["night", folder / name / "nights", "--name", "first", "--", *words, "--log", "json"]
            processes.append(
                subprocess.Popen([*COMMAND, *map(str, night)], stdout=subprocess.DEVNULL, stderr=stderr)
            )
        while not together and f'"{READY[words[0]]}"' not in log.read_text():
            time.sleep(0.02)
    if any(process.wait() for process in processes):
        raise SystemExit("a process of the federation failed")
    ended = time.time()
    times = [first_time(folder / f"{name}.log", READY["party"]) for name in list(members)[1:]]
    place = home / "nights" / "first"
    rounds = [e for e in read_events(folder / "hub.log") if e["event"] == "validated"]
    gaps = [
        after["at"] - before["at"]
        for before, after in pairwise(rounds)
        if before["stage"] == after["stage"] == "ratings"
    ]
    return {
        "start_s": max(at - started[name] for at, name in zip(times, list(members)[1:], strict=True)),
        "round": statistics.median(gaps),
        "night_s": ended - max(times),
        "rounds": json.loads((place / "metrics.json").read_text())["rounds"],
        "MB_of_a_party": size_of(folder / parties[0].name / "nights"),
        "MB_of_the_coordinator": size_of(place),
    }


def read_events(log: Path) -> list[dict[str, Any]]:
    """Return the events of a log, each with its Unix time."""
    events = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return [event | {"at": datetime.fromisoformat(event["time"]).timestamp()} for event in events]


def first_time(log: Path, event: str) -> float:
    return float(next(each["at"] for each in read_events(log) if each["event"] == event))


def size_of(place: Path) -> float:
    """Return the megabytes of a folder."""
    return sum(file.stat().st_size for file in place.rglob("*") if file.is_file()) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=2_400)
    parser.add_argument("--parties", type=int, default=3)
    parser.add_argument("--together", action="store_true", help="start all members at the same time")
    options = parser.parse_args()
    torch.set_num_threads(1)
    ratings = synthetic_ratings(users=options.users, items=1_200, ratings=60 * options.users, seed=0)
    parties = vf.split_items(ratings, parties=options.parties, seed=0)
    local = local_round(parties, vf.Config.preset("best", masking=True), 12)
    with tempfile.TemporaryDirectory() as folder:
        figures = federated_night(parties, Path(folder), together=options.together)
    figures |= {
        "local_ms": 1e3 * local,
        "federated_ms": 1e3 * figures.pop("round"),
        "load": os.getloadavg()[0],
    }
    shown = {key: round(value, 1) if isinstance(value, float) else value for key, value in figures.items()}
    print(json.dumps(shown, indent=1))


if __name__ == "__main__":
    main()

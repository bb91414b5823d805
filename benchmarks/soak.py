"""Run a long federation with failures: thousands of rounds, a process killed every few hundred, memory
recorded.

    python benchmarks/soak.py [--rounds 5000] [--parties 10] [--every 200] [--out results/soak.json]

Parties are killed (SIGKILL) at random and restart two seconds later. In the first half the coordinator is
killed as well; in the second half it keeps running, so that its memory can be judged. Two parties are never
killed, for the same reason.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import torch
from safetensors.torch import load_file

import verfedgnn as vf
from federation_round import COMMAND, command, free_port, write_tables
from verfedgnn.data import synthetic_ratings


class Soak:
    """The processes of one federation, killed and restarted."""

    def __init__(self, folder: Path, parties: int, rounds: int) -> None:
        self.folder = folder
        self.home = folder / "coordinator"
        data = vf.split_items(
            synthetic_ratings(users=600, items=400, ratings=30_000, seed=1), parties=parties, seed=1
        )
        write_tables(folder, data)
        self.names = [party.name for party in data]
        settings = {"batch": 0, "epochs": rounds, "evaluate_every": 50}
        words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        command(
            "federation", "init", self.home, "--address", f"127.0.0.1:{free_port()}", "--name", "soak", *words
        )
        for name in self.names:
            command("federation", "join-request", name, "--out", folder / name)
            command("federation", "approve", self.home, folder / name / f"{name}.csr", "--yes")
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.due: list[tuple[float, str]] = []
        for name in ("server", *self.names):
            self.start(name)

    def start(self, name: str) -> None:
        """Start a process that appends to its log."""
        words = ["coordinator", self.home]
        if name != "server":
            words = [
                "party",
                "--ratings",
                self.folder / f"{name}.csv",
                "--federation",
                self.home / "federation.toml",
            ]
            words += ["--key", self.folder / name / "key.pem"]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen([*COMMAND, *map(str, words)], stdout=log, stderr=log)

    def kill(self, name: str) -> None:
        """Kill a process and set the time of its restart."""
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait()
        self.due.append((time.monotonic() + 2, name))

    def revive(self) -> None:
        """Restart the processes whose time has come."""
        for at, name in list(self.due):
            if time.monotonic() > at:
                self.due.remove((at, name))
                self.start(name)

    def status(self) -> dict[str, Any]:
        """Return the coordinator's last status."""
        try:
            return dict(json.loads((self.home / "run" / "status.json").read_text()))
        except (OSError, ValueError):
            return {}

    def memory(self, name: str) -> float | None:
        """Return the resident memory in megabytes, if the process is running."""
        try:
            return float(psutil.Process(self.processes[name].pid).memory_info().rss) / 1e6
        except psutil.NoSuchProcess:
            return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5000)
    parser.add_argument("--parties", type=int, default=10)
    parser.add_argument("--every", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as name:
        soak = Soak(Path(name), options.parties, options.rounds)
        watched = ["server", *soak.names[:2]]
        mortal = soak.names[2:]
        samples: list[tuple[int, dict[str, float]]] = []
        kills: list[tuple[int, str]] = []
        next_kill = options.every
        began = time.monotonic()
        while soak.processes["server"].poll() is None or soak.due:
            soak.revive()
            round = soak.status().get("round", 0)
            if round >= next_kill and not soak.due:
                next_kill = (round // options.every + 1) * options.every
                coordinator = round < options.rounds / 2 and draw.random() < 0.3
                victim = "server" if coordinator else draw.choice(mortal)
                if soak.processes[victim].poll() is None:
                    soak.kill(victim)
                    kills.append((round, victim))
            found = {who: soak.memory(who) for who in watched}
            samples.append((round, {who: size for who, size in found.items() if size is not None}))
            if sys.stderr.isatty():
                print(f"\rround {round} of {options.rounds}, {len(kills)} kills", end="", file=sys.stderr)
            time.sleep(0.5)
        for process in soak.processes.values():
            process.wait(timeout=90)
        seconds = time.monotonic() - began
        publics = [
            load_file(soak.folder / who / "run" / "model" / "_public.safetensors")["public"]
            for who in soak.names
        ]
        publics.append(load_file(soak.home / "run" / "model" / "_public.safetensors")["public"])
        metrics = json.loads((soak.home / "run" / "metrics.json").read_text())
    figures = {
        "rounds": metrics["rounds"],
        "parties": options.parties,
        "kills": len(kills),
        "coordinator_kills": sum(who == "server" for _, who in kills),
        "trips_begun_anew": metrics["repeats"],
        "messages_refused": sum(metrics["refused"].values()),
        "seconds": round_to(seconds),
        "replicas_identical": all(torch.equal(publics[0], other) for other in publics),
        "memory_mb": {who: growth(samples, who, options.rounds) for who in watched},
    }
    print(json.dumps(figures, indent=1))
    if options.out:
        thin = samples[:: max(1, len(samples) // 300)]
        curves = {who: [[r, round_to(s[who])] for r, s in thin if who in s] for who in watched}
        options.out.write_text(json.dumps(figures | {"killed": kills, "memory": curves}) + "\n")
        draw_memory(curves, kills, options.out.with_suffix(".png"))


def draw_memory(curves: dict[str, list[list[float]]], kills: list[tuple[int, str]], path: Path) -> None:
    """Draw the resident memory of processes never killed in the second half, and the kills."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 3.5), layout="constrained")
    for who, points in curves.items():
        axes.plot(*zip(*points, strict=True), label=who.replace("server", "coordinator"))
    top = axes.get_ylim()[1]
    for who, colour in (("server", "tab:red"), ("party", "tab:grey")):
        rounds = [r for r, name in kills if name.startswith(who)]
        axes.plot(
            rounds,
            [top] * len(rounds),
            "v",
            color=colour,
            label=f"{who.replace('server', 'coordinator')} killed",
        )
    axes.set(xlabel="round", ylabel="resident memory, MB", ylim=(0, None))
    axes.legend(ncols=3, loc="lower center")
    figure.savefig(path, dpi=120)


def growth(samples: list[tuple[int, dict[str, float]]], who: str, rounds: int) -> dict[str, float]:
    """Return the median resident memory in the third and in the last quarter of the rounds."""
    quarters = [(rounds * 0.5, rounds * 0.75), (rounds * 0.75, rounds * 0.999)]
    medians = [
        statistics.median([s[who] for r, s in samples if low <= r < high and who in s])
        for low, high in quarters
    ]
    return {"third_quarter": round_to(medians[0]), "last_quarter": round_to(medians[1])}


def round_to(value: float) -> float:
    return round(value, 1)


if __name__ == "__main__":
    main()

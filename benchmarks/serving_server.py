"""The server of `benchmarks/serving.py`: a made-up run, processes that serve it, and the CPU time they use."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

import verfedgnn as vf
from verfedgnn.runs.ledger import Ledger
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.run import Run

ROOT = Path(__file__).resolve().parent.parent
USERS, SEEN = 10_000, 50


def make_run(folder: Path, items: int, columns: int, seed: int) -> None:
    """Write a run folder with random vectors; the cost of serving does not depend on their values."""
    rng = np.random.default_rng(seed)
    user = np.repeat(np.arange(USERS, dtype=np.int32), SEEN)
    table = vf.Ratings(
        user=user,
        item=rng.integers(0, items, len(user)).astype(np.int32),
        rating=rng.integers(1, 6, len(user)).astype(np.float32),
        user_ids=np.arange(USERS).astype(str),
        item_ids=np.arange(items).astype(str),
        titles=np.array([f"Item number {i}" for i in range(items)]),
        columns={"category": np.array([f"category {i % 20}" for i in range(items)])},
        scale=(1.0, 5.0),
        name="made",
    )
    users, vectors = (
        torch.from_numpy(rng.normal(0, 0.3, (n, columns)).astype(np.float32)) for n in (USERS, items)
    )
    models = [PartyModel(users, vectors, vectors[:, :1].clone())]
    none = {"mechanism": "none", "guarantee": "none"}
    metrics = {
        "test": {"rmse": 1.0}, "parties": [{"name": "made", "test": {"rmse": 1.0}}], "rounds": 0, "best_round": 0, "seconds": 0.0,
        "bytes": {"up": 0, "down": 0, "per_party_per_round": 0},
        "privacy": {"gradients": none, "neighbourhoods": none, "validation": none, "masking": "none", "randomness": "none"},
    }  # fmt: skip
    parts = [np.zeros(len(user), np.int8)]
    Run(
        vf.Config.preset("best"),
        [vf.PartyData("made", table)],
        parts,
        models,
        metrics,
        [],
        Ledger(),
        torch.zeros(1),
    ).save(folder)


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process and its children so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") + sum(
        cpu_seconds(int(child)) for child in children
    )


@contextmanager
def served(folder: Path) -> Iterator[tuple[int, int]]:
    """Start a server, and yield its process id and port."""
    command = [sys.executable, "-m", "verfedgnn", "serve", str(folder), "--port", "0"]
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=os.environ | {"COLUMNS": "200"}
    )
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline().split("http://127.0.0.1:")[1].split()[0])
        time.sleep(4)
        yield server.pid, port
    finally:
        server.terminate()
        server.wait(20)


def busy_seconds() -> float:
    """Return the CPU seconds of the whole machine so far, over all cores."""
    user, nice, system, _, _, *rest = (
        int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    )
    return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")


def wait_for_quiet(cores: float) -> None:
    """Wait until the machine uses fewer `cores` over two seconds, for at most three minutes."""
    end = time.monotonic() + 180
    while time.monotonic() < end:
        before = busy_seconds()
        time.sleep(2)
        if busy_seconds() - before < 2 * cores:
            return

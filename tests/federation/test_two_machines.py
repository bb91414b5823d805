"""Workers on two machines, which are network namespaces here: a party's over torchrun, and the coordinator's on its own machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import verfedgnn as vf
from shells import NAMES, Shells, free_port, only_one_on_this_machine, write_table
from verfedgnn.data import synthetic_ratings

pytest.importorskip("websockets", reason="the extra 'federation' is not installed")

FIRST, SECOND = "vfgn-one", "vfgn-two"
BETWEEN, OUTSIDE = "10.220.0", "10.220.1"
"""Networks between the two machines, and between the first one and the coordinator."""


def ip(*words: object, check: bool = True) -> int:
    return subprocess.run(["ip", *map(str, words)], check=check, capture_output=True).returncode


def remove_machines() -> None:
    for name in (FIRST, SECOND):
        ip("netns", "del", name, check=False)
    ip("link", "del", "vfgnouta", check=False)


@pytest.fixture
def machines() -> Iterator[None]:
    """Create two machines with a cable between them; only the first one reaches the coordinator."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    with only_one_on_this_machine("namespaces"):
        yield from _connect_machines()


def _connect_machines() -> Iterator[None]:
    remove_machines()  # a killed test run leaves its own behind
    if ip("netns", "add", FIRST, check=False) != 0:
        pytest.skip("this machine does not allow network namespaces")
    ip("netns", "add", SECOND)
    ip("-n", FIRST, "link", "add", "inner", "type", "veth", "peer", "name", "inner", "netns", SECOND)
    ip("link", "add", "vfgnouta", "type", "veth", "peer", "name", "outer", "netns", FIRST)
    ip("addr", "add", f"{OUTSIDE}.1/24", "dev", "vfgnouta")
    ip("link", "set", "vfgnouta", "up")
    ip("-n", FIRST, "addr", "add", f"{OUTSIDE}.2/24", "dev", "outer")
    ip("-n", FIRST, "link", "set", "outer", "up")
    for number, name in ((1, FIRST), (2, SECOND)):
        ip("-n", name, "addr", "add", f"{BETWEEN}.{number}/24", "dev", "inner")
        for link in ("lo", "inner"):
            ip("-n", name, "link", "set", link, "up")
    yield
    remove_machines()


def on_machine(number: int, port: int) -> list[str]:
    """Return the words before `-m verfedgnn` that start a worker on one of the machines."""
    python = str(Path(sys.prefix) / "bin" / "python")
    words = ["ip", "netns", "exec", (FIRST, SECOND)[number], "env", "GLOO_SOCKET_IFNAME=inner"]
    words += [python, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    return [*words, f"--node-rank={number}", f"--master-addr={BETWEEN}.1", f"--master-port={port}"]


def test_workers_on_two_machines(shells: Shells, tmp_path: Path, machines: None) -> None:
    """All members end with the same parameters; the second machine has no way to the coordinator and needs none."""
    parts = vf.split_items(synthetic_ratings(users=600, items=90, ratings=6000, seed=3), parties=3, seed=3)
    for name, part in zip(NAMES, parts, strict=True):
        write_table(tmp_path / f"{name}.csv", part.ratings, "lower")
    port = free_port()
    words = ["--min-parties", 3, "--preset", "best", "--set", "epochs=4", "--set", "evaluate_every=2"]
    words += ["--set", "dim=4", "--set", "raters=4", "--set", "gate=false", "--set", "lists=false"]
    shells.now("federation", "init", "home", "--address", f"{OUTSIDE}.1:{port}", *words)
    for name in NAMES:
        shells.now("federation", "join-request", name)
        shells.now("federation", "approve", "home", f"{name}/{name}.csr", "--yes")
    for name in NAMES:
        (tmp_path / name / "federation.toml").write_bytes(
            (tmp_path / "home" / "federation.toml").read_bytes()
        )
    processes = [shells.start("coordinator", "home", "--workers", 2)]
    meeting = free_port()
    film = ["party", "--ratings", "film.csv", "--federation", "film"]
    processes += [shells.start(*film, launcher=on_machine(number, meeting)) for number in (0, 1)]
    processes += [
        shells.start("party", "--ratings", f"{name}.csv", "--federation", name) for name in NAMES[1:]
    ]
    for process in processes:
        assert process.wait(timeout=180) == 0, shells.logs()
    runs = [vf.Run.load(tmp_path / name / "run") for name in NAMES]
    assert all(torch.equal(run.public, runs[0].public) for run in runs)
    ready = [line for line in shells.logs().splitlines() if "worker ready" in line]
    assert len(ready) == 2, "one of the coordinator and one of the party"

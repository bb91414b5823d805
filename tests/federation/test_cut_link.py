"""Parties in network namespaces whose link is silently cut and restored."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import verfedgnn as vf
from shells import (
    NAMES,
    Shells,
    free_port,
    only_one_on_this_machine,
    wait_for_round,
    wait_until,
    write_table,
)
from verfedgnn.data import synthetic_ratings
from verfedgnn.federation.agreement import load_agreement, save_agreement

pytest.importorskip("websockets", reason="the extra 'federation' is not installed")


ROUNDS = 80


def ip(*words: object, check: bool = True) -> int:
    return subprocess.run(["ip", *map(str, words)], check=check, capture_output=True).returncode


def remove_namespaces() -> None:
    """Remove the namespaces and the cables of this test."""
    for name in ("probe", *NAMES):
        ip("netns", "del", f"vfgn-{name}", check=False)
    for number in range(len(NAMES)):
        ip("link", "del", f"vfgn{number}a", check=False)


@pytest.fixture
def hosts() -> Iterator[dict[str, str]]:
    """Create a network namespace per party; yield the host's end of each party's cable by name."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    with only_one_on_this_machine("namespaces"):
        yield from _connect_hosts()


def _connect_hosts() -> Iterator[dict[str, str]]:
    remove_namespaces()  # a killed test run leaves its own behind
    if ip("netns", "add", "vfgn-probe", check=False) != 0:
        pytest.skip("this machine does not allow network namespaces")
    cables = {}
    for number, name in enumerate(NAMES):
        space, here, there = f"vfgn-{name}", f"vfgn{number}a", f"vfgn{number}b"
        ip("netns", "add", space)
        ip("link", "add", here, "type", "veth", "peer", "name", there)
        ip("link", "set", there, "netns", space)
        ip("addr", "add", f"10.219.{number}.1/24", "dev", here)
        ip("link", "set", here, "up")
        for words in (("addr", "add", f"10.219.{number}.2/24", "dev", there), ("link", "set", there, "up")):
            ip("-n", space, *words)
        ip("-n", space, "route", "add", "default", "via", f"10.219.{number}.1")
        cables[name] = here
    yield cables
    remove_namespaces()


def test_a_cut_link(shells: Shells, tmp_path: Path, hosts: dict[str, str]) -> None:
    """The others continue after the reply timeout; the party reconnects and ends with the same parameters."""
    parts = vf.split_items(synthetic_ratings(users=150, items=90, ratings=6000, seed=3), parties=3, seed=3)
    for name, part in zip(NAMES, parts, strict=True):
        write_table(tmp_path / f"{name}.csv", part.ratings, "lower")
    port, page = free_port(), free_port()
    settings = [
        "--preset",
        "paper",
        "--set",
        "batch=0",
        "--set",
        f"epochs={ROUNDS}",
        "--set",
        "evaluate_every=40",
    ]
    shells.now("federation", "init", "home", "--address", f"10.219.0.1:{port}", "--min-parties", 2, *settings)
    for name in NAMES:
        shells.now("federation", "join-request", name)
        shells.now("federation", "approve", "home", f"{name}/{name}.csr", "--yes")
    agreement = load_agreement(tmp_path / "home")
    timeouts = {"reply": 1.5, "hello": 0.5, "idle": 20, "link": 3, "finish": 180}
    save_agreement(tmp_path / "home" / "federation.toml", agreement.with_values(timeouts=timeouts))
    for name in NAMES:
        (tmp_path / name / "federation.toml").write_bytes(
            (tmp_path / "home" / "federation.toml").read_bytes()
        )
    coordinator = shells.start("coordinator", "home", "--status", f"127.0.0.1:{page}")
    parties = {
        name: shells.start(
            "party",
            "--ratings",
            f"{name}.csv",
            "--federation",
            name,
            inside=f"vfgn-{name}",
        )
        for name in NAMES
    }
    status = f"http://127.0.0.1:{page}"
    wait_for_round(shells, status, 10)
    ip("link", "set", hosts["book"], "down")
    missed = wait_until(
        shells, status, lambda about: not about["parties"]["book"]["here"], "nobody misses book"
    )["round"]
    wait_for_round(shells, status, missed + 12)
    others = [parties["film"], parties["music"]]
    for process in others:
        os.killpg(process.pid, signal.SIGSTOP)  # no round can end without them: the rest is kept for book
    assert "away" in (shown := shells.now("status", status)) or "slow" in shown
    time.sleep(3.5)  # longer than the link's timeout: both ends give the connection up
    ip("link", "set", hosts["book"], "up")
    wait_until(shells, status, lambda about: about["parties"]["book"]["here"], "book does not come back")
    for process in others:
        os.killpg(process.pid, signal.SIGCONT)
    for process in (coordinator, *parties.values()):
        assert process.wait(timeout=180) == 0, shells.logs()
    runs = [vf.Run.load(tmp_path / name / "run") for name in NAMES]
    assert all(torch.equal(runs[0].public, run.public) for run in runs)
    logs = shells.logs()
    assert "party is late" in logs or "party disconnected" in logs
    assert logs.count("taking part") >= 4, "book joined a second time"
    metrics = runs[1].metrics
    assert missed + 5 < metrics["privacy"]["gradients"]["releases"] < ROUNDS - 10, (
        "book took part before and after, not in between"
    )

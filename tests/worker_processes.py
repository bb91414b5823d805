"""A second worker for a service of a `Trial`: this process is the first, and a command in its own process is the other."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch.distributed as dist

from hub import SERVER, Trial
from verfedgnn.core.worker_group import WorkerGroup
from verfedgnn.federation.agreement import save_agreement
from verfedgnn.federation.identity import COORDINATOR_KEY
from verfedgnn.federation.worker_processes import MEETING, RANK, SIZE
from verfedgnn.protocol.round.worker_orders import Order, tell_all


@contextmanager
def more_workers(
    federated: Trial, name: str, monkeypatch: pytest.MonkeyPatch, count: int = 2
) -> Iterator[subprocess.Popen[bytes]]:
    """Let a member of the trial have `count` workers: this process, and others that run the command; yield the last one."""
    meeting = federated.folder / "meeting"
    surroundings = {SIZE: str(count), MEETING: str(meeting), "GLOO_SOCKET_IFNAME": "lo"}
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    command = [sys.executable, "-m", "verfedgnn", *_words(federated, name)]
    processes = [
        subprocess.Popen(command, env=os.environ | surroundings | {RANK: str(rank)})
        for rank in range(1, count)
    ]
    group = WorkerGroup.connect(0, count, meeting)
    if name == SERVER:
        federated.workers = group
    else:
        federated.align_options[name] = {"workers": lambda: group}
    try:
        yield processes[-1]
        if processes[-1].poll() is None:
            tell_all(group, Order.END)
        for process in processes:
            process.wait(180)
    finally:
        for process in processes:
            process.kill()
        dist.destroy_process_group()
        meeting.unlink(missing_ok=True)
        federated.workers = None


def _words(federated: Trial, name: str) -> list[str]:
    """Return the command of a member, whose files are those of the trial."""
    run = federated.folder / f"run-{name}"
    key = federated.identities[name].key_file
    if name == SERVER:
        folder = federated.folder / "hub"
        folder.mkdir(exist_ok=True)
        save_agreement(folder / "federation.toml", federated.agreement)
        (folder / COORDINATOR_KEY).write_bytes(key.read_bytes())
        (folder / COORDINATOR_KEY).chmod(0o600)
        return ["coordinator", str(folder), "--out", str(run)]
    federation = federated.folder / "federation.toml"
    save_agreement(federation, federated.agreement)
    return ["party", "--federation", str(federation), "--key", str(key), "--out", str(run)]

"""Measure a round of a federation as a FLARE job (POC: a server and clients as processes of this machine, with
FLARE's certificates) against our own runtime and the parties' arithmetic, all in one run.

    python benchmarks/flare_round.py [--parties 3] [--rounds 300]
    python benchmarks/flare_round.py --kills

With --kills it kills the job process of a client, then that of the server, then aborts the job, and resubmits it
each time. The result must equal that of the local runtime to the bit.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import verfedgnn as vf
from federation_round import command, federated_round, local_round, write_tables
from verfedgnn.protocol.replica import parameters_digest

NVFLARE = [sys.executable, "-m", "nvflare.cli"]


class Poc:
    """A POC deployment of FLARE with prepared sites, and the job of a federation."""

    def __init__(self, folder: Path, parties: list[vf.PartyData], settings: list[str]) -> None:
        self.folder = folder
        self.names = [party.name for party in parties]
        bin_folder = str(Path(sys.executable).parent)
        self.env = os.environ | {
            "NVFLARE_POC_WORKSPACE": str(folder / "poc"),
            "PATH": f"{bin_folder}:{os.environ['PATH']}",
            "HOME": str(folder),
        }
        write_tables(folder, parties)
        home = folder / "server"
        command("federation", "init", home, "--address", "127.0.0.1:1", "--name", "bench", *settings)
        for name in self.names:
            command("federation", "join-request", name, "--out", folder / name)
            command("federation", "approve", home, folder / name / f"{name}.csr", "--yes")
        for name in self.names:
            shutil.copy(home / "federation.toml", folder / name)
        self.nvflare("poc", "prepare", "-c", *self.names, "--force")
        sites = next((folder / "poc").glob("*/prod_00"))
        command("flare", "site", sites / "server", "--federation", home)
        for name in self.names:
            ratings = folder / f"{name}.csv"
            command("flare", "site", sites / name, "--federation", folder / name, "--ratings", ratings)
        command("flare", "job", "--federation", home, "--out", folder / "jobs")
        self.run = home / "run"

    def nvflare(self, *words: str, check: bool = True) -> str:
        """Run a command of FLARE and return what it prints."""
        done = subprocess.run([*NVFLARE, *words], env=self.env, capture_output=True, text=True)
        if check and done.returncode:
            raise SystemExit(
                f"nvflare {' '.join(words)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
            )
        return done.stdout

    @contextmanager
    def started(self) -> Iterator[None]:
        """Run the server and the clients."""
        self.nvflare("poc", "start", "-ex", "admin@nvidia.com")
        try:
            yield
        finally:
            self.nvflare("poc", "stop", check=False)

    def submit(self) -> str:
        """Submit the job and return its id."""
        found = json.loads(
            self.nvflare("--format", "json", "job", "submit", "-j", str(self.folder / "jobs" / "bench"))
        )
        return str(found["data"]["job_id"])

    def wait(self, job: str) -> str:
        """Wait for the end of a job and return what FLARE says about it."""
        shown = self.nvflare("job", "wait", job, "--timeout", "600", check=False)
        return next((line for line in shown.splitlines() if " status: " in line), shown)

    def status(self) -> dict[str, Any]:
        """Return the coordinator's status; nothing before it began."""
        file = self.run / "status.json"
        found: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
        return found

    def wait_for_round(self, number: int) -> None:
        """Wait until the training has reached a round."""
        deadline = time.monotonic() + 120
        while self.status().get("round", 0) < number:
            if time.monotonic() > deadline:
                raise SystemExit(f"no round {number}: {self.status()}")
            time.sleep(0.2)

    def kill_job_process(self, site: str) -> None:
        """Kill the process of the running job at a site."""
        found = subprocess.run(
            ["pgrep", "-f", "runner_process|worker_process"], capture_output=True, text=True
        )
        for line in found.stdout.split():
            words = Path(f"/proc/{line}/cmdline").read_bytes().decode().split("\0")
            if any(word.endswith(f"prod_00/{site}") and str(self.folder) in word for word in words):
                os.kill(int(line), signal.SIGKILL)


def flare_round(parties: list[vf.PartyData], settings: list[str], folder: Path) -> float:
    """Return the median seconds of a round in a FLARE job."""
    poc = Poc(folder, parties, settings)
    with poc.started():
        poc.wait(poc.submit())
    status = poc.status()
    if status.get("state") != "finished":
        raise SystemExit(f"the job did not finish: {status}")
    return float(status["seconds_per_round"])


def kill_and_resubmit(
    parties: list[vf.PartyData], config: vf.Config, settings: list[str], folder: Path
) -> None:
    """Kill job processes, resubmit, and compare the result with that of the local runtime."""
    poc = Poc(folder, parties, settings)
    rounds = config.training.epochs
    with poc.started():
        for site, number in ((poc.names[0], rounds // 4), ("server", rounds // 2), (None, 3 * rounds // 4)):
            job = poc.submit()
            poc.wait_for_round(number)
            if site is None:
                poc.nvflare("job", "abort", job, "--force")
            else:
                poc.kill_job_process(site)
            done = "aborted the job" if site is None else f"killed the job process of {site}"
            print(f"{done} in round {poc.status()['round']}: {poc.wait(job)}")
        job = poc.submit()
        print(f"resubmitted in round {poc.status()['round']}: {poc.wait(job)}")
    local = vf.train(parties, config)
    wanted = parameters_digest(local.public)
    found = json.loads((poc.run / "metrics.json").read_text())["public"]
    print(json.dumps({"local": wanted, "job": found, "equal": wanted == found}))
    for name in poc.names:
        run = vf.Run.load(folder / name / "run")
        assert torch.equal(run.public, local.public), name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parties", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--users", type=int, default=1000)
    parser.add_argument("--kills", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    # to compare with the local runtime, every user has ratings at every party
    users = 120 if options.kills else options.users
    count = 4000 if options.kills else 20 * users
    ratings = vf.data.synthetic_ratings(users=users, items=30 * options.parties, ratings=count, seed=5)
    parties = vf.split_items(ratings, parties=options.parties, seed=0)
    values: dict[str, Any] = {"batch": 0, "epochs": options.rounds, "evaluate_every": 100, "masking": True}
    if options.kills:
        values |= {"unprotected": ["noise"], "evaluate_every": 10}
    config = vf.Config.preset("paper", **values)
    settings = ["--preset", "paper", "--min-parties", str(options.parties)]
    settings += [word for key, value in values.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    with tempfile.TemporaryDirectory() as folder:
        if options.kills:
            kill_and_resubmit(parties, config, [*settings, "--alignment", "none"], Path(folder))
            return
        (Path(folder) / "own").mkdir()
        (Path(folder) / "job").mkdir()
        own = federated_round(parties, settings[2:], Path(folder) / "own")["round"]
        job = flare_round(parties, settings, Path(folder) / "job")
        again = Path(folder) / "again"
        again.mkdir()
        own = (own + federated_round(parties, settings[2:], again)["round"]) / 2
    arithmetic = local_round(parties, config, 60)
    floor = arithmetic / min(os.cpu_count() or 1, options.parties)
    figures = {
        "floor_ms": 1e3 * floor,
        "own_ms": 1e3 * own,
        "flare_ms": 1e3 * job,
        "flare_over_own": job / own,
    }
    figures["load"] = os.getloadavg()[0]  # processes that wanted a core in the last minute, ours among them
    print(json.dumps({"parties": options.parties} | {key: round(value, 2) for key, value in figures.items()}))


if __name__ == "__main__":
    main()

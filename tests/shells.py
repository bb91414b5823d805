"""Commands in processes of their own, for tests of a federation as its users run it."""

from __future__ import annotations

import contextlib
import csv
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

import verfedgnn as vf
from verfedgnn.cli.main import app

NAMES = ["film", "book", "music"]
INSIDE = """
import ctypes, os, runpy, sys
NETWORK = 0x40000000
assert ctypes.CDLL(None).setns(os.open(f"/run/netns/{sys.argv[1]}", os.O_RDONLY), NETWORK) == 0
sys.argv = ["verfedgnn", *sys.argv[2:]]
runpy.run_module("verfedgnn", run_name="__main__", alter_sys=True)
"""
"""Python code that runs a command in a network namespace."""


@contextlib.contextmanager
def only_one_on_this_machine(what: str) -> Iterator[None]:
    """Wait until no other test run on this machine uses `what`, such as network namespaces of the same names."""
    with open(Path(tempfile.gettempdir()) / f"verfedgnn-tests-{what}.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


CLAIMS: list[socket.socket] = []


def free_port() -> int:
    """Return a free port that no connection gets by chance, and claim it until this process ends.

    Linux gives connections ports from 32768. The claim is the UDP port of the same number, so that other test processes see it.
    """
    start = 20_000 + os.getpid() % 12_000
    for port in (*range(start, 32_768), *range(20_000, start)):
        claim = socket.socket(type=socket.SOCK_DGRAM)
        try:
            claim.bind(("127.0.0.1", port))
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            claim.close()
        else:
            CLAIMS.append(claim)
            return port
    raise AssertionError("every port is taken")


class Shells:
    """Commands in the background; none survives the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: list[subprocess.Popen[str]] = []

    def now(self, *words: object) -> str:
        """A command that ends by itself, in this process: it need not import everything anew."""
        with contextlib.chdir(self.folder):
            done = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout

    def start(self, *words: object, inside: str = "") -> subprocess.Popen[str]:
        """A command in the background, in the network namespace `inside` if given.

        Its process group is its own, so that `os.killpg` reaches it behind the executable of the warm Python.
        """
        log = (self.folder / f"log-{len(self.running)}.txt").open("w")
        command = self._command(words)
        if inside:
            command = [sys.executable, "-c", INSIDE, inside, *map(str, words)]
        process = subprocess.Popen(
            command, cwd=self.folder, text=True, stdout=log, stderr=log, process_group=0
        )
        log.close()
        self.running.append(process)
        return process

    @staticmethod
    def kill(process: subprocess.Popen[str]) -> None:
        """Kill a command that is running, and return when also the process behind the warm Python's executable is gone."""
        if process.poll() is not None:
            return
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        with contextlib.suppress(ProcessLookupError):
            while True:
                os.killpg(process.pid, 0)
                time.sleep(0.005)

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("log-*.txt")))

    @staticmethod
    def _command(words: tuple[object, ...]) -> list[str]:
        return [sys.executable, "-m", "verfedgnn", *map(str, words)]


def write_table(path: Path, table: vf.Ratings, spelling: str) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["user", "item", "rating"])
        for user, item, rating in zip(table.user, table.item, table.rating, strict=True):
            name = f"Person.{table.user_ids[user]}@Example.org"
            writer.writerow([getattr(name, spelling)(), table.item_ids[item], rating])


def wait_for_round(shells: Shells, status: str, round: int) -> None:
    wait_until(shells, status, lambda about: about.get("round", 0) >= round, f"round {round} is not reached")


def wait_until(
    shells: Shells, status: str, wanted: Callable[[dict[str, Any]], bool], otherwise: str
) -> dict[str, Any]:
    """Until the status page at `status` shows what is wanted; return what it shows."""
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{status}/status.json", timeout=2) as answer:
                about: dict[str, Any] = json.load(answer)
            if wanted(about):
                return about
        except OSError:
            pass
        time.sleep(0.1)
    raise AssertionError(f"{otherwise}\n{shells.logs()}")

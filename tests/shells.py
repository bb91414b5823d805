"""Commands in processes of their own, for tests of a federation as its users run it."""

from __future__ import annotations

import contextlib
import csv
import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

import verfedgnn as vf
from verfedgnn.cli.main import app

NAMES = ["film", "book", "music"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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

    def start(
        self, *words: object, inside: Sequence[str] = (), launcher: Sequence[str] = ()
    ) -> subprocess.Popen[str]:
        """A command in the background, run by the command `inside` or instead of Python by a `launcher` if one is given."""
        log = (self.folder / f"log-{len(self.running)}.txt").open("w")
        command = self._command(words)
        if launcher:
            command = [*launcher, *command[1:]]
        if inside:  # the server of the warm Python would fork the process elsewhere
            command[0] = str(Path(sys.prefix) / "bin" / "python")
        process = subprocess.Popen([*inside, *command], cwd=self.folder, text=True, stdout=log, stderr=log)
        log.close()
        self.running.append(process)
        return process

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


def wait_until(shells: Shells, status: str, wanted: Callable[[dict[str, Any]], bool], otherwise: str) -> None:
    """Until the status page at `status` shows what is wanted."""
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{status}/status.json", timeout=2) as answer:
                if wanted(json.load(answer)):
                    return
        except OSError:
            pass
        time.sleep(0.1)
    raise AssertionError(f"{otherwise}\n{shells.logs()}")

"""Play a week of three organisations, and of a fourth that joins, with real processes. Writes results/life/week.json and week.log.

    VERFEDGNN_DATA=... .venv/bin/python benchmarks/week.py [--users 1500] [--rounds 150] [--night-rounds 20]

ML-1M by time, films by genre. Sunday's training has the first 70 % of the ratings, and each night adds 5 %. Coordinator, parties and
servers are processes that run the commands of docs/tutorials/every-night.md, over mutual TLS. A client asks every server several
times a second and counts failed requests.

| day | what happens |
|---|---|
| Sunday | first training of action, comedy and drama; their servers start |
| Monday | a night that continues from Sunday |
| Tuesday | a new film is served at once, then a night |
| Wednesday | a fourth organisation joins, then a night |
| Thursday | a customer is deleted, then a night |
| Friday | comedy loads a file with turned scales; the night is kept out of service there |
| Saturday | the night continues from Thursday; coordinator and one party are killed half-way and started again |
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verfedgnn.data import Ratings, read_ratings, split_items
from verfedgnn.research.bench.measure import machine
from verfedgnn.research.experiments.training_cell import commit

RESULTS = Path(__file__).resolve().parent.parent / "results" / "life"
DAYS = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
FIRST = 0.7
"""Share of the ratings, by time, of Sunday's training."""
LATER = "other"
"""The organisation that joins on Wednesday."""
FIRST_RATINGS = 10
"""Ratings from which the new film gets its first vector."""
TOLERANCE = "0.5"
KEPT = 5
"""Exit code of `promote` for a run that is worse."""


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(what: Callable[[], Any], text: str, seconds: float = 120) -> Any:
    """Call `what` until its result is true, and return the result."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = what()
        if found:
            return found
        time.sleep(0.05)
    raise TimeoutError(text)


class Commands:
    """Commands in a folder, each logged with its day, duration and exit code."""

    def __init__(self, folder: Path, log: Path) -> None:
        self.folder = folder
        self.log = log
        self.day = ""
        self.began = time.monotonic()
        self.running: list[subprocess.Popen[bytes]] = []
        log.write_text("")

    def note(self, text: str) -> None:
        """Append a line to the log."""
        line = f"{time.monotonic() - self.began:6.1f} s  {self.day:9}  {text}"
        print(line, flush=True)
        with self.log.open("a") as file:
            file.write(line + "\n")

    def start(self, command: str) -> subprocess.Popen[bytes]:
        """Start a command in the background."""
        output = self.folder / f"output-{len(self.running)}.txt"
        with output.open("w") as file:
            words = [sys.executable, "-m", *shlex.split(command)]
            process = subprocess.Popen(words, cwd=self.folder, stdout=file, stderr=file)
        self.running.append(process)
        self.note(f"$ {self._shown(command)}")
        return process

    def finish(self, process: subprocess.Popen[bytes], expected: Sequence[int] = (0,)) -> int:
        """Wait for a command; raise unless its exit code is expected."""
        code = process.wait(timeout=600)
        output = (self.folder / f"output-{self.running.index(process)}.txt").read_text()
        if code not in expected:
            raise RuntimeError(f"exit code {code}: {' '.join(map(str, process.args))}\n{output[-3000:]}")  # type: ignore[arg-type]
        return code

    def run(self, command: str, expected: Sequence[int] = (0,)) -> tuple[int, str]:
        """Run a command to its end; return its exit code and the last line that it printed."""
        process = self.start(command)
        code = self.finish(process, expected)
        output = (self.folder / f"output-{self.running.index(process)}.txt").read_text().strip()
        last = re.sub(r"\s+", " ", output.splitlines()[-1]) if output else ""
        if code:
            self.note(f"  exit code {code}: {last}")
        return code, last

    def _shown(self, command: str) -> str:
        return re.sub(r"(127\.0\.0\.1:|--port )\d+", r"\1PORT", command)

    def end(self) -> None:
        """End everything that is still running."""
        for process in self.running:
            if process.poll() is None:
                process.terminate()
        for process in self.running:
            process.wait(timeout=30)


class Client(threading.Thread):
    """A client that asks all servers in turn until it is stopped, and counts what fails."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.places: dict[str, tuple[int, list[str]]] = {}
        """Port and users of each organisation."""
        self.seconds: list[float] = []
        self.failures: list[str] = []
        self.stopped = threading.Event()

    def run(self) -> None:
        """Ask until `stopped` is set."""
        random = np.random.default_rng(0)
        while not self.stopped.wait(0.02):
            for name, (port, users) in list(self.places.items()):
                user = users[random.integers(len(users))]
                began = time.monotonic()
                try:
                    answer = get(port, f"/v1/recommendations?user={user}&k=10")
                    if len(answer["recommendations"]) != 10:
                        self.failures.append(f"{name}: {len(answer['recommendations'])} recommendations")
                except (OSError, ValueError, KeyError) as error:
                    self.failures.append(f"{name}: {error!r}")
                self.seconds.append(time.monotonic() - began)


def get(port: int, path: str) -> Any:
    """Return the JSON of a request to a server of this machine."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        return json.load(answer)


def answers(port: int, path: str) -> bool:
    """Return whether a request succeeds."""
    try:
        get(port, path)
    except (urllib.error.URLError, ConnectionError):
        return False
    return True


class Week:
    """The organisations, their data and their processes."""

    def __init__(self, given: argparse.Namespace, folder: Path, commands: Commands) -> None:
        self.given = given
        self.folder = folder
        self.commands = commands
        self.client = Client()
        self.port = free_port()
        self.members: list[str] = []
        self.served: dict[str, int] = {}
        self.tables = read_parties(given.users)
        times = np.concatenate([table.time for table in self.tables.values() if table.time is not None])
        self.cuts = dict(zip(DAYS, np.quantile(times, np.linspace(FIRST, 1, len(DAYS))), strict=True))
        self.deleted: set[str] = set()
        self.figures: dict[str, Any] = {}
        comedies = self.tables["comedy"]
        self.film = ("comedy", int(np.bincount(comedies.item).argmax()))
        """The film that is new on Tuesday: its ratings until then are held back."""

    def find_film(self) -> NDArray[np.int64]:
        """Return the rows of the new film's ratings, by time."""
        name, item = self.film
        table = self.tables[name]
        assert table.time is not None
        rows = np.flatnonzero(table.item == item)
        return rows[np.argsort(table.time[rows], kind="stable")]

    def export(self, day: str, *, bad: str | None = None) -> None:
        """Write each organisation's file of ratings up to a day; that of `bad` has turned scales."""
        for name in self.members:
            table = self.tables[name]
            assert table.time is not None
            rows = np.flatnonzero(table.time <= self.cuts[day])
            if name == self.film[0] and day in ("sunday", "monday"):
                rows = np.setdiff1d(rows, self.find_film())
            with (self.folder / f"{name}.csv").open("w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(["user", "item", "rating", "time"])
                for row in rows:
                    user = str(table.user_ids[table.user[row]])
                    if user not in self.deleted:
                        value = float(table.rating[row])
                        rating = 6 - value if name == bad else value
                        writer.writerow([user, table.item_ids[table.item[row]], rating, int(table.time[row])])

    def admit(self, name: str) -> None:
        """Let an organisation join the agreement."""
        self.commands.run(f"verfedgnn federation join-request {name}")
        self.commands.run(f"verfedgnn federation approve hub {name}/{name}.csr --yes")
        self.members.append(name)

    def distribute(self) -> None:
        """Send the agreement to all members."""
        for name in self.members:
            shutil.copy(self.folder / "hub" / "federation.toml", self.folder / name)

    def night(self, day: str, before: str | None, *, kill: bool = False) -> None:
        """Train with everybody; members that have a run of `before` continue from it."""
        status = free_port()
        began = time.monotonic()
        start = f" --from hub/{before}" if before else ""
        coordinator = (
            f"verfedgnn coordinator hub --out hub/{day}{start} --listen 127.0.0.1:{self.port} "
            f"--status 127.0.0.1:{status}"
        )
        parties = {}
        for name in self.members:
            start = f" --from {name}/{before}" if before and (self.folder / name / before).is_dir() else ""
            parties[name] = (
                f"verfedgnn party --federation {name} --ratings {name}.csv --out {name}/{day}{start}"
            )
        running = {"hub": self.commands.start(coordinator)}
        running |= {name: self.commands.start(command) for name, command in parties.items()}
        if kill:
            half = self.given.night_rounds // 2
            wait_for(lambda: _round(status) >= half, "half of the rounds")
            for name in ("hub", self.members[0]):
                running[name].send_signal(signal.SIGKILL)
                self.commands.finish(running[name], (-signal.SIGKILL,))
                self.commands.note(f"killed {name} with SIGKILL in round {half}; started it again:")
                running[name] = self.commands.start(coordinator if name == "hub" else parties[name])
        for process in running.values():
            self.commands.finish(process)
        self.record(day, time.monotonic() - began)

    def record(self, day: str, seconds: float) -> None:
        """Keep the figures of a night."""
        runs = {
            name: json.loads((self.folder / name / day / "metrics.json").read_text()) for name in self.members
        }
        hub = json.loads((self.folder / "hub" / day / "metrics.json").read_text())
        self.figures[day] = {
            "seconds": round(seconds, 1),
            "rounds": hub["rounds"],
            "megabytes": round((hub["bytes"]["up"] + hub["bytes"]["down"]) / 1e6, 1),
            "test_rmse": {name: round(run["test"]["rmse"], 4) for name, run in runs.items()},
            "forgotten": len((hub.get("from") or {}).get("forgotten", [])),
        }
        self.commands.note(f"trained: {json.dumps(self.figures[day])}")

    def promote(self, day: str) -> None:
        """Let every organisation judge its new run."""
        results = {}
        for name in self.members:
            link = self.folder / name / "current"
            if not link.exists():
                link.symlink_to(day)
                results[name] = "first run"
                continue
            code, _ = self.commands.run(
                f"verfedgnn promote {name}/{day} --over {name}/current --link {name}/current --tolerance {TOLERANCE}",
                (0, KEPT),
            )
            results[name] = "kept" if code == KEPT else "promoted"
        self.figures[day]["promotion"] = results
        self.commands.note(f"promotion: {json.dumps(results)}")

    def serve(self, name: str) -> None:
        """Start the server of an organisation, and let the client ask it."""
        port = free_port()
        self.commands.start(f"verfedgnn serve {name}/current --port {port}")
        wait_for(lambda: answers(port, "/v1/run"), f"the server of {name}")
        self.served[name] = port
        with (self.folder / f"{name}.csv").open() as file:
            users = sorted({row["user"] for row in csv.DictReader(file)} - {self.choose_customer()})
        self.client.places[name] = (port, users)

    def choose_customer(self) -> str:
        """Return the customer who will be deleted: one with about fifty dramas on Sunday."""
        table = self.tables["drama"]
        assert table.time is not None
        early = table.user[table.time <= self.cuts["sunday"]]
        counts = np.bincount(early, minlength=table.n_users)
        return str(table.user_ids[np.abs(counts - 50).argmin()])

    def add_film(self) -> None:
        """Give the new film a vector from its first ratings, and wait until it is served."""
        name, item = self.film
        table = self.tables[name]
        rows = self.find_film()[:FIRST_RATINGS]
        with (self.folder / "new.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["user", "item", "rating"])
            for row in rows:
                writer.writerow(
                    [table.user_ids[table.user[row]], table.item_ids[item], float(table.rating[row])]
                )
        user = self.client.places[name][1][0]
        path = f"/v1/rating?user={user}&item={table.item_ids[item]}"
        assert not answers(self.served[name], path)
        self.commands.run(f"verfedgnn items add {name}/current --ratings new.csv")
        began = time.monotonic()
        wait_for(lambda: answers(self.served[name], path), "the new film")
        self.figures["new_film"] = {
            "ratings": len(rows),
            "served_after_seconds": round(time.monotonic() - began, 1),
        }
        self.commands.note(f"new film: {json.dumps(self.figures['new_film'])}")

    def delete_customer(self, last: str) -> None:
        """Remove a customer at every organisation: from the last night and the served run, and all older runs."""
        customer = self.choose_customer()
        self.deleted.add(customer)
        for name in self.members:
            served = (self.folder / name / "current").resolve().name
            for old in sorted(set(DAYS) - {served, last}):
                shutil.rmtree(self.folder / name / old, ignore_errors=True)
            with (self.folder / f"{name}.csv").open() as file:
                has = any(row["user"] == customer for row in csv.DictReader(file))
            assert has or name != "drama"
            for run in sorted({served, last}) if has else []:
                self.commands.run(f"verfedgnn forget {name}/{run} --user {customer}")

    def find_customer(self) -> list[str]:
        """Return the organisations' files, in run folders, whose tables still have a deleted customer."""
        from verfedgnn.runs.party_tables import read_party_tables

        found = []
        for path in sorted(self.folder.glob("*/*/parties")):
            parties, _ = read_party_tables(path)
            for party in parties:
                if set(party.ratings.user_ids.tolist()) & self.deleted:
                    found.append(str(path.relative_to(self.folder)))
        return found

    def play(self) -> None:
        """Play the week."""
        given = self.given
        self.enter("sunday")
        settings = f"--set epochs={given.rounds} --set lists=false --seed 0"
        self.commands.run(
            f"verfedgnn federation init hub --address 127.0.0.1:{self.port} --name shops {settings}"
        )
        for name in self.tables:
            if name != LATER:
                self.admit(name)
        self.distribute()
        self.export("sunday")
        self.night("sunday", None)
        self.promote("sunday")
        for name in self.members:
            self.serve(name)
        self.client.start()

        self.enter("monday")
        self.commands.run(f"verfedgnn federation night hub --set epochs={given.night_rounds}")
        self.distribute()
        self.whole_night("monday", "sunday")

        self.enter("tuesday")
        self.add_film()
        self.whole_night("tuesday", "monday")

        self.enter("wednesday")
        self.admit(LATER)
        self.distribute()
        self.whole_night("wednesday", "tuesday")
        self.serve(LATER)

        self.enter("thursday")
        self.delete_customer("wednesday")
        self.whole_night("thursday", "wednesday")
        self.figures["deleted_customer_found_in"] = self.find_customer()

        self.enter("friday")
        self.whole_night("friday", "thursday", bad="comedy")

        self.enter("saturday")
        self.whole_night("saturday", "thursday", kill=True)
        time.sleep(3)  # the last switch of the servers
        self.client.stopped.set()
        self.client.join()
        self.figures["requests"] = {
            "asked": len(self.client.seconds),
            "failed": len(self.client.failures),
            "median_ms": round(1000 * float(np.median(self.client.seconds)), 1),
            "slowest_ms": round(1000 * max(self.client.seconds), 1),
            "failures": self.client.failures[:5],
        }
        self.commands.note(f"requests: {json.dumps(self.figures['requests'])}")

    def enter(self, day: str) -> None:
        """Begin a day."""
        self.commands.day = day

    def whole_night(self, day: str, before: str, *, bad: str | None = None, kill: bool = False) -> None:
        """Load, train and judge."""
        self.export(day, bad=bad)
        if bad is not None:
            self.commands.note(f"{bad}.csv is a bad load: its stars are turned, 5 for 1 and 1 for 5")
        self.night(day, before, kill=kill)
        self.promote(day)


def read_parties(users: int) -> dict[str, Ratings]:
    """Return the films of ML-1M by genre, with the ratings of a sample of users."""
    table = read_ratings("ml-1m")
    sample = np.sort(np.random.default_rng(0).permutation(table.n_users)[:users])
    parties = split_items(table.select_users(sample), 4, by="genre")
    return {party.name.lower(): party.ratings for party in parties}


def _round(port: int) -> int:
    try:
        return int(get(port, "/status.json").get("round") or 0)
    except (OSError, ValueError):
        return 0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--users", type=int, default=1500, help="users of the sample")
    parser.add_argument("--rounds", type=int, default=150, help="rounds of Sunday's training")
    parser.add_argument("--night-rounds", type=int, default=20, help="rounds of a night")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        commands = Commands(Path(name), given.out / "week.log")
        try:
            week = Week(given, Path(name), commands)
            week.play()
        finally:
            commands.end()
    found = {
        "users": given.users,
        "seconds": round(time.monotonic() - began),
        **week.figures,
        "machine": machine(),
        "commit": commit(),
    }
    (given.out / "week.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

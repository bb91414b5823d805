"""Nights of a federation with faults, as real processes: what `make soak` runs.

    python benchmarks/soak.py [--nights 30] [--seed 0] [--picture FILE]

A coordinator and three parties run `verfedgnn night` on ratings that grow. A server follows one party's nights and is asked all
the while. Members are killed at random (SIGKILL), in any of the four trainings of a night. Besides, one party is late, a disk is full
in mid-training, a load is bad, a customer is forgotten, one organisation joins and one leaves. Only documented commands mend what
happened. The full disk is a small tmpfs, which needs root.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import verfedgnn as vf
from verfedgnn.data import synthetic_ratings
from warm_python import warm_python

COMMAND = [warm_python(), "-m", "verfedgnn"]
"""Members start from a Python that has loaded the package; half of a night would be spent on loading it."""
MARK = "SOAK_MEMBER"
"""Environment variable that tells to whom a process belongs."""
KEEP, TOLERANCE = 3, 6
"""A partner that leaves costs accuracy, by intention; a bad load costs more."""
FIRST, JOINS, LEAVES, LIMITED = ("film", "book", "music"), "games", "book", "music"
SETTINGS = ("--preset", "best")
STAGES = ("ratings", "lists", "final", "final lists")
"""The trainings of a night."""
FAULTS = {
    2: "a party is late",
    3: "a disk is full",
    4: "a customer is forgotten",
    5: "games joins",
    6: "a bad load",
    8: "book leaves",
}
"""What happens in which night besides kills."""
COLOURS = {"promoted": "#4878a8", "kept": "#d08030"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def command(*words: object) -> str:
    """Run a command to its end and return what it printed."""
    done = subprocess.run([*COMMAND, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, f"{words}: {done.stderr[-2000:]}"
    return done.stdout


class Reader(threading.Thread):
    """A client that asks the server of one party without a pause, and counts failures."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.url = f"http://127.0.0.1:{port}/v1/recommendations?user=u0001&k=5"
        self.answers: Counter[str] = Counter()
        self.over = False

    def run(self) -> None:
        """Ask until told to stop."""
        while not self.over:
            try:
                with urllib.request.urlopen(self.url, timeout=30) as answer:
                    self.answers["answered" if answer.status == 200 else "failed"] += 1
            except OSError as error:
                self.answers["failed"] += 1
                print(f"request failed: {error}", file=sys.stderr)
            time.sleep(0.05)


class Federation:
    """The folders and processes of all members."""

    def __init__(self, folder: Path, draw: random.Random) -> None:
        self.folder = folder
        self.draw = draw
        self.port = free_port()
        self.members = list(FIRST)
        ratings = synthetic_ratings(users=150, items=160, ratings=12_000, seed=1)
        self.tables = {
            name: part.ratings
            for name, part in zip((*FIRST, JOINS), vf.split_items(ratings, parties=4, seed=1), strict=True)
        }
        command(
            "federation",
            "init",
            folder / "hub",
            "--address",
            f"127.0.0.1:{self.port}",
            "--name",
            "soak",
            *SETTINGS,
        )
        for name in FIRST:
            self.admit(name)
        for name in FIRST:
            self.mail(name)
        self.kills: Counter[str] = Counter()
        self.commands: Counter[str] = Counter()
        """Documented commands that mended something."""
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def admit(self, name: str) -> None:
        """Let a party join, at the party and at the coordinator."""
        command("federation", "join-request", name, "--out", self.folder / name)
        command("federation", "approve", self.folder / "hub", self.folder / name / f"{name}.csr", "--yes")

    def mail(self, name: str) -> None:
        """Put the coordinator's federation.toml into a party's folder."""
        (self.folder / name / "federation.toml").write_bytes(
            (self.folder / "hub" / "federation.toml").read_bytes()
        )

    def write(self, night: int, nights: int, *, bad: str | None = None) -> None:
        """Write the ratings that each party has in a night."""
        for name in self.members:
            table = self.tables[name]
            share = 0.6 + 0.4 * night / nights
            chosen = np.random.default_rng(7).random(len(table)) < share
            stars = 6 - table.rating[chosen] if name == bad else table.rating[chosen]
            rows = zip(
                table.user_ids[table.user[chosen]], table.item_ids[table.item[chosen]], stars, strict=True
            )
            lines = [f"{user},{item},{star:g}\n" for user, item, star in rows]
            (self.folder / f"{name}.csv").write_text("user,item,rating\n" + "".join(lines))

    def start(self, name: str, night: str) -> None:
        """Start a member's night, as a timer would; its log grows."""
        home = self.folder / ("hub" if name == "server" else name)
        words = ["night", home / "nights", "--name", night, "--keep", KEEP, "--tolerance", TOLERANCE, "--"]
        if name == "server":
            words += ["coordinator", home, "--listen", f"127.0.0.1:{self.port}"]
        else:
            words += [
                "party",
                "--federation",
                home,
                "--ratings",
                self.folder / f"{name}.csv",
                "--share-verdict",
            ]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*COMMAND, *map(str, words)], stdout=log, stderr=log, env=os.environ | {MARK: name}
            )

    def kill(self, name: str) -> None:
        """Kill a member's night and what it started."""
        kill_all_of(name)
        self.processes[name].wait()
        self.kills["coordinator" if name == "server" else "party"] += 1

    def status(self, night: str) -> dict[str, Any]:
        """Return the coordinator's status of a night."""
        try:
            return dict(json.loads((self.folder / "hub" / "nights" / night / "status.json").read_text()))
        except (OSError, ValueError):
            return {}

    def run(
        self,
        night: str,
        *,
        kills: list[tuple[str, str]],
        late: str | None = None,
        full: Path | None = None,
    ) -> float:
        """Run a night to its end at all members; return its seconds. `kills` are members and trainings."""
        began = time.monotonic()
        for name in ("server", *self.members):
            if name != late:
                self.start(name, night)
        victims = list(kills)
        while late is not None or any(process.poll() is None for process in self.processes.values()):
            about = self.status(night)
            stage = about.get("stage") if about.get("state") == "training" and about["round"] > 1 else None
            if about.get("state") == "gathering" and about["waits_for"] == [late]:
                self.start(str(late), night)
                late = None
            for name, when in [victim for victim in victims if victim[1] == stage]:
                victims.remove((name, when))
                if self.processes[name].poll() is None:
                    self.kill(name)
                    time.sleep(0.5)
                    self.start(name, night)
            if full is not None and stage in STAGES[1:] and not full.exists():
                with contextlib.suppress(OSError), full.open("wb") as file:
                    while True:
                        file.write(bytes(1 << 16))
            if full is not None and full.exists() and self.processes[LIMITED].poll() is not None:
                log = (self.folder / f"{LIMITED}.log").read_text()
                assert "No space left" in log, log[-2000:]
                full.unlink()
                self.commands["free some space, start again"] += 1
                full = None
                self.start(LIMITED, night)
            time.sleep(0.02)
            assert time.monotonic() < began + 400, self.logs()
        for name, process in self.processes.items():
            assert process.returncode in (0, 5), f"{name}: {process.returncode}\n{self.logs()}"
        assert full is None, "the disk was not full"
        self.processes = {}
        publics = {self.public(name, night) for name in self.members}
        assert len(publics) == 1, "the members' public parameters differ"
        return time.monotonic() - began

    def join(self) -> None:
        """Let an organisation join between two nights."""
        self.admit(JOINS)
        self.offer()
        self.mail(JOINS)
        self.members.append(JOINS)
        self.commands["join: approve, accept"] += 1

    def leave(self) -> None:
        """Let an organisation leave between two nights."""
        command("federation", "approve", self.folder / "hub", "--remove", LEAVES)
        self.members.remove(LEAVES)
        self.offer()
        self.commands["leave: approve --remove, accept"] += 1

    def offer(self) -> None:
        """Start the coordinator, which offers the changed agreement, and let the parties accept it."""
        words = [
            "coordinator",
            self.folder / "hub",
            "--out",
            self.folder / "hub" / "offer",
            "--listen",
            f"127.0.0.1:{self.port}",
        ]
        with (self.folder / "server.log").open("ab") as log:
            offering = subprocess.Popen([*COMMAND, *map(str, words)], stdout=log, stderr=log)
        try:
            while socket.socket().connect_ex(("127.0.0.1", self.port)):
                time.sleep(0.2)
            for name in self.members:
                command("federation", "accept", self.folder / name, "--yes")
        finally:
            offering.kill()
            offering.wait()
            shutil.rmtree(self.folder / "hub" / "offer")

    def public(self, name: str, night: str) -> str:
        """Return the hash of a party's public parameters."""
        return str(json.loads((self.folder / name / "nights" / night / "metrics.json").read_text())["public"])

    def logs(self) -> str:
        """Return the ends of all logs."""
        return "\n".join(
            f"== {file.stem}\n{file.read_text()[-1500:]}" for file in sorted(self.folder.glob("*.log"))
        )

    def words(self, name: str) -> list[str]:
        """Return the results of a party's nights."""
        return [
            each["result"] for each in json.loads(command("nights", self.folder / name / "nights", "--json"))
        ]

    def megabytes(self) -> dict[str, float]:
        """Return what each member's nights take on disk."""
        places = {name: self.folder / name / "nights" for name in ("hub", *self.members)}
        return {
            name: sum(
                file.stat().st_size for file in place.rglob("*") if file.is_file() and not file.is_symlink()
            )
            / 1e6
            for name, place in places.items()
        }


def kill_all_of(member: str) -> None:
    """Kill the processes of a member's night, at once."""
    mark = f"{MARK}={member}".encode()
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (place / "environ").read_bytes().split(b"\0"):
                os.kill(int(place.name), signal.SIGKILL)


def small_disk(place: Path) -> bool:
    """Mount a small disk; return whether that is allowed here."""
    place.mkdir(parents=True, mode=0o700)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m,mode=0700", "tmpfs", str(place)], capture_output=True
    )
    return done.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nights", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", type=Path, help="SVG file to write")
    options = parser.parse_args()
    assert options.nights >= 9, "each kind of night takes place once"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        federation = Federation(folder, random.Random(options.seed))
        disk = folder / LIMITED / "nights"
        limited = small_disk(disk)
        try:
            figures = play(federation, options.nights, disk if limited else None, options.picture)
        finally:
            for member in federation.processes:
                kill_all_of(member)
            if limited:
                subprocess.run(["umount", "-l", str(disk)], check=False)
    print("\n".join(f"| {what} | {value} |" for what, value in figures.items()))


def play(federation: Federation, nights: int, disk: Path | None, picture: Path | None) -> dict[str, Any]:
    """Run all nights with their faults; return figures."""
    began = time.monotonic()
    seconds, sizes, expected, faults = [], [], [], []
    reader: Reader | None = None
    server: subprocess.Popen[bytes] | None = None
    forgotten = str(federation.tables["film"].user_ids[5])
    try:
        for number in range(nights):
            night = f"night-{number:02}"
            if number in (5, 8):
                (federation.join if number == 5 else federation.leave)()
            federation.write(number, nights, bad="film" if number == 6 else None)
            full = disk / "filler" if number == 3 and disk is not None else None
            killed = federation.kills.total()
            count = 0 if number in (0, 2, 3) else federation.draw.choice((0, 1, 1))
            victims = [federation.draw.choice(federation.members) for _ in range(count)]
            victims += ["server"] if number % 3 == 1 else []
            kills = [(victim, federation.draw.choice(STAGES)) for victim in victims]
            late = "book" if number == 2 else None
            took = federation.run(night, kills=kills, late=late, full=full)
            faults.append([FAULTS[number]] if number in FAULTS else [])
            faults[-1] += ["killed"] * (federation.kills.total() - killed)
            seconds.append(round(took, 1))
            expected.append("kept" if number == 6 else "promoted")
            if number == 0:
                port = free_port()
                words = ["serve", federation.folder / "film" / "nights" / "current", "--port", port]
                server = subprocess.Popen([*COMMAND, *map(str, words)], stdout=subprocess.DEVNULL)
                for _ in range(300):
                    with contextlib.suppress(OSError):
                        urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=1).close()
                        break
                    time.sleep(0.1)
                reader = Reader(port)
                reader.start()
            if number == 4:
                command("forget", federation.folder / "film" / "nights" / "current", "--user", forgotten)
                federation.commands["forget a customer"] += 1
            if number > 4:
                ids = vf.Run.load(federation.folder / "film" / "nights" / night).parties[0].ratings.user_ids
                assert forgotten not in set(map(str, ids)), "a forgotten customer came back"
            sizes.append(max(federation.megabytes().values()))
            print(
                f"{night}: {took:.1f} s, {federation.words('film')[-1]}, {sizes[-1]:.1f} MB", file=sys.stderr
            )
        words = federation.words("film")
        assert words == expected, f"{words}\n{federation.logs()}"
        assert reader is not None
        assert not reader.answers["failed"], reader.answers
        assert max(sizes[KEEP + 2 :]) < 2 * max(sizes[: KEEP + 2]), sizes
        if picture is not None:
            picture.write_text(draw(words, seconds, sizes, faults))
        return {
            "nights, and minutes for all of them": f"{nights}, {(time.monotonic() - began) / 60:.1f}",
            "killed": ", ".join(f"{count} times a {who}" for who, count in sorted(federation.kills.items())),
            "other faults": "one late party, "
            + ("one full disk, " if disk is not None else "")
            + "one bad load, one forgotten customer; one organisation joined, one left",
            "commands that mended them": ", ".join(sorted(federation.commands)),
            "results at film": ", ".join(f"{count} {word}" for word, count in Counter(words).items()),
            "seconds a night, median and longest": f"{np.median(seconds):.0f} and {max(seconds):.0f}",
            "requests answered, failed": f"{reader.answers['answered']:,} and {reader.answers['failed']}",
            "MB of a member's nights at most": f"{max(sizes):.1f}",
            "public parameters of all parties": "identical after every night",
        }
    finally:
        if reader is not None:
            reader.over = True
            reader.join()
        if server is not None:
            server.terminate()
            server.wait()


def draw(words: list[str], seconds: list[float], sizes: list[float], faults: list[list[str]]) -> str:
    """Return a picture of the nights: seconds as bars, with what happened, and the disk as a line."""
    width, height, left, bottom = 960, 300, 50, 250
    step, tall = (width - 2 * left) / len(words), 200 / max(seconds)
    wide = 200 / (1.3 * max(sizes))
    parts = []
    for number, (word, took, what) in enumerate(zip(words, seconds, faults, strict=True)):
        x, y = left + number * step, bottom - took * tall
        about = f"night {number + 1}: {word}, {took:.0f} s" + "".join(f", {each}" for each in what)
        parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{step - 3:.1f}" height="{took * tall:.1f}" fill="{COLOURS[word]}">'
            f"<title>{about}</title></rect>"
        )
        middle = x + step / 2 - 1
        for place in range(what.count("killed")):
            parts.append(f'<circle cx="{middle:.1f}" cy="{y - 7 - 9 * place:.1f}" r="3" fill="#b02020"/>')
        named = [each for each in what if each != "killed"]
        if named:
            parts.append(
                f'<text x="{middle:.1f}" y="{bottom - 4}" transform="rotate(-90 {middle + 4:.1f} {bottom - 4})" fill="#111">{named[0]}</text>'
            )
    line = " ".join(
        f"{left + (n + 0.5) * step:.1f},{bottom - size * wide:.1f}" for n, size in enumerate(sizes)
    )
    parts += [
        f'<polyline points="{line}" fill="none" stroke="#208040" stroke-width="2"/>',
        f'<text x="{left}" y="20">seconds a night (bars, at most {max(seconds):.0f}), and MB of the largest member on disk (line, at most '
        f"{max(sizes):.1f})</text>",
        f'<text x="{left}" y="{bottom + 20}">blue: promoted; orange: kept out; a red dot: a member was killed with SIGKILL</text>',
        f'<text x="{left}" y="{bottom + 40}">night 1</text>',
        f'<text x="{width - left}" y="{bottom + 40}" text-anchor="end">night {len(words)}</text>',
    ]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">'
    return "\n".join([head, f'<rect width="{width}" height="{height}" fill="white"/>', *parts, "</svg>\n"])


if __name__ == "__main__":
    main()

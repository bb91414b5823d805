"""Time the alignment of users between processes on this machine, with 100,000 ids per party and both
methods.

    python benchmarks/align.py [--parties 10] [--ids 100000] [--method keyed|ecdh]
    python benchmarks/align.py --cpu           # CPU seconds and bytes in one process, without a network

Every party has `ids` users, nine tenths of which all share, so no step of the chain gets much smaller than
the first. On a busy machine, use the CPU seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from federation_round import COMMAND, command, free_port
from verfedgnn.protocol.messages import Waiting, decode, encode
from verfedgnn.protocol.user_alignment import CoordinatorAlignment, PartyAlignment


def make_ids(party: int, ids: int) -> list[str]:
    own = ids // 10
    common = ids - ids // 10
    return [f"person{n}@example.org" for n in range(common)] + [
        f"party{party}-{n}@example.org" for n in range(own)
    ]


class Anybody:
    """Vouches for every key."""

    def sign(self, purpose: str, key: str) -> str:
        """Return an empty signature."""
        return "00"

    def check(self, purpose: str, party: int, key: str, signature: str) -> None:
        """Accept the key."""


def align_here(parties: int, ids: int, method: Any) -> dict[str, Any]:
    """Align in this process, on one core, and return the CPU seconds and the bytes of each member."""
    names = [f"party-{number}" for number in range(parties)]
    spent = Counter[str]()
    sent = {"up": Counter[str](), "down": Counter[str]()}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        began = time.process_time()
        result = work()
        spent[name] += time.process_time() - began
        return result

    sides = {
        name: timed(
            name,
            partial(PartyAlignment, name, np.array(make_ids(number, ids)), method, "bench", Anybody()),
        )
        for number, name in enumerate(names)
    }
    coordinator = CoordinatorAlignment(names, method, "bench")
    waiting = deque((name, encode(side.hello())) for name, side in sides.items())
    while waiting:
        sender, data = waiting.popleft()
        sent["up"][sender] += len(data)
        for to, answer in timed("coordinator", partial(coordinator.handle, sender, decode(data))):
            reply = encode(answer)
            sent["down"][to] += len(reply)
            if not isinstance(answer, Waiting):
                answers = timed(to, partial(sides[to].handle, decode(reply)))
                waiting.extend((to, encode(message)) for message in answers)
    return {
        "method": method,
        "parties": parties,
        "ids": ids,
        "users": sides[names[0]].users,
        "cpu_seconds": {name: round(seconds, 2) for name, seconds in spent.items()},
        "cpu_seconds_in_all": round(spent.total(), 1),
        "cpu_microseconds_per_id": round(1e6 * spent.total() / (ids * parties), 1),
        "megabytes": {name: [round(sent[way][name] / 1e6, 2) for way in ("up", "down")] for name in names},
    }


def write_ids(path: Path, party: int, ids: int) -> None:
    users = make_ids(party, ids)
    path.write_text(
        "user,item,rating\n" + "".join(f"{user},item{n % 50},{1 + n % 5}\n" for n, user in enumerate(users))
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parties", type=int, default=10)
    parser.add_argument("--ids", type=int, default=100_000)
    parser.add_argument("--method", default="keyed")
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    if options.cpu:
        print(json.dumps(align_here(options.parties, options.ids, options.method), indent=1))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        home = folder / "coordinator"
        address = f"127.0.0.1:{free_port()}"
        command(
            "federation", "init", home, "--address", address, "--name", "bench", "--alignment", options.method
        )
        for number in range(options.parties):
            party = f"party-{number}"
            write_ids(folder / f"{party}.csv", number, options.ids)
            command("federation", "join-request", party, "--out", folder / party)
            command("federation", "approve", home, folder / party / f"{party}.csr", "--yes")
        log = (folder / "log").open("w")
        server = subprocess.Popen(
            [*COMMAND, "coordinator", str(home), "--log", "json"], stderr=log, stdout=log
        )
        began = time.monotonic()
        started = []
        for number in range(options.parties):
            words = [
                "party",
                "--align-only",
                "--ratings",
                folder / f"party-{number}.csv",
                "--federation",
                home / "federation.toml",
            ]
            words += ["--key", folder / f"party-{number}" / "key.pem", "--quiet"]
            started.append(subprocess.Popen([*COMMAND, *map(str, words)], stdout=subprocess.DEVNULL))
        codes = [process.wait() for process in started]
        seconds = time.monotonic() - began
        time.sleep(5)  # the status is written every few seconds
        status = json.loads((home / "run" / "status.json").read_text())
        server.terminate()
        server.wait()
        events = [
            json.loads(line) for line in (folder / "log").read_text().splitlines() if line.startswith("{")
        ]
    if any(codes):
        raise SystemExit("an alignment failed")
    (aligned,) = [event for event in events if event["event"] == "users aligned"]
    ready = [event["time"] for event in events if event["event"] == "party is ready to align"]
    figures = {
        "method": options.method,
        "parties": options.parties,
        "ids": options.ids,
        "users": aligned["users"],
        "cores": os.cpu_count(),
        "seconds_with_starting_and_reading": round(seconds, 1),
        "seconds_once_all_were_ready": round(stamp(aligned["time"]) - stamp(max(ready)), 1),
        "megabytes_up_and_down": {
            name: [round(row[way] / 1e6, 1) for way in ("up", "down")]
            for name, row in status["parties"].items()
        },
        "load": os.getloadavg()[0],
    }
    print(json.dumps(figures, indent=1))


def stamp(text: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp()


if __name__ == "__main__":
    main()

"""What serving costs: latency at a given load, the limit, and exact scores against approximate indexes. Writes results/serving.md.

    .venv/bin/python benchmarks/serving.py [--items 100000] [--rate 500] [--seconds 20] [--repeats 3] [--index]

The server is `verfedgnn serve` in a process of its own, on a made run: random vectors of preset best's shape (35 columns; 70 where a
gate mixes two models), every user with 50 rated items. The load generator is another process: requests for the ten best items of
a random user arrive as a Poisson process whether or not earlier ones are answered (open loop), over kept-alive connections, and a
request's latency counts from when it was due. `--index` compares with faiss; it is not needed for anything else.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import verfedgnn as vf
from verfedgnn.protocol.ledger import Ledger
from verfedgnn.run import PartyModel, Run

ROOT = Path(__file__).resolve().parent.parent
USERS, SEEN = 10_000, 50


def make_run(folder: Path, items: int, columns: int, seed: int) -> None:
    """A run folder with random vectors; what is served does not depend on what was learnt."""
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
    users, vectors = (torch.from_numpy(rng.normal(0, 0.3, (n, columns)).astype(np.float32)) for n in (USERS, items))
    models = [PartyModel(users, vectors, vectors[:, :1].clone())]
    none = {"mechanism": "none", "guarantee": "none"}
    metrics = {
        "test": {"rmse": 1.0}, "parties": [{"name": "made", "test": {"rmse": 1.0}}], "rounds": 0, "best_round": 0, "seconds": 0.0,
        "bytes": {"up": 0, "down": 0, "per_party_per_round": 0},
        "privacy": {"gradients": none, "neighbourhoods": none, "validation": none, "masking": "none", "randomness": "none"},
    }  # fmt: skip
    parts = [np.zeros(len(user), np.int8)]
    Run(vf.Config.preset("best"), [vf.PartyData("made", table)], parts, models, metrics, [], Ledger(), torch.zeros(1)).save(
        folder
    )


class Client(asyncio.Protocol):
    """One kept-alive connection with at most one request on its way; as little work a request as Python allows."""

    def __init__(self, free: list[Client]) -> None:
        self.free, self.got, self.done = free, b"", None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def ask(self, request: bytes, done: Any) -> None:
        self.got, self.done = b"", done
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self.got += data
        head, gap, body = self.got.partition(b"\r\n\r\n")
        if gap and len(body) >= int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]):
            ok, done = head.startswith(b"HTTP/1.1 200"), self.done
            self.free.append(self)
            done(ok)


async def _load(port: int, rate: float, seconds: float, seed: int, path: str) -> dict[str, float]:
    loop, rng = asyncio.get_running_loop(), np.random.default_rng(seed)
    free: list[Client] = []
    for _ in range(256):
        free.append((await loop.create_connection(lambda: Client(free), "127.0.0.1", port))[1])
    due = np.cumsum(rng.exponential(1 / rate, int(rate * seconds))).tolist()
    users = rng.integers(0, USERS, len(due)).tolist()
    latencies: list[float] = []
    failed: list[int] = []
    begin, finished = loop.time() + 0.2, loop.create_future()

    def send(place: int) -> None:
        when = begin + due[place]
        client = free.pop() if free else None

        def done(ok: bool) -> None:
            latencies.append(loop.time() - when)
            if not ok:
                failed.append(place)
            if len(latencies) == len(due):
                finished.set_result(None)

        if client is None:  # all connections wait: given up
            when -= 60
            done(False)
        else:
            client.ask(f"GET {path.format(user=users[place])} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode(), done)
        if place + 1 < len(due):
            loop.call_at(begin + due[place + 1], send, place + 1)

    loop.call_at(begin + due[0], send, 0)
    await asyncio.wait_for(finished, seconds + 30)
    taken = np.array(latencies) * 1000
    return {"p50": float(np.percentile(taken, 50)), "p90": float(np.percentile(taken, 90)), "p99": float(np.percentile(taken, 99)),
            "max": float(taken.max()), "failed": len(failed), "requests": len(due),
            "rate": len(due) / (loop.time() - begin)}  # fmt: skip


def _generate(queue: Any, *arguments: Any) -> None:
    try:
        import uvloop

        run = uvloop.run
    except ImportError:
        run = asyncio.run
    before = time.process_time()
    found = run(_load(*arguments))
    queue.put(found | {"generator": time.process_time() - before})


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(folder: Path, rates: list[float], seconds: float, repeats: int, path: str) -> list[dict[str, float]]:
    """Latency and processor time at each rate, from a fresh server."""
    command = [sys.executable, "-m", "verfedgnn", "serve", str(folder), "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=os.environ | {"COLUMNS": "200"})
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline().split("http://127.0.0.1:")[1].split()[0])
        time.sleep(4)
        found = []
        context = multiprocessing.get_context("spawn")
        for rate in [200.0, *rates]:
            for repeat in range(1 if rate == 200 else repeats):
                queue = context.Queue()
                before = cpu_seconds(server.pid)
                process = context.Process(target=_generate, args=(queue, port, rate, seconds if rate != 200 else 3, repeat, path))
                process.start()
                row = queue.get(timeout=seconds + 60)
                process.join()
                used = cpu_seconds(server.pid) - before
                entry = row | {
                    "asked": rate,
                    "repeat": repeat,
                    "cpu_per_1000": used / row["requests"] * 1000,
                    "load": os.getloadavg()[0],
                }
                print({key: round(value, 3) for key, value in entry.items()}, flush=True)
                found.append(entry)
        return found[1:]
    finally:
        server.terminate()
        server.wait(20)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--columns", type=int, default=35)
    parser.add_argument("--rates", type=float, nargs="+", default=[500.0])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make_run(Path(folder) / "run", given.items, given.columns, 0)
        measure(Path(folder) / "run", given.rates, given.seconds, given.repeats, "/v1/recommendations?user={user}&k=10")


if __name__ == "__main__":
    main()

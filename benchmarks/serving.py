"""What serving costs: latency under load, the limit, and exact scores against approximate indexes. Writes results/serving.md.

    .venv/bin/python benchmarks/serving.py [--items 100000] [--rates 500 1000] [--seconds 20] [--repeats 3]
    .venv/bin/python benchmarks/serving.py --index [--items 1000000]

The server is `verfedgnn serve` in a process of its own, on a made run: random vectors in the shape of preset best (35 columns; 70
where a gate mixes two models), every user with 50 rated items, seed 0. The load generator is another process: requests for the
ten best items of a random user arrive as a Poisson process whether or not earlier ones are answered (open loop), over 256
kept-alive connections, and a request's latency counts from when it was due; with all connections busy it is given up. `--index`
compares with faiss, which nothing else needs. Rows add up over calls in results/serving.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import platform
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
from verfedgnn.serving.top import Shelf, Wish

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
    """One kept-alive connection with at most one request on its way."""

    def __init__(self, free: list[Client]) -> None:
        self.free, self.got, self.done = free, b"", None

    def connection_made(self, transport: Any) -> None:
        """The connection stands."""
        self.transport = transport

    def ask(self, request: bytes, done: Any) -> None:
        """Send; `done` is told whether the answer was 200."""
        self.got, self.done = b"", done
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        """A part of the answer."""
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
    found = {f"p{part}": float(np.percentile(taken, part)) for part in (50, 90, 99)}
    return found | {"max": float(taken.max()), "failed": len(failed), "requests": len(due)}


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
                    "cpu_per_1000": used / max(1, row["requests"] - row["failed"]) * 1000,
                    "load": os.getloadavg()[0],
                }
                print({key: round(value, 3) for key, value in entry.items()}, flush=True)
                found.append(entry)
        return found[1:]
    finally:
        server.terminate()
        server.wait(20)


def vectors(count: int, columns: int, rng: np.random.Generator) -> np.ndarray:
    """Item or user vectors in 200 groups, which is kinder to an index than independent ones."""
    centres = np.random.default_rng(1).normal(0, 1, (200, columns))
    return (centres[rng.integers(0, 200, count)] + rng.normal(0, 0.7, (count, columns))).astype(np.float32)


def compare_indexes(items: int, columns: int, *, graph: bool) -> list[tuple[str, float, float, float]]:
    """What, seconds to build, recall of the ten best, processor ms a question: exact in batches, and faiss one by one."""
    import faiss

    faiss.omp_set_num_threads(1)
    rng = np.random.default_rng(0)
    base, asked = vectors(items, columns, rng), vectors(256, columns, rng)
    shelf = Shelf(PartyModel(torch.from_numpy(asked), torch.from_numpy(base), torch.empty(0)), ranks=False)
    wishes = [Wish(shelf.users[i], 10, np.empty(0, np.int64)) for i in range(len(asked))]
    truth = [set(found.rows) for found in shelf.best(wishes)]
    rows = []
    for batch in (1, 8, 32):
        begin = time.process_time()
        for start in range(0, len(wishes), batch):
            shelf.best(wishes[start : start + batch])
        rows.append((f"exact, {batch} at a time", 0.0, 1.0, (time.process_time() - begin) / len(wishes) * 1000))
    lists = round(4 * items**0.5)
    kinds = {
        f"IVF, {lists} lists": (
            faiss.index_factory(columns, f"IVF{lists},Flat", faiss.METRIC_INNER_PRODUCT),
            "nprobe",
            (8, 32, 128),
        )
    }
    if graph:
        kinds["HNSW, 16 links"] = (faiss.IndexHNSWFlat(columns, 16, faiss.METRIC_INNER_PRODUCT), "ef", (32, 128))
    for name, (index, knob, values) in kinds.items():
        begin = time.process_time()
        index.train(base[:: max(1, items // 100_000)])
        index.add(base)
        built = time.process_time() - begin
        for value in values:
            if knob == "ef":
                index.hnsw.efSearch = value
            else:
                index.nprobe = value
            begin = time.process_time()
            found = [index.search(asked[i : i + 1], 10)[1][0] for i in range(len(asked))]
            spent = (time.process_time() - begin) / len(asked) * 1000
            recall = float(np.mean([len(set(f.tolist()) & t) / 10 for f, t in zip(found, truth, strict=True)]))
            rows.append((f"{name}, {knob} {value}", built, recall, spent))
    return rows


def machine() -> str:
    """Processor, cores, versions."""
    name = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), "?"
    )
    return f"{name}, {os.cpu_count()} cores; Python {platform.python_version()}, torch {torch.__version__}"


def page(kept: dict[str, Any]) -> str:
    """results/serving.json as a page."""
    lines = ["# What serving costs", "", f"`benchmarks/serving.py` on {kept['machine']}.", ""]
    lines += [
        "Open-loop load on loopback, server and load generator on the same cores. The last column is the load average of the",
        "machine: on two cores, anything much above 2 means that others were computing, too, and that latencies say more about",
        "waiting for a core than about the server. Server CPU is per 1,000 requests that were answered; it falls under load,",
        "because batches grow.",
    ]
    header = "| asked, requests/s | p50, ms | p90 | p99 | largest | given up | server CPU s per 1,000 requests | load average |"
    for title, rows in kept["load"].items():
        lines += ["", f"## {title}", header, "|---|---|---|---|---|---|---|---|"]
        for r in rows:
            late = " | ".join(f"{r[name]:.1f}" if r[name] < 50_000 else "–" for name in ("p50", "p90", "p99", "max"))
            given_up = f"{r['failed']:.0f} of {r['requests']:.0f}"
            lines.append(f"| {r['asked']:.0f} | {late} | {given_up} | {r['cpu_per_1000']:.2f} | {r['load']:.1f} |")
    for title, rows in kept["index"].items():
        lines += ["", f"## {title}", "| | build, CPU s | recall of the ten best | CPU ms a question |", "|---|---|---|---|"]
        lines += [f"| {name} | {built:.1f} | {recall:.3f} | {spent:.3f} |" for name, built, recall, spent in rows]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--columns", type=int, default=35)
    parser.add_argument("--rates", type=float, nargs="+", default=[500.0])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--index", action="store_true", help="Compare with faiss instead.")
    given = parser.parse_args()
    torch.set_num_threads(1)
    path = ROOT / "results" / "serving.json"
    kept = json.loads(path.read_text()) if path.exists() else {"load": {}, "index": {}}
    kept["machine"] = machine()
    title = f"{given.items:,} items, {given.columns} columns"
    if given.index:
        kept["index"][f"Exact and approximate: {title}"] = compare_indexes(
            given.items, given.columns, graph=given.items <= 100_000
        )
    else:
        with tempfile.TemporaryDirectory() as folder:
            make_run(Path(folder) / "run", given.items, given.columns, 0)
            target = "/v1/recommendations?user={user}&k=10"
            rows = measure(Path(folder) / "run", given.rates, given.seconds, given.repeats, target)
        kept["load"].setdefault(f"Under load: {title}", []).extend(rows)
    path.write_text(json.dumps(kept, indent=1) + "\n")
    (ROOT / "results" / "serving.md").write_text(page(kept))


if __name__ == "__main__":
    main()

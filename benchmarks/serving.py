"""Measure serving: latency under load, throughput, and exact against approximate ranking. Writes results/serving.md.

    .venv/bin/python benchmarks/serving.py [--items 100000] [--rates 500 1000] [--seconds 20] [--repeats 3] [--workers 1]
    .venv/bin/python benchmarks/serving.py --many [--workers 1]
    .venv/bin/python benchmarks/serving.py --fast-path [--items 100000]
    .venv/bin/python benchmarks/serving.py --keys [--items 100000]
    .venv/bin/python benchmarks/serving.py --index [--items 1000000]

The server is `verfedgnn serve` in its own process. Its run has random vectors in the shape of preset best (35 columns, or 70 where
a gate mixes two models) and 50 rated items per user, with seed 0.

The load generator is another process. Requests for the ten best items of a random user arrive as a Poisson process, whether or not
earlier ones are answered (open loop), over 256 keep-alive connections. Latency is counted from the time a request was due. A request
that finds all connections busy is given up, and a lost connection is a failure.

`--many` sends batch requests for 1,000 users, two at a time. `--fast-path` compares two servers, with and without
`serving/http/fast_path.py`, by alternate closed-loop load, and `--keys` one with a hundred API keys, rate limits and an access
log and one with none of them. `--index` compares with faiss. A measurement of latency waits until the
machine is idle, for at most three minutes. Rows are added to results/serving.json; `--discard` drops the earlier ones.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import verfedgnn as vf
from verfedgnn.runs.ledger import Ledger
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.run import Run
from verfedgnn.serving.ranker import ItemRanker, RankingQuery

ROOT = Path(__file__).resolve().parent.parent
USERS, SEEN = 10_000, 50
PATH = "/v1/recommendations?user={user}&k=10"
KEY = "a-key-for-measurements"


def make_run(folder: Path, items: int, columns: int, seed: int) -> None:
    """Write a run folder with random vectors; the cost of serving does not depend on their values."""
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
    users, vectors = (
        torch.from_numpy(rng.normal(0, 0.3, (n, columns)).astype(np.float32)) for n in (USERS, items)
    )
    models = [PartyModel(users, vectors, vectors[:, :1].clone())]
    none = {"mechanism": "none", "guarantee": "none"}
    metrics = {
        "test": {"rmse": 1.0}, "parties": [{"name": "made", "test": {"rmse": 1.0}}], "rounds": 0, "best_round": 0, "seconds": 0.0,
        "bytes": {"up": 0, "down": 0, "per_party_per_round": 0},
        "privacy": {"gradients": none, "neighbourhoods": none, "validation": none, "masking": "none", "randomness": "none"},
    }  # fmt: skip
    parts = [np.zeros(len(user), np.int8)]
    Run(
        vf.Config.preset("best"),
        [vf.PartyData("made", table)],
        parts,
        models,
        metrics,
        [],
        Ledger(),
        torch.zeros(1),
    ).save(folder)


class Client(asyncio.Protocol):
    """A keep-alive connection with at most one open request."""

    def __init__(self, free: list[Client]) -> None:
        self.free = free
        self.got = b""
        self.done = None
        free.append(self)

    def connection_made(self, transport: Any) -> None:
        """Keep the transport of the open connection."""
        self.transport = transport

    def ask(self, request: bytes, done: Any) -> None:
        """Send a request; `done` is called with whether the status of the response is 200."""
        self.got = b""
        self.done = done
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        """Collect a part of the response."""
        self.got += data
        head, gap, body = self.got.partition(b"\r\n\r\n")
        if gap and len(body) >= int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]):
            self.free.append(self)
            self._finish(head.startswith(b"HTTP/1.1 200"))

    def connection_lost(self, error: Exception | None) -> None:
        """Fail the open request, because the server closed the connection."""
        if self in self.free:
            self.free.remove(self)
        self._finish(False)

    def _finish(self, ok: bool) -> None:
        done, self.done = self.done, None
        if done is not None:
            done(ok)


async def _load(port: int, rate: float, seconds: float, seed: int, path: str) -> dict[str, float]:
    loop, rng = asyncio.get_running_loop(), np.random.default_rng(seed)
    free: list[Client] = []
    for _ in range(256):
        await loop.create_connection(lambda: Client(free), "127.0.0.1", port)
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
            if len(latencies) == len(due) and not finished.done():
                finished.set_result(None)

        if client is None:  # all connections are busy: the request is given up
            when -= 60
            done(False)
        else:
            client.ask(
                f"GET {path.format(user=users[place])} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode(), done
            )
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
    before, busy, begin = time.process_time(), busy_seconds(), time.monotonic()
    found = run(_load(*arguments))
    own, lasted = time.process_time() - before, time.monotonic() - begin
    queue.put(found | {"generator": own, "busy": busy_seconds() - busy, "lasted": lasted})


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process and its children so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") + sum(
        cpu_seconds(int(child)) for child in children
    )


@contextmanager
def served(folder: Path, workers: int) -> Iterator[tuple[int, int]]:
    """Start a server, and yield its process id and port."""
    command = [
        sys.executable,
        "-m",
        "verfedgnn",
        "serve",
        str(folder),
        "--port",
        "0",
        "--workers",
        str(workers),
    ]
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=os.environ | {"COLUMNS": "200"}
    )
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline().split("http://127.0.0.1:")[1].split()[0])
        time.sleep(4)
        yield server.pid, port
    finally:
        server.terminate()
        server.wait(20)


def busy_seconds() -> float:
    """Return the CPU seconds of the whole machine so far, over all cores."""
    user, nice, system, _, _, *rest = (
        int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    )
    return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")


def wait_for_quiet(cores: float) -> None:
    """Wait until the machine uses fewer `cores` over two seconds, for at most three minutes."""
    end = time.monotonic() + 180
    while time.monotonic() < end:
        before = busy_seconds()
        time.sleep(2)
        if busy_seconds() - before < 2 * cores:
            return


def measure(
    folder: Path, rates: list[float], seconds: float, repeats: int, workers: int, quiet: float
) -> list[dict[str, float]]:
    """Measure latency and CPU time at each rate, with a new server that has warmed up."""
    context, found = multiprocessing.get_context("spawn"), []
    with served(folder, workers) as (pid, port):
        for rate, repeat in [(200.0, -1), *((rate, repeat) for repeat in range(repeats) for rate in rates)]:
            wait_for_quiet(quiet)
            queue, before = context.Queue(), cpu_seconds(pid)
            lasts = seconds if repeat >= 0 else 3
            process = context.Process(target=_generate, args=(queue, port, rate, lasts, abs(repeat), PATH))
            process.start()
            row = queue.get(timeout=lasts + 60)
            process.join()
            used, load = cpu_seconds(pid) - before, os.getloadavg()[0]
            others = max(0.0, row.pop("busy") - row["generator"] - used) / row.pop("lasted")
            each = used / max(1, row["requests"] - row["failed"]) * 1000
            entry = row | {
                "asked": rate,
                "workers": workers,
                "cpu_per_1000": each,
                "others": others,
                "load": load,
            }
            print({key: round(value, 3) for key, value in entry.items()}, flush=True)
            if repeat >= 0:
                found.append(entry)
    return found


def measure_many(
    folder: Path, seconds: float, repeats: int, workers: int, quiet: float
) -> list[dict[str, float]]:
    """Measure the users per second of the batch endpoint, with 1,000 users per request and two requests at a time."""
    import httpx

    found = []
    body = {"users": [str(user) for user in range(1000)], "k": 10}
    with served(folder, workers) as (pid, port), ThreadPoolExecutor(2) as pool:
        url = f"http://127.0.0.1:{port}/v1/recommendations/batch"

        def ask(until: float) -> int:
            count = 0
            with httpx.Client(timeout=60) as client:
                while time.monotonic() < until:
                    count += len(client.post(url, json=body).raise_for_status().content) > 0
            return count

        ask(time.monotonic() + 1)
        for _ in range(repeats):
            wait_for_quiet(quiet)
            before, begin = cpu_seconds(pid), time.monotonic()
            users = 1000 * sum(pool.map(ask, [begin + seconds] * 2))
            rate, used = users / (time.monotonic() - begin), (cpu_seconds(pid) - before) / users * 1000
            found.append({"workers": workers, "rate": rate, "cpu_per_1000": used, "load": os.getloadavg()[0]})
            print({key: round(value, 3) for key, value in found[-1].items()}, flush=True)
    return found


async def _saturate(port: int, seconds: float, seed: int, connections: int = 64) -> tuple[int, float]:
    """Send requests over all connections, each as soon as the last one is answered; return their number and seconds."""
    loop = asyncio.get_running_loop()
    users = iter(np.random.default_rng(seed).integers(0, USERS, 1_000_000).tolist())
    clients: list[Client] = []
    for _ in range(connections):
        await loop.create_connection(lambda: Client(clients), "127.0.0.1", port)
    begin = loop.time()
    answered, finished = 0, loop.create_future()
    busy = set(map(id, clients))

    def send(client: Client) -> None:
        if loop.time() >= begin + seconds:
            busy.discard(id(client))
            if not busy and not finished.done():
                finished.set_result(None)
            return

        def done(ok: bool) -> None:
            nonlocal answered
            assert ok, "a request failed"
            answered += 1
            send(client)

        head = f"Host: 127.0.0.1\r\nAuthorization: Bearer {KEY}\r\n\r\n"
        request = f"GET {PATH.format(user=next(users))} HTTP/1.1\r\n{head}"
        client.ask(request.encode(), done)

    for client in list(clients):
        send(client)
    await finished
    return answered, loop.time() - begin


class PassThrough:
    """ASGI middleware that does nothing, in place of the fast path."""

    def __init__(self, app: Any, **_: object) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass the request on."""
        await self.app(scope, receive, send)


def _serve_variant(folder: Path, pipe: Any, variant: str) -> None:
    from verfedgnn.serving.http import app
    from verfedgnn.serving.http.api_keys import ApiKey, digest_key
    from verfedgnn.serving.http.server_process import ServeOptions, serve

    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    options = ServeOptions(folder, None, (), False, 1)
    if variant == "no fast path":
        app.FastPath = PassThrough  # type: ignore[misc, assignment]
    if variant == "keys":
        names = [KEY, *(f"another-key-{number}" for number in range(99))]
        keys = tuple(
            ApiKey(f"key-{number}", digest_key(name), parties=("made",), per_second=1e6, burst=1e6)
            for number, name in enumerate(names)
        )
        options = replace(options, keys=keys, access_log=folder.parent / "access.jsonl")
    serve(options, listener, lambda: pipe.send(listener.getsockname()[1]))


def measure_variants(
    folder: Path, variants: dict[str, str], seconds: float, repeats: int
) -> list[dict[str, float]]:
    """Measure the throughput of two servers, named `with` and `without`, alternately on the same machine."""
    context = multiprocessing.get_context("spawn")
    processes, ports = {}, {}
    rows = []
    try:
        for name, variant in variants.items():
            ours, theirs = context.Pipe()
            processes[name] = context.Process(target=_serve_variant, args=(folder, theirs, variant))
            processes[name].start()
            ports[name] = ours.recv()
        time.sleep(4)
        for port in ports.values():
            asyncio.run(_saturate(port, 3, 0))
        for repeat in range(repeats):
            row = {"load": os.getloadavg()[0]}
            for name in list(variants) if repeat % 2 else reversed(variants):
                pid = processes[name].pid or 0
                before = cpu_seconds(pid)
                answered, lasted = asyncio.run(_saturate(ports[name], seconds, repeat))
                row[f"{name}_rate"] = answered / lasted
                row[f"{name}_cpu"] = (cpu_seconds(pid) - before) / answered * 1000
            rows.append(row)
            print({key: round(value, 3) for key, value in row.items()}, flush=True)
    finally:
        for process in processes.values():
            process.terminate()
            process.join(20)
    return rows


def vectors(count: int, columns: int, rng: np.random.Generator) -> np.ndarray:
    """Draw vectors in 200 clusters, which suit an index better than independent ones."""
    centres = np.random.default_rng(1).normal(0, 1, (200, columns))
    return (centres[rng.integers(0, 200, count)] + rng.normal(0, 0.7, (count, columns))).astype(np.float32)


def compare_indexes(items: int, columns: int, *, graph: bool) -> list[tuple[str, float, float, float]]:
    """Return the name, build seconds, recall of the ten best items and CPU ms per query of each kind of ranking."""
    import faiss

    faiss.omp_set_num_threads(1)
    rng = np.random.default_rng(0)
    base, asked = vectors(items, columns, rng), vectors(256, columns, rng)
    model = PartyModel(torch.from_numpy(asked), torch.from_numpy(base), torch.empty(0))
    ranker = ItemRanker(model, ranks=False)
    queries = [RankingQuery(vector, 10, np.empty(0, np.int64)) for vector in model.users]
    truth = [set(found.rows) for found in ranker.rank(queries)]
    rows = []
    for batch in (1, 8, 32):
        begin = time.process_time()
        for start in range(0, len(queries), batch):
            ranker.rank(queries[start : start + batch])
        rows.append(
            (f"exact, batches of {batch}", 0.0, 1.0, (time.process_time() - begin) / len(queries) * 1000)
        )
    lists = round(4 * items**0.5)
    kinds = {
        f"IVF, {lists} lists": (
            faiss.index_factory(columns, f"IVF{lists},Flat", faiss.METRIC_INNER_PRODUCT),
            "nprobe",
            (8, 32, 128),
        )
    }
    if graph:
        kinds["HNSW, 16 links"] = (
            faiss.IndexHNSWFlat(columns, 16, faiss.METRIC_INNER_PRODUCT),
            "ef",
            (32, 128),
        )
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
            recall = float(
                np.mean([len(set(f.tolist()) & t) / 10 for f, t in zip(found, truth, strict=True)])
            )
            rows.append((f"{name}, {knob} {value}", built, recall, spent))
    return rows


def machine() -> str:
    """Describe the processor, its cores and the versions of Python and torch."""
    name = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        "?",
    )
    return f"{name}, {os.cpu_count()} cores; Python {platform.python_version()}, torch {torch.__version__}"


def page(kept: dict[str, Any]) -> str:
    """Render results/serving.json as Markdown."""
    lines = ["# Cost of serving", "", f"`benchmarks/serving.py` on {kept['machine']}.", ""]
    lines += [
        "Latency is measured under open-loop load on the loopback interface; server and load generator share the cores.",
        "*Others* is the CPU use of all other processes, in cores. The load average is that of the last minute and includes the",
        "measurement itself. Server CPU is for 1,000 answered requests, summed over workers; it falls under load, because batches",
        "grow. A request is given up if all 256 connections are busy.",
    ]
    names = [
        "workers",
        "requests/s sent",
        "p50, ms",
        "p90",
        "p99",
        "maximum",
        "given up",
        "server CPU s per 1,000",
        "others",
    ]
    names += ["load average"]
    for title, rows in kept["load"].items():
        lines += ["", f"## {title}", f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
        for r in sorted(rows, key=lambda row: (row["workers"], row["asked"])):
            late = " | ".join(
                f"{r[name]:.1f}" if r[name] < 50_000 else "–" for name in ("p50", "p90", "p99", "max")
            )
            given_up, rest = (
                f"{r['failed']:.0f} of {r['requests']:.0f}",
                f"{r['others']:.2f} | {r['load']:.1f}",
            )
            lines.append(
                f"| {r['workers']} | {r['asked']:.0f} | {late} | {given_up} | {r['cpu_per_1000']:.2f} | {rest} |"
            )
    for title, rows in kept.get("many", {}).items():
        lines += [
            "",
            f"## {title}",
            "| workers | users/s | server CPU s per 1,000 users | load average |",
            "|---|---|---|---|",
        ]
        lines += [
            f"| {r['workers']} | {r['rate']:,.0f} | {r['cpu_per_1000']:.2f} | {r['load']:.1f} |" for r in rows
        ]
    if "fast_path" in kept:
        lines += [
            "",
            "## Throughput with and without the fast path",
            "",
            "`--fast-path` runs two servers of one worker, with and without `serving/http/fast_path.py`, and loads them alternately:",
            "64 connections, each of which sends the next request when the last one is answered. Figures are medians over the",
            "repeats. If the load average exceeds the number of cores, the servers compete with other work; CPU time is then more",
            "reliable than throughput.",
            "",
            "| items | repeats | with, requests/s | without | gain | range of the gain | CPU s per 1,000, with | without | load average |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        for items, rows in kept["fast_path"].items():
            gains = [row["with_rate"] / row["without_rate"] - 1 for row in rows]
            middle = {key: float(np.median([row[key] for row in rows])) for key in rows[0]}
            lines.append(
                f"| {items} | {len(rows)} | {middle['with_rate']:,.0f} | {middle['without_rate']:,.0f} | {np.median(gains):+.0%} | "
                f"{min(gains):+.0%} to {max(gains):+.0%} | {middle['with_cpu']:.2f} | {middle['without_cpu']:.2f} | {middle['load']:.1f} |"
            )
    if "keys" in kept:
        lines += [
            "",
            "## The cost of API keys",
            "",
            "`--keys` does the same with two other servers: one has a hundred API keys with rights, parties and rate limits, and writes",
            "an access log; the other one has none of these.",
            "",
            "| items | repeats | CPU s per 1,000, with keys | without | ratio | range of the ratio | load average |",
            "|---|---|---|---|---|---|---|",
        ]
        for items, rows in kept["keys"].items():
            ratios = [row["with_cpu"] / row["without_cpu"] for row in rows]
            middle = {key: float(np.median([row[key] for row in rows])) for key in rows[0]}
            lines.append(
                f"| {items} | {len(rows)} | {middle['with_cpu']:.3f} | {middle['without_cpu']:.3f} | {np.median(ratios):.2f} | "
                f"{min(ratios):.2f} to {max(ratios):.2f} | {middle['load']:.1f} |"
            )
    for title, rows in kept["index"].items():
        lines += [
            "",
            f"## {title}",
            "| ranking | build, CPU s | recall of the ten best | CPU ms per query |",
            "|---|---|---|---|",
        ]
        lines += [
            f"| {name} | {built:.1f} | {recall:.3f} | {spent:.3f} |" for name, built, recall, spent in rows
        ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--columns", type=int, default=35)
    parser.add_argument("--rates", type=float, nargs="+", default=[500.0])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument(
        "--quiet",
        type=float,
        default=0.2,
        help="Cores that other processes may use when a measurement starts.",
    )
    parser.add_argument("--discard", action="store_true", help="Drop the earlier rows of this table.")
    parser.add_argument("--many", action="store_true", help="Measure batch requests instead.")
    parser.add_argument(
        "--fast-path", action="store_true", help="Measure throughput without the fast path instead."
    )
    parser.add_argument(
        "--keys", action="store_true", help="Measure throughput with and without API keys instead."
    )
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
    elif given.fast_path or given.keys:
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            make_run(run, given.items, given.columns, 0)
            variants = {"with": "keys", "without": "plain"}
            if given.fast_path:
                variants = {"with": "plain", "without": "no fast path"}
            measured = measure_variants(run, variants, given.seconds, given.repeats)
        kept.setdefault("fast_path" if given.fast_path else "keys", {})[f"{given.items:,}"] = measured
    else:
        kind, name = ("many", "Batch requests for 1,000 users") if given.many else ("load", "Under load")
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            make_run(run, given.items, given.columns, 0)
            if given.many:
                rows = measure_many(run, given.seconds, given.repeats, given.workers, given.quiet)
            else:
                rows = measure(run, given.rates, given.seconds, given.repeats, given.workers, given.quiet)
        all_rows = kept.setdefault(kind, {})
        before = [] if given.discard else all_rows.get(f"{name}: {title}", [])
        all_rows[f"{name}: {title}"] = before + rows
    path.write_text(json.dumps(kept, indent=1) + "\n")
    (ROOT / "results" / "serving.md").write_text(page(kept))


if __name__ == "__main__":
    main()

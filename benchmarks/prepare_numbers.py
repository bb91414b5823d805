"""Measure the preparation of synthetic events: time, memory and disk. Writes results/scale/prepare/.

    .venv/bin/python benchmarks/prepare_numbers.py generate 500 events/     # millions of events, in parts of 10
    .venv/bin/python benchmarks/prepare_numbers.py measure events/ --millions 50
    .venv/bin/python benchmarks/prepare_numbers.py measure events/ --millions 500
    .venv/bin/python benchmarks/prepare_numbers.py measure events/ --millions 10 --engine spark    # or ray
    .venv/bin/python benchmarks/prepare_numbers.py read prepared-50/        # memory of a party's training data

A measurement that was stopped is resumed, and its times are added up. Users are 20 million, some of whom are
more active than others; items are a million, with Zipf's law; a tenth of the events are carts, another
tenth purchases.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from verfedgnn.data.frame_preparation import prepare as prepare_source
from verfedgnn.data.table_sources import table_stem
from verfedgnn.research.experiments.training_cell import commit

FOLDER = Path(__file__).resolve().parent.parent / "results" / "scale" / "prepare"
USERS = 20_000_000
ITEMS = 1_000_000
PART = 10_000_000
BATCH = 1 << 20
WEIGHTS = {"view": 1.0, "cart": 3.0, "purchase": 5.0}


def generate(millions: int, folder: Path) -> None:
    """Write parts of 10 million events each; parts that exist are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    for part in range(millions * 1_000_000 // PART):
        path = folder / f"part-{part:03}.parquet"
        if path.exists():
            continue
        rng = np.random.default_rng(part)
        partial = path.with_suffix(".partial")
        with pq.ParquetWriter(partial, _batch(rng, 0, 1).schema, compression="zstd") as writer:
            for start in range(0, PART, BATCH):
                writer.write_table(_batch(rng, part * PART + start, min(BATCH, PART - start)))
        partial.rename(path)


def _batch(rng: np.random.Generator, first: int, rows: int) -> pa.Table:
    """Return events in the order of time. Neighbouring ranks have distant ids."""
    user = (USERS * rng.random(rows) ** 1.5).astype(np.int64) * 7919 % USERS
    item = np.exp(rng.random(rows) * np.log(ITEMS)).astype(np.int64) * 104_729 % ITEMS
    kind = np.array([0] * 8 + [1, 2], np.int8)[rng.integers(0, 10, rows)]
    kinds = pa.DictionaryArray.from_arrays(pa.array(kind), pa.array(list(WEIGHTS)))
    when = 1_700_000_000 + (first + np.arange(rows)) // 10
    return pa.table({"user_id": user, "product_id": item, "event_type": kinds, "timestamp": when})


def open_source(engine: str, files: list[Path]) -> Any:
    """Return the files, or a frame of an engine that reads them."""
    names = [str(file) for file in files]
    if engine == "spark":
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.master("local[2]").config("spark.sql.files.maxPartitionBytes", "16m")
        return builder.getOrCreate().read.parquet(*names)
    if engine == "ray":
        import ray

        ray.init(num_cpus=2, include_dashboard=False)
        return ray.data.read_parquet(names)
    return files


def measure(events: Path, millions: int, memory: str, threads: int, out: Path, engine: str) -> None:
    """Prepare the first parts and record what it took."""
    files = sorted(events.glob("*.parquet"))[: millions * 1_000_000 // PART]
    assert len(files) * PART == millions * 1_000_000, "generate more events first"
    record = FOLDER / (f"{millions}.json" if engine == "files" else f"{engine}-{millions}.json")
    FOLDER.mkdir(parents=True, exist_ok=True)
    earlier = out.with_suffix(".json")
    steps: dict[str, dict[str, float]] = json.loads(earlier.read_text()) if earlier.exists() else {}
    last = [time.monotonic(), _cpu()]
    spent = 0.0

    def watch(step: str, done: int, total: int | None) -> None:
        nonlocal spent
        now = [time.monotonic(), _cpu()]
        entry = steps.setdefault(step, {"wall": 0.0, "cpu": 0.0, "peak": 0.0, "disk": 0.0})
        entry["wall"] += now[0] - last[0]
        entry["cpu"] += now[1] - last[1]
        entry["peak"] = max(entry["peak"], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
        last[:] = now
        if now[0] - spent > 10:
            spent = now[0]
            entry["disk"] = max(entry["disk"], _size(out))
            earlier.write_text(json.dumps(steps))
            print(f"{step} {done:,} of {total or 0:,}", {k: round(v) for k, v in entry.items()}, flush=True)

    source = open_source(engine, files)
    ratings = prepare_source(source, out, memory=memory, threads=threads, events=WEIGHTS, progress=watch)
    watch("shards", 1, 1)
    earlier.unlink(missing_ok=True)
    found = {
        "command": f"benchmarks/prepare_numbers.py measure {table_stem(events)} --millions {millions} "
        f"--memory {memory} --threads {threads}" + f" --engine {engine}" * (engine != "files"),
        "commit": commit(),
        "events": millions * 1_000_000,
        "ratings": len(ratings),
        "users": ratings.n_users,
        "items": ratings.n_items,
        "input": sum(file.stat().st_size for file in files),
        "output": _size(out),
        "steps": steps,
    }
    record.write_text(json.dumps(found, indent=2) + "\n")
    print(record.read_text())


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _size(folder: Path) -> int:
    sizes = []
    for file in folder.rglob("*"):
        try:
            sizes.append(file.stat().st_size)
        except OSError:  # Removed in the meantime.
            continue
    return sum(sizes)


def read(folder: Path) -> None:
    """Print the memory of a process at each stage from the folder to the data of a training."""
    import torch

    from verfedgnn.config import Config
    from verfedgnn.core.graph import build_graph
    from verfedgnn.data.parties import PartyData, align_users
    from verfedgnn.data.rating_reader import read_ratings
    from verfedgnn.runs.prepared_data import prepare

    def show(stage: str) -> None:
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        kept = int(status["RssAnon"].split()[0]) * 1024
        found[stage] = {"anonymous": kept, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
        print(stage, f"{kept / 1e9:.2f} GB kept, {found[stage]['peak'] / 1e9:.2f} GB at the peak", flush=True)

    found: dict[str, dict[str, int]] = {}
    show("start")
    ratings = read_ratings(folder)
    show("read")
    (party,) = align_users([PartyData("shop", ratings)])
    show("aligned")
    (ready,) = prepare([party], Config.preset("best"), torch.device("cpu"))
    show("split")
    graph = build_graph(
        ready.train.user.numpy(), ready.train.item.numpy(), users=ratings.n_users, items=ratings.n_items
    )
    show("graph")
    FOLDER.mkdir(parents=True, exist_ok=True)
    about = {"ratings": len(ratings), "users": ratings.n_users, "edges": len(graph.order), "stages": found}
    (FOLDER / f"read-{folder.name}.json").write_text(json.dumps(about, indent=2) + "\n")


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    generating = commands.add_parser("generate")
    generating.add_argument("millions", type=int)
    generating.add_argument("folder", type=Path)
    measuring = commands.add_parser("measure")
    measuring.add_argument("events", type=Path)
    measuring.add_argument("--millions", type=int, required=True)
    measuring.add_argument("--memory", default="4GB")
    measuring.add_argument("--threads", type=int, default=2)
    measuring.add_argument("--engine", choices=["files", "spark", "ray"], default="files")
    measuring.add_argument("--out", type=Path, help="Default: prepared-MILLIONS beside the events")
    measuring.add_argument("--delete", action="store_true", help="delete the folder afterwards")
    reading = commands.add_parser("read")
    reading.add_argument("folder", type=Path)
    given = parser.parse_args()
    if given.command == "generate":
        generate(given.millions, given.folder)
    elif given.command == "read":
        read(given.folder)
    else:
        out = given.out or given.events.parent / f"prepared-{given.millions}"
        measure(given.events, given.millions, given.memory, given.threads, out, given.engine)
        if given.delete:
            shutil.rmtree(out)


if __name__ == "__main__":
    main()

"""Time and memory of a round with several workers, of a party or of the coordinator: writes results/scale/workers.json.

    python benchmarks/worker_numbers.py                       # on two cores: 260,000 users, 1 and 2 workers
    python benchmarks/worker_numbers.py --shape yelp --workers 1 2 4 8 --threads 4
    python benchmarks/worker_numbers.py --role coordinator --workers 1 2 4 8

One party answers rounds of a federation of ten: it unpacks a RoundStart, computes, protects, masks and packs its reply. Sums and
neighbourhoods in the messages are random, and so are the keys of its masks; their cost is that of real ones. Every worker has one
thread. `--threads` adds one process with that many threads, for comparison. All cases take turns in one run.
`coordinator_rounds.py` says what a round of the coordinator is.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

import coordinator_rounds
from verfedgnn.config import Config
from verfedgnn.core.pairs import PartyInput
from verfedgnn.core.process_memory import keep_freed_memory
from verfedgnn.core.random_streams import simulated_secret
from verfedgnn.core.worker_group import WorkerGroup
from verfedgnn.data.synthetic_shapes import LIKE
from verfedgnn.privacy.masking import MaskStream
from verfedgnn.protocol.party.candidate import Candidate
from verfedgnn.protocol.party.party import Party
from verfedgnn.protocol.party.party_masks import PartyMasks
from verfedgnn.protocol.party.policy import Policy
from verfedgnn.protocol.round.aggregation import neighbourhood_shape
from verfedgnn.protocol.round.replica import Replica
from verfedgnn.protocol.round.user_blocks import UserBlocks
from verfedgnn.protocol.round.worker_orders import Order, send_message, tell_all, wait_for_order
from verfedgnn.protocol.wire.integer_packing import use_packing_threads
from verfedgnn.protocol.wire.messages import Message, RoundStart, Welcome, decode, encode, encode_parts
from verfedgnn.research.bench.measure import machine, peak_memory
from verfedgnn.research.bench.synthetic_party import made_party
from verfedgnn.research.experiments.training_cell import commit

FILE = Path(__file__).resolve().parent.parent / "results" / "scale" / "workers.json"
PARTIES = 10
WARM = 2


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--role", choices=("party", "coordinator"), default="party")
    parser.add_argument("--shape", choices=("yelpzip", "yelp"), default="yelpzip")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--raters", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=2, help="turns of every case")
    parser.add_argument("--out", type=Path, default=FILE)
    options = parser.parse_args()
    cases = [(count, 1) for count in options.workers] + ([(1, options.threads)] if options.threads else [])
    found: dict[tuple[int, int], list[dict[str, Any]]] = {case: [] for case in cases}
    for _ in range(options.repeats):
        for case in cases:
            found[case].append(measure(*case, options))
            print(case, found[case][-1], flush=True)
    first = middle(found[cases[0]], "seconds")
    rows = [
        {
            "workers": workers,
            "threads": threads,
            "seconds": middle(turns, "seconds"),
            "speedup": round(first / middle(turns, "seconds"), 2),
            **(of_coordinator(turns) if options.role == "coordinator" else {}),
            "memory": [max(each["memory"][rank] for each in turns) for rank in range(workers)],
        }
        for (workers, threads), turns in found.items()
    ]
    digests = {each["digest"] for turns in found.values() for each in turns if "digest" in each}
    assert len(digests) <= 1, "the parameters depend on the number of workers"
    about = {
        "role": options.role,
        "shape": options.shape,
        "parties": PARTIES,
        "raters": options.raters,
        "rounds": options.rounds,
    }
    kept = json.loads(options.out.read_text()) if options.out.exists() else []
    record = {**about, "rows": rows, "machine": machine(), "commit": commit()}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps([*kept, record], indent=1) + "\n")


def middle(turns: list[dict[str, Any]], name: str) -> float:
    """Return the median of all rounds."""
    return round(median(seconds for each in turns for seconds in each[name]), 3)


def of_coordinator(turns: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the seconds of a checkpoint, and each worker's seconds of CPU for a round with its checkpoint."""
    cpu = [min(each["cpu"][rank] for each in turns) for rank in range(len(turns[0]["cpu"]))]
    return {"checkpoint": middle(turns, "checkpoint"), "cpu": cpu}


def measure(workers: int, threads: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return the seconds of each round, and the peak memory of each worker in bytes."""
    context = get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        here, there = context.Pipe()
        args = (workers, threads, options, Path(folder), there)
        processes = [context.Process(target=work, args=(rank, *args)) for rank in range(workers)]
        for process in processes:
            process.start()
        found = here.recv()
        memory = [here.recv() for _ in processes]
        for process in processes:
            process.join()
    for name, values in found.items():
        if isinstance(values, list):
            found[name] = [round(each, 3) for each in values]
    ordered = sorted(memory)
    return found | {"memory": [size for _, size, _ in ordered], "cpu": [cpu for *_, cpu in ordered]}


def work(
    rank: int, workers: int, threads: int, options: argparse.Namespace, folder: Path, link: Connection
) -> None:
    """Run one worker; the first one measures."""
    keep_freed_memory()
    torch.set_num_threads(threads)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    group = None if workers == 1 else WorkerGroup.connect(rank, workers, folder / "meeting")
    config = Config.preset(
        "best",
        model="ggnn",
        raters=options.raters,
        epochs=10**6,
        evaluate_every=10**6,
        patience=0,
        lists=False,
    )
    if rank == 0:
        use_packing_threads(workers)
    began = time.process_time()
    if options.role == "coordinator":
        found = run_coordinator(group, config, options, folder)
    else:
        found = run_party(group, config, options)
    if rank == 0:
        link.send(found)
        if group is not None:
            tell_all(group, Order.END)
    if options.role == "coordinator" and rank:
        found["cpu"] = (time.process_time() - began) / (options.rounds + WARM)
    link.send((rank, peak_memory(), round(found.get("cpu", 0.0), 3)))
    if group is not None:
        group.close()


def run_coordinator(
    group: WorkerGroup | None, config: Config, options: argparse.Namespace, folder: Path
) -> dict[str, Any]:
    """Run a worker of the coordinator."""
    if group is not None and group.rank:
        coordinator_rounds.obey(group, config, folder)
        return {}
    found = coordinator_rounds.lead(group, config, LIKE[options.shape], options.rounds + WARM, folder)
    return found | {name: found[name][WARM:] for name in ("seconds", "checkpoint")}


def run_party(group: WorkerGroup | None, config: Config, options: argparse.Namespace) -> dict[str, Any]:
    """Run a worker of a party."""
    data = make_data(options.shape)
    candidate = Candidate(data, config, simulated_secret(0, 0), policy=Policy(), workers=group)
    if group is not None and group.rank:
        obey(group, candidate)
        return {}
    return {"seconds": lead(candidate, config, data, options.rounds)}


def make_data(shape: str) -> PartyInput:
    """Return one of ten parties that divide a synthetic data set of a known shape."""
    like = LIKE[shape]
    return made_party("p0", like.users, like.items, like.ratings, PARTIES)


def obey(group: WorkerGroup, candidate: Candidate) -> None:
    """Answer the first worker."""
    party: Party | None = None
    while (ordered := wait_for_order(group)).order is not Order.END:
        if isinstance(ordered.message, Welcome):
            party = candidate.welcome(ordered.message)
        elif isinstance(ordered.message, RoundStart):
            assert party is not None
            send_message(group, 0, party.answer_round(ordered.message))


def lead(candidate: Candidate, config: Config, data: PartyInput, rounds: int) -> list[float]:
    """Join a federation that does not exist, and return the seconds of its rounds."""
    rng = np.random.default_rng(0)
    model = candidate.whole.model
    items = [data.items] * PARTIES
    ratings = PARTIES * len(data.train)
    parameters, accumulator = torch.full((2, model.size), 0.1)  # random numbers would take long to draw
    replica = Replica(config, model, items, ratings, parameters, accumulator, 0)
    stay = candidate.hello().stay
    welcome = Welcome(
        index=0,
        items=items,
        stay=stay,
        training="t",
        config=config.digest(),
        ratings=ratings,
        round=0,
        typical=3.0,
        digest=replica.state_digest(),
        **replica.full_copy(),
    )
    del replica
    party = candidate.welcome(welcome)
    del welcome
    masks = party.masks
    assert isinstance(masks, PartyMasks)
    streams = [MaskStream(rng.bytes(32), bool(n % 2)) for n in range(PARTIES)]
    masks.check_start = lambda message: None  # type: ignore[method-assign]
    masks.streams = lambda message, context: (context(), streams)[1]  # type: ignore[method-assign]
    shape = neighbourhood_shape(config, UserBlocks(config, model).all_users)
    # Half of the coordinates are 0.
    updates = np.where(
        rng.random(model.size, np.float32) < 0.5, rng.integers(-3, 4, model.size, np.int8), np.int8(0)
    )
    shared = rng.integers(-500, 500, shape).astype(np.int16)
    seconds = []
    for round in range(1, rounds + WARM + 1):
        later = round > 1
        start = RoundStart(
            round=round,
            trip=0,
            active=list(range(PARTIES)),
            train=True,
            exchange=(round - 1) % config.exchange.every == 0,
            evaluate=False,
            best_round=0,
            updates_from=round - 1,
            update_parties=[list(range(PARTIES))] if later else [],
            updates=updates if later else None,
            neighbourhood_parties=list(range(PARTIES)) if later else [],
            neighbourhood_trip=(round - 1, 0) if later else (0, 0),
            neighbourhoods=shared if later else None,
        )
        message = bytearray(encode(start))
        began = time.perf_counter()
        encode_parts(answer(party.handle(decode(message))))
        seconds.append(time.perf_counter() - began)
    return seconds[WARM:]


def answer(message: Message | None) -> Message:
    assert message is not None
    return message


if __name__ == "__main__":
    main()

"""Rounds of a coordinator with several workers, measured by `worker_numbers.py --role coordinator`.

Ten parties reply to every round. Their replies are random residues, the last of which makes all of them add up to small numbers
under ten masks. So the coordinator unpacks, adds up, unmasks, hashes and steps as it does in a federation. Not measured are what
encrypts and hashes messages on their way, and the few bytes of seeds and shares.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verfedgnn.config import Config
from verfedgnn.core.worker_group import WorkerGroup
from verfedgnn.data.synthetic_shapes import Shape
from verfedgnn.federation.coordinator_checkpoints import CHECKPOINT, CoordinatorCheckpoints
from verfedgnn.federation.coordinator_worker import WorkerTraining
from verfedgnn.federation.stages import Stage
from verfedgnn.privacy.masking import GRADIENT, NEIGHBOURHOOD, MaskStream, add_masks
from verfedgnn.protocol.coordinator.coordinator import Coordinator
from verfedgnn.protocol.coordinator.divided_rows import RowWorkers
from verfedgnn.protocol.round.aggregation import neighbourhood_type
from verfedgnn.protocol.round.worker_orders import Order, wait_for_order
from verfedgnn.protocol.wire.fixed_point import sum_bits, to_residues
from verfedgnn.protocol.wire.messages import Hello, RoundReply, decode, encode, encode_parts

PARTIES = 10
NAMES = [f"p{n}" for n in range(PARTIES)]
MOST = 9
"""Rounds that can be measured; their number has one digit, so that replies need no packing between rounds."""


def obey(group: WorkerGroup, config: Config, folder: Path) -> None:
    """Work as one of the other workers."""
    training: WorkerTraining | None = None
    while (ordered := wait_for_order(group)).order is not Order.END:
        if ordered.order is Order.STAGE:
            training = WorkerTraining(folder, Stage("ratings", config), group, "cpu")
        elif training is not None:
            training.obey(ordered)


def lead(
    group: WorkerGroup | None, config: Config, shape: Shape, rounds: int, folder: Path
) -> dict[str, Any]:
    """Run rounds as the first worker, and return the seconds of each and of its checkpoint, the CPU seconds of both, and the last hash."""
    checkpoints = CoordinatorCheckpoints(folder / CHECKPOINT, "ratings", group)
    checkpoints.read()
    coordinator = start(group, config, shape)
    rng = np.random.default_rng(0)
    streams = [MaskStream(rng.bytes(32), bool(n % 2)) for n in range(PARTIES)]
    replies = {exchange: make_replies(coordinator, streams, rng, exchange) for exchange in (True, False)}
    seconds: list[float] = []
    written: list[float] = []
    spent = time.process_time()
    coordinator.open()
    for round in range(1, min(rounds, MOST) + 1):
        exchange = next(iter(coordinator.open_parties.values())).exchange
        texts = [of_round(data, round) for data in replies[exchange]]
        began = time.perf_counter()
        for number, name in enumerate(NAMES):
            reply = decode(texts[number == PARTIES - 1], coordinator.largest_array)
            assert isinstance(reply, RoundReply)
            coordinator.receive(name, reply)
        del reply
        start_message = next(iter(coordinator.open_parties.values()))
        context = coordinator.rows.mask_context(start_message)  # its hashes, as for masks
        assert context
        close(coordinator, streams)
        coordinator.open()
        encode_parts(next(iter(coordinator.open_parties.values())))
        seconds.append(time.perf_counter() - began)
        began = time.perf_counter()
        checkpoints.write(round, coordinator.checkpoint(), {})
        written.append(time.perf_counter() - began)
    cpu = (time.process_time() - spent) / len(seconds)
    return {"seconds": seconds, "checkpoint": written, "cpu": cpu, "digest": coordinator.rows.digest()}


def start(group: WorkerGroup | None, config: Config, shape: Shape) -> Coordinator:
    """Return a coordinator that all parties have joined."""
    workers = None if group is None else RowWorkers(group, config, "ratings")
    coordinator = Coordinator(config, NAMES, workers=workers)
    about = {
        "users": shape.users,
        "items": max(1, shape.items // PARTIES),
        "ratings": shape.ratings // PARTIES,
    }
    for name in NAMES:
        hello = Hello(party=name, scale=(1.0, 5.0), config=config.digest(), mask_key="ab" * 32, **about)
        coordinator.hello(hello)
    for name in NAMES:
        coordinator.deliveries.welcome(name, 0)  # they have drawn the first parameters themselves
        coordinator.members.present.add(name)
    return coordinator


def close(coordinator: Coordinator, streams: list[MaskStream]) -> None:
    """Close the open trip as one with masks; `streams` are the masks in its sum."""
    add_up = coordinator.rows.add_up
    coordinator.rows.add_up = lambda round, trip, _: add_up(round, trip, streams)  # type: ignore[method-assign]
    coordinator.close()
    coordinator.rows.add_up = add_up  # type: ignore[method-assign]


def make_replies(
    coordinator: Coordinator, streams: list[MaskStream], rng: np.random.Generator, exchange: bool
) -> list[bytearray]:
    """Return the reply of the first nine parties, and that of the last one."""
    kind = coordinator.gradient_type
    arrays = [halves(coordinator.model.size, kind, sum_bits(PARTIES), 3, streams, GRADIENT, rng)]
    if exchange:
        shape = coordinator.blocks.all_users
        size = (coordinator.config.model.layers, shape.model.users, coordinator_columns(coordinator))
        found = halves(
            int(np.prod(size)), neighbourhood_type(coordinator.config), 16, 500, streams, NEIGHBOURHOOD, rng
        )
        arrays.append((found[0].reshape(size), found[1].reshape(size)))
    return [
        bytearray(
            encode(
                RoundReply(
                    round=1,
                    trip=0,
                    gradient=arrays[0][last],
                    neighbourhoods=arrays[1][last] if exchange else None,
                )
            )
        )
        for last in (0, 1)
    ]


def coordinator_columns(coordinator: Coordinator) -> int:
    coordinator.round = 1
    columns = coordinator.neighbourhood_shape[2]
    coordinator.round = 0
    return columns


def halves(
    size: int,
    kind: np.dtype[Any],
    bits: int,
    largest: int,
    streams: list[MaskStream],
    use: int,
    rng: np.random.Generator,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return what nine parties send and what the last one sends, so that all add up to small numbers, half of them 0, under masks."""
    signed = np.dtype(f"i{kind.itemsize}")
    small = rng.integers(-largest, largest + 1, size, signed) * (rng.random(size, np.float32) < 0.5)
    noise = to_residues(rng.integers(0, 1 << bits, size, f"u{kind.itemsize}").view(signed), bits)
    last = add_masks(small.astype(signed), streams, use) - (PARTIES - 1) * noise.view(signed)
    return noise.astype(kind), to_residues(last.astype(signed), bits).astype(kind)


def of_round(data: bytearray, round: int) -> bytearray:
    """Return the bytes of a reply to another round."""
    place = data.index(b'"round":', 0, 200) + len(b'"round":')
    data[place : place + 1] = str(round).encode()
    return data

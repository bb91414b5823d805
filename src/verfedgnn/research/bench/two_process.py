"""A party and a coordinator of P parties, each in a process of its own, exchanging bytes.

The other parties are simulated: their replies are the party's own, shifted along the users. So sums are as
dense as real ones, and only one party has to be computed.
"""

from __future__ import annotations

import json
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

from verfedgnn.core.process_memory import keep_freed_memory
from verfedgnn.core.random_streams import simulated_secret
from verfedgnn.privacy.projection import Projection
from verfedgnn.protocol.coordinator.coordinator import Coordinator
from verfedgnn.protocol.party import incoming, outgoing
from verfedgnn.protocol.party import stacked_round as together
from verfedgnn.protocol.party.candidate import Candidate
from verfedgnn.protocol.round.replica import Replica
from verfedgnn.protocol.wire.messages import Hello, RoundReply, RoundStart, Welcome, decode, encode
from verfedgnn.research.bench.measure import Phases, medians, peak_memory, timed
from verfedgnn.research.bench.reference_rounds import bare_products
from verfedgnn.research.bench.synthetic_party import made_party, scale_config
from verfedgnn.runs.ledger import Ledger

PLACES: dict[str, list[tuple[Any, str]]] = {
    "products": [(together, "compute")],
    "projection": [(Projection, "project"), (Projection, "reconstruct")],
    "quantization": [(outgoing, "protect"), (outgoing, "to_fixed"), (incoming, "from_fixed")],
    "public step": [(Replica, "apply")],
}
"""Functions of each phase. Time in a nested phase counts there; time in no phase is the rest."""


def memory(users: int, dim: int = 20) -> float:
    """Return the approximate memory of both processes in GB."""
    return 0.6 + 2.6e-6 * users * dim / 20


def measure(
    *,
    users: int,
    items: int,
    ratings: int,
    parties: int = 10,
    dim: int = 20,
    layers: int = 2,
    user_blocks: int = 1,
    bits: int = 32,
    participation: float = 0.5,
    rounds: int = 6,
    warm: int = 2,
    floor: bool = False,
    seed: int = 0,
) -> dict[str, Any]:
    """Return seconds, memory and bytes of rounds after the first `warm` ones; this process is the
    coordinator's.
    """
    settings = {
        "dim": dim,
        "layers": layers,
        "user_blocks": user_blocks,
        "bits": bits,
        "participation": participation,
        "seed": seed,
    }
    sizes = {"users": users, "items": items, "ratings": ratings, "parties": parties, "seed": seed}
    context = get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(
        target=_party, args=(there, sizes, settings, torch.get_num_threads(), floor), daemon=True
    )
    process.start()
    there.close()
    try:
        return _coordinate(here, parties, settings, rounds, warm)
    finally:
        here.close()
        process.join(10)


def _coordinate(
    link: Connection, parties: int, settings: dict[str, Any], rounds: int, warm: int
) -> dict[str, Any]:
    base = peak_memory()
    config = scale_config(**settings)
    names = [f"party-{p}" for p in range(parties)]
    ledger = Ledger()
    coordinator = Coordinator(config, names)
    hello = decode(link.recv_bytes())
    assert isinstance(hello, Hello)
    for name in names:
        coordinator.hello(hello.model_copy(update={"party": name}))
    welcome = encode(coordinator.welcome(names[0]))
    link.send_bytes(welcome)
    for name in names[1:]:
        coordinator.welcome(name)
    own: RoundReply | None = None
    times: list[dict[str, float]] = []
    for number in range(1, warm + rounds + 1):
        spent: list[dict[str, float]] = []
        if number == warm + 1:
            ledger = Ledger()
            link.send_bytes(b"count")
        # The party takes part in the first round, so that there is a reply from which to simulate the others.
        among = list(range(coordinator.active_count)) if number == 1 else None
        starts: dict[str, RoundStart] = {}
        spent.append(timed(lambda: starts.update(coordinator.open(among))))  # noqa: B023
        encoded: dict[int, bytes] = {}
        for name, start in starts.items():
            if id(start) not in encoded:
                spent.append(timed(lambda: encoded.__setitem__(id(start), encode(start))))  # noqa: B023
            ledger.record("RoundStart", "down", name, len(encoded[id(start)]))
        if names[0] in starts:
            link.send_bytes(encoded[id(starts[names[0]])])
        encoded.clear()
        replies = {}
        if names[0] in starts:
            replies[names[0]] = link.recv_bytes()
            found = decode(replies[names[0]])
            assert isinstance(found, RoundReply)
            own = found
        assert own is not None
        for index, name in enumerate(names):
            if name in starts and index:
                replies[name] = encode(_played(own, starts[name], coordinator, index))
        for name in list(replies):
            data = replies.pop(name)
            ledger.record("RoundReply", "up", name, len(data))
            spent.append(timed(lambda: coordinator.receive(name, decode(data))))  # type: ignore[arg-type]  # noqa: B023
        spent.append(timed(coordinator.close))
        times.append({key: sum(each[key] for each in spent) for key in spent[0]})
    link.send_bytes(b"")
    measured = link.recv_bytes()
    assert measured
    share = parties * rounds
    return {
        "users": coordinator.model.users,
        "coordinator": {**medians(times[warm:]), "memory": peak_memory() - base, "memory_before": base},
        "party": json.loads(measured),
        "bytes": {
            "down": ledger.total("down") / share,
            "up": ledger.total("up") / share,
            "per_party_per_round": ledger.total() / share,
            "welcome": len(welcome),
        },
        "active": coordinator.active_count,
        "rounds": rounds,
    }


def _played(own: RoundReply, start: RoundStart, coordinator: Coordinator, index: int) -> RoundReply:
    """Return the reply of a simulated party: a known reply shifted along the users, cut or repeated to the
    requested shape.
    """
    rows = 1 + 7919 * index
    update: dict[str, Any] = {"round": start.round, "trip": start.trip, "attempt": start.attempt}
    assert own.gradient is not None
    dim = coordinator.config.model.dim
    update["gradient"] = np.resize(np.roll(own.gradient, rows * dim), coordinator.block.model.size)
    if start.exchange:
        assert own.neighbourhoods is not None
        shape = coordinator.neighbourhood_shape
        moved = np.roll(own.neighbourhoods, rows, axis=1)
        if moved.shape != shape:
            moved = np.resize(moved, shape)
        update["neighbourhoods"] = moved
    return own.model_copy(update=update)


def _party(
    link: Connection, sizes: dict[str, int], settings: dict[str, Any], threads: int, floor: bool
) -> None:
    """Run the party's process."""
    keep_freed_memory()
    torch.set_num_threads(threads)
    base = peak_memory()
    data = made_party("party-0", **sizes)
    config = scale_config(**settings)
    candidate = Candidate(data, config, secret=simulated_secret(0, 1))
    link.send_bytes(encode(candidate.hello()))
    welcome = decode(link.recv_bytes())
    assert isinstance(welcome, Welcome)
    member = candidate.welcome(welcome)
    ready = peak_memory()
    phases = Phases()
    times: list[dict[str, float]] = []
    split: list[dict[str, float]] = []

    def answer(message: bytes) -> bytes:
        with phases.phase("encoding"):
            start = decode(message)
        reply = member.handle(start)
        assert reply is not None
        with phases.phase("encoding"):
            return encode(reply)

    with phases.watching(PLACES):
        while message := link.recv_bytes():
            if message == b"count":
                times = []
                split = []
                continue
            replies: list[bytes] = []
            phases.take()
            times.append(timed(lambda: replies.append(answer(message))))  # noqa: B023
            split.append(phases.take())
            link.send_bytes(replies.pop())
    found = {
        **medians(times),
        "rounds": len(times),
        "phases": {
            name: sum(each.get(name, 0.0) for each in split) / len(split)
            for name in sorted({n for s in split for n in s})
        },
        "memory": peak_memory() - base,
        "memory_before": base,
        "memory_joined": ready - base,
        "edges": len(member.graph.order),
        "train": len(data.train),
    }
    if floor:
        products = bare_products([member])
        products()
        found["floor"] = medians([timed(products) for _ in range(5)])
    link.send_bytes(json.dumps(found).encode())

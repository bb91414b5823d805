"""The phases of a round, and its ratio to its bare products and to a straightforward implementation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from verfedgnn.config import Config
from verfedgnn.core.random_streams import simulated_secret
from verfedgnn.data import read_parties
from verfedgnn.protocol.coordinator.coordinator import Coordinator
from verfedgnn.protocol.party.candidate import Candidate
from verfedgnn.reports.document import Block, Paragraph, Table
from verfedgnn.research.bench.bench_suite import BenchScope, Figures, Question, Task
from verfedgnn.research.bench.measure import Phases, medians, timed
from verfedgnn.research.bench.reference_rounds import bare_products, straightforward
from verfedgnn.research.bench.two_process import PLACES
from verfedgnn.runs.prepared_data import prepare
from verfedgnn.training import local_runtime as local

ORDER = ("products", "projection", "quantization", "encoding", "public step", "rest")


def federation(data: str, config: Config, device: str = "cpu") -> local.LocalRuntime:
    """Return the local runtime of ten parties on a data set."""
    there = torch.device(device)
    prepared = prepare(read_parties(data, parties=10, seed=config.seed), config, there)
    members = [
        Candidate(p.input, config, simulated_secret(config.seed, i), there) for i, p in enumerate(prepared)
    ]
    return local.LocalRuntime(Coordinator(config, [p.party.name for p in prepared], there), members)


def measure(*, data: str, rounds: int = 30, every: int = 10) -> dict[str, Any]:
    """Alternate rounds, bare products and, now and then, the straightforward version; then split rounds
    into phases.
    """
    runtime = federation(data, Config.preset("paper", model="gcn"))
    parties = list(runtime.parties.values())
    floor = bare_products(parties)
    plain = straightforward(parties)
    for _ in range(5):
        runtime.round()
        floor()
    plain()
    times: dict[str, list[dict[str, float]]] = {"round": [], "floor": [], "straightforward": []}
    for index in range(rounds):
        times["round"].append(timed(runtime.round))
        times["floor"].append(timed(floor))
        if index % every == 0:
            times["straightforward"].append(timed(plain))
    phases = Phases()
    split = []
    with phases.watching({**PLACES, "encoding": [(local, "encode"), (local, "decode")]}):
        for _ in range(rounds):
            phases.take()
            runtime.round()
            split.append(phases.take())
    spent = {name: sum(each.get(name, 0.0) for each in split) / len(split) for name in ORDER}
    return {"data": data, **{name: medians(each) for name, each in times.items()}, "phases": spent}


def tasks(scope: BenchScope) -> list[Task]:
    """Return one task with one thread."""
    return [
        Task(
            "round",
            "phases:measure",
            {"data": scope.pick(scope.data, "synthetic"), "rounds": scope.pick(30, 5)},
        )
    ]


def answer(found: Mapping[str, Figures], folder: str) -> Sequence[Block | None]:
    """Return the ratios, and the phases here and at the size of Yelp."""
    blocks: list[Block | None] = []
    if "round" in found:
        f = found["round"]
        cpu = {name: f[name]["cpu"] for name in ("round", "floor", "straightforward")}
        rows = [
            [name, f"{1e3 * value:.1f}", f"{value / cpu['floor']:.2f}", f"{value / cpu['round']:.1f}"]
            for name, value in cpu.items()
        ]
        blocks += [
            Table(
                [
                    f"{f['data']}, preset paper, GCN, ten parties",
                    "CPU ms, one thread",
                    "times the floor",
                    "times a round",
                ],
                rows,
            ),
            Paragraph(
                "**round**: all ten parties, stacked, and the coordinator, everything included. **floor**: its sparse and "
                "dense products alone, on prepared operands: neighbour sums and their transposes, W forward and "
                "backward, Phi and its transpose. **straightforward**: dense adjacency, Phi as a matrix and applied for "
                "every pair of parties, one party after the other, no quantization and no messages. Medians, measured by "
                "turns in one run."
            ),
        ]
    split = {
        "round": "ML-1M, all ten parties"
        if "round" in found and found["round"]["data"] == "ml-1m"
        else "all ten parties",
        "yelp": "shape of Yelp, one party",
    }
    rows = []
    for name, title in split.items():
        if name in found:
            phases = found[name]["phases"] if name == "round" else found[name]["party"]["phases"]
            whole = sum(phases.values())
            rows.append(
                [
                    title,
                    f"{1e3 * whole:,.1f}",
                    *(f"{100 * phases.get(each, 0.0) / whole:.0f} %" for each in ORDER),
                ]
            )
    if rows:
        blocks += [
            Table(["a round", "CPU ms", *ORDER], rows),
            Paragraph(
                "**products**: propagation, loss and gradients, with the work between products. **projection**: Phi and "
                "its transpose. **quantization**: ternary gradients, fixed-point neighbourhoods. **encoding**: messages to "
                "bytes and back. **public step**: the replica's. Means over rounds."
            ),
        ]
    return blocks


QUESTION = Question("round", "Where a round's time goes", tasks, answer)

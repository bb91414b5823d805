"""Rounds of all parties on one GPU at the size of Yelp, and the differences between GPU and CPU results."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import torch

from verfedgnn.config import Config
from verfedgnn.core.pairs import Pairs
from verfedgnn.core.random_streams import simulated_secret
from verfedgnn.data import read_parties
from verfedgnn.data.synthetic_shapes import LIKE
from verfedgnn.protocol.coordinator.coordinator import Coordinator
from verfedgnn.protocol.party.candidate import Candidate
from verfedgnn.protocol.wire.messages import Message
from verfedgnn.reports.document import Block, Paragraph, Table
from verfedgnn.research.bench.bench_suite import BenchScope, Figures, Question, Task
from verfedgnn.research.bench.phases import federation
from verfedgnn.research.bench.synthetic_party import made_party, scale_config
from verfedgnn.training.local_runtime import LocalRuntime
from verfedgnn.training.train import train

SAME = (("paper", "gcn", 1), ("paper", "gat", 1), ("paper", "ggnn", 1), ("best", "gcn", 40))
"""Presets, GNNs and epochs that are trained on both devices."""
SECONDS = {
    "parties": "parties",
    "messages": "messages",
    "coordinator": "coordinator",
    "round": "the whole round",
}
"""Parts of a round's time."""


def measure(
    *, users: int, items: int, ratings: int, parties: int, rounds: int = 6, warm: int = 3
) -> dict[str, Any]:
    """Run rounds on the GPU with half of the parties active; return seconds by part and the peak memory of
    the GPU.
    """
    device = torch.device("cuda")
    config = scale_config()
    members = []
    for p in range(parties):
        data = made_party(f"party-{p}", users, items, ratings, parties, seed=p)
        there = replace(data, train=_to(data.train, device), valid=_to(data.valid, device))
        members.append(Candidate(there, config, secret=simulated_secret(0, p), device=device))
    watched = _Watched(Coordinator(config, [member.name for member in members], device), members)
    for _ in range(warm):
        watched.round()
    torch.cuda.reset_peak_memory_stats()
    times = [watched.timed_round() for _ in range(rounds)]
    found = {name: median(each[name] for each in times) for name in times[0]}
    return {
        "users": users,
        "parties": parties,
        "active": watched.coordinator.active_count,
        "seconds": found,
        "memory": torch.cuda.max_memory_allocated(),
        "device": torch.cuda.get_device_name(),
    }


def _to(pairs: Pairs, device: torch.device) -> Pairs:
    return Pairs(pairs.user.to(device), pairs.item.to(device), pairs.rating.to(device))


class _Watched(LocalRuntime):
    """A runtime that measures the time of its parties and of their messages."""

    spent: dict[str, float]

    def __init__(self, coordinator: Coordinator, candidates: Sequence[Candidate]) -> None:
        self.spent = {}
        super().__init__(coordinator, candidates)

    def timed_round(self) -> dict[str, float]:
        """Run one round and return the seconds of parties, messages, coordinator and the whole round."""
        self.spent = {"parties": 0.0, "messages": 0.0}
        began = _now()
        self.round()
        whole = _now() - began
        return {**self.spent, "coordinator": whole - sum(self.spent.values()), "round": whole}

    def _replies(self, starts: dict[str, Message]) -> Any:
        return self._took("parties", lambda: super(_Watched, self)._replies(starts))

    def _down(self, messages: Mapping[str, Message]) -> Any:
        return self._took("messages", lambda: super(_Watched, self)._down(messages))

    def _up(self, messages: Mapping[str, Message]) -> Any:
        return self._took("messages", lambda: super(_Watched, self)._up(messages))

    def _took(self, what: str, action: Any) -> Any:
        began = _now()
        found = action()
        self.spent[what] = self.spent.get(what, 0.0) + _now() - began
        return found


def _now() -> float:
    torch.cuda.synchronize()
    return time.perf_counter()


def same(*, data: str, preset: str, model: str, epochs: int) -> dict[str, Any]:
    """Run the same short training on both devices and return how much they differ."""
    parties = read_parties(data, parties=10, seed=0)
    config = Config.preset(preset, gnn=model, epochs=epochs, gate=False)
    found = {}
    for device in ("cpu", "cuda"):
        began = time.perf_counter()
        run = train(parties, config, device=device)
        found[device] = {
            "rmse": run.metrics["test"]["rmse"],
            "rounds": run.metrics["rounds"],
            "seconds": time.perf_counter() - began,
        }
    return {"preset": preset, "model": model, **found, "gradient": _apart(data, config)}


def _apart(data: str, config: Config) -> float:
    """Return the largest difference of the first party's first gradient between the devices, relative to
    its largest coordinate.
    """
    plain = config.with_values({"gradients.mechanism": "none", "masking": False, "exchange.mode": "off"})
    found = []
    for device in ("cpu", "cuda"):
        runtime = federation(data, plain, device)
        runtime.round()
        reply = runtime.coordinator.replies[runtime.coordinator.names[0]]
        assert reply.gradient is not None
        found.append(torch.from_numpy(reply.gradient))
    return float((found[0] - found[1]).abs().max() / found[0].abs().max())


def tasks(scope: BenchScope) -> list[Task]:
    """Return the measurement at full size and short trainings on both devices."""
    shape = LIKE["yelp"]
    down = scope.pick(1, 100)
    sizes = {"users": shape.users // down, "items": shape.items // down, "ratings": shape.ratings // down}
    data = scope.pick(scope.data, "synthetic")
    return [
        Task("gpu-yelp", "gpu_bench:measure", {**sizes, "parties": 10}, needs=1 + 10 * sizes["users"] * 1e-6),
        *(
            Task(f"gpu-same-{p}-{m}", "gpu_bench:same", {"data": data, "preset": p, "model": m, "epochs": e})
            for p, m, e in SAME
        ),
    ]


def answer(found: Mapping[str, Figures], folder: str) -> Sequence[Block | None]:
    """Return a table of seconds and a table of differences."""
    blocks: list[Block | None] = []
    if "gpu-yelp" in found:
        f = found["gpu-yelp"]
        header = ["", *(f"{title}, s" for title in SECONDS.values()), "memory there, GB"]
        row = [
            f"{f['users']:,} users",
            *(f"{f['seconds'][name]:.2f}" for name in SECONDS),
            f"{f['memory'] / 1e9:.2f}",
        ]
        blocks += [
            Table(header, [row]),
            Paragraph(
                f"{f['device']}, the local runtime, one process: a round of ten parties and the coordinator at the size of Yelp, "
                f"settings as above, {f['active']} active parties one after the other. So "
                "memory is that of one party and of what all of them keep. The CPU packs and unpacks messages in "
                "parallel. Median wall seconds of a few rounds."
            ),
        ]
    same = [found[name] for name in found if name.startswith("gpu-same-")]
    if same:
        rows = [
            [
                f"{f['preset']}, {f['model'].upper()}",
                f"{f['cpu']['rounds']:,}",
                *(f"{f[device]['rmse']:.6f}" for device in ("cpu", "cuda")),
                f"{abs(f['cpu']['rmse'] - f['cuda']['rmse']):.6f}",
            ]
            for f in same
        ]
        blocks += [
            Table(["preset", "rounds", "test RMSE, processor", "GPU", "difference"], rows),
            Paragraph(
                "The same training on both devices, seed 0. Their random numbers differ, because ternary gradients are drawn on the "
                "device; so these are two random draws of one training. Without randomness (no quantization, masks or "
                "exchange), a party's first gradient agrees within rounding: the largest difference is "
                f"{max(f['gradient'] for f in same):.1e} of the largest coordinate."
            ),
        ]
    return blocks


QUESTION = Question("gpu", "On a GPU", tasks, answer)

"""All parties' rounds on one GPU, at the size of Yelp, and whether a GPU computes what a processor does."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import torch

from verfedgnn.bench.made import made_party, scale_config
from verfedgnn.bench.suite import Figures, Question, Scope, Task
from verfedgnn.config import Config
from verfedgnn.data import read_parties
from verfedgnn.data.shapes import LIKE
from verfedgnn.protocol.coordinator import Coordinator
from verfedgnn.protocol.loss import Pairs
from verfedgnn.protocol.messages import Message
from verfedgnn.protocol.party import Party
from verfedgnn.reports.document import Block, Paragraph, Table
from verfedgnn.runtime.local import LocalRuntime
from verfedgnn.training import train


def measure(*, users: int, items: int, ratings: int, parties: int, rounds: int = 6, warm: int = 3) -> dict[str, Any]:
    """Rounds of the local runtime on the GPU, half of the parties active: seconds by what is done, and memory there."""
    device = torch.device("cuda")
    config = scale_config()
    members = []
    for p in range(parties):
        data = made_party(f"party-{p}", users, items, ratings, parties, seed=p)
        there = replace(data, train=_to(data.train, device), valid=_to(data.valid, device))
        members.append(Party(there, config, secret=p, device=device))
    watched = _Watched(Coordinator(config, [member.data.name for member in members], device), members)
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
    """A runtime that knows how long its parties took, and how long their messages."""

    def timed_round(self) -> dict[str, float]:
        """Seconds of one round: the parties' computation, messages to bytes and back, the coordinator's share, all."""
        self.spent = {"parties": 0.0, "messages": 0.0}
        began = _now()
        self.round()
        whole = _now() - began
        return {**self.spent, "coordinator": whole - sum(self.spent.values()), "round": whole}

    spent: dict[str, float] = {}  # noqa: RUF012

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
    """The same short training on both devices: how far apart they end."""
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
    return {"preset": preset, "model": model, **found}


def tasks(scope: Scope) -> list[Task]:
    """None without a GPU."""
    shape, down = LIKE["yelp"], scope.pick(1, 100)
    sizes = {"users": shape.users // down, "items": shape.items // down, "ratings": shape.ratings // down}
    data = scope.pick(scope.data, "synthetic")
    return [
        Task("gpu-yelp", "gpu:measure", {**sizes, "parties": 10}, needs=1 + 10 * sizes["users"] * 1e-6),
        *(Task(f"gpu-same-{p}-{m}", "gpu:same", {"data": data, "preset": p, "model": m, "epochs": e}) for p, m, e in SAME),
    ]


SAME = (("paper", "gcn", 1), ("paper", "gat", 1), ("paper", "ggnn", 1), ("best", "gcn", 40))
"""Presets, GNNs and epochs trained on both devices."""


def answer(found: Mapping[str, Figures], folder: str) -> Sequence[Block | None]:
    """A table of seconds, one of differences."""
    return [Paragraph("todo"), Table(["x"], [["y"]])]


QUESTION = Question("gpu", "On a GPU", tasks, answer)

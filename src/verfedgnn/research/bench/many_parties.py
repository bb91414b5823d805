"""Up to a hundred parties on one machine: the cost of a round per party, by their number."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from verfedgnn.core.random_streams import simulated_secret
from verfedgnn.protocol.coordinator.coordinator import Coordinator
from verfedgnn.protocol.party.candidate import Candidate
from verfedgnn.reports.document import Block, Paragraph, Table, picture
from verfedgnn.reports.svg_charts import draw_lines
from verfedgnn.research.bench.bench_suite import BenchScope, Figures, Question, Task
from verfedgnn.research.bench.growth import exponent
from verfedgnn.research.bench.measure import medians, peak_memory, timed
from verfedgnn.research.bench.synthetic_party import made_party, scale_config
from verfedgnn.runs.ledger import Ledger
from verfedgnn.training.local_runtime import STACK_VALUES, LocalRuntime

KINDS: dict[str, dict[str, bool]] = {
    "single": {"stack": False},
    "stacked": {"stack": True},
}
"""One by one, as separate parties compute; stacked, as the local runtime does."""


def measure(*, parties: int, users: int, stack: bool, rounds: int = 5, warm: int = 2) -> dict[str, Any]:
    """Run rounds of the local runtime with parties of one size, all active."""
    config = scale_config(participation=1.0)
    # items and ratings per party stay the same, whatever their number
    made = [made_party(f"party-{p}", users, 200, users, 1, seed=p) for p in range(parties)]
    base = peak_memory()
    members = [
        Candidate(replace(data, name=f"party-{p}"), config, secret=simulated_secret(0, p))
        for p, data in enumerate(made)
    ]
    runtime = LocalRuntime(Coordinator(config, [data.name for data in made]), members, stack=stack)
    for _ in range(warm):
        runtime.round()
    gc.collect()
    runtime.ledger = Ledger()
    times = medians([timed(runtime.round) for _ in range(rounds)])
    return {
        "parties": parties,
        "users": users,
        "stacked": stack,
        "cpu_per_party": times["cpu"] / parties,
        "wall": times["wall"],
        "cpu": times["cpu"],
        "memory": peak_memory() - base,
        "bytes": {d: runtime.ledger.total(d) / parties / rounds for d in ("up", "down")},
    }


def tasks(scope: BenchScope) -> list[Task]:
    """Return tasks of all kinds; large stacks declare their memory."""
    users = scope.pick(20_000, 2_000)
    counts: tuple[int, ...] = scope.pick((5, 10, 20, 50, 100), (3, 6, 12))
    return [
        Task(
            f"parties-{count}-{kind}",
            "many_parties:measure",
            {"parties": count, "users": users, **how},
            needs=0.5 + count * users * 2e-6,
        )
        for kind, how in KINDS.items()
        for count in counts
    ]


def answer(found: Mapping[str, Figures], folder: str) -> Sequence[Block | None]:
    """Return a table of the cost per party and round, by the number of parties."""
    mine = {
        kind: [f for name, f in found.items() if name.startswith("parties-") and name.endswith(kind)]
        for kind in KINDS
    }
    singles = sorted(mine["single"], key=lambda f: f["parties"])
    stacked = {f["parties"]: f for f in mine["stacked"]}
    if not singles:
        return []
    rows = []
    for figures in singles:
        count = figures["parties"]
        rows.append(
            [
                f"{figures['parties']}",
                f"{1e3 * figures['cpu_per_party']:.1f}",
                f"{1e3 * stacked[count]['cpu_per_party']:.1f}"
                if count in stacked and _fits(figures)
                else "-",
                f"{figures['bytes']['up'] / 1e3:.1f}",
                f"{figures['bytes']['down'] / 1e3:.1f}",
                f"{figures['memory'] / figures['parties'] / 1e6:.1f}",
            ]
        )
    header = [
        "parties",
        "CPU ms a party, one by one",
        "CPU ms a party, stacked",
        "kB up a party",
        "kB down a party",
        "MB of memory a party, one by one",
    ]
    counts = [f["parties"] for f in singles]
    grown = {
        "CPU, one by one": [f["cpu_per_party"] for f in singles],
        "bytes up": [f["bytes"]["up"] for f in singles],
        "bytes down": [f["bytes"]["down"] for f in singles],
    }
    curves: dict[str, tuple[Sequence[float], Sequence[float]]] = {
        name: (counts, [v / at[0] for v in at]) for name, at in grown.items()
    }
    title = "Cost of a party by the number of parties"
    label = f"of one party, times the value with {counts[0]}"
    svg = draw_lines(title, curves, "parties", label, log="x", floor=0.0)
    exponents = (
        ", ".join(f"{name} {exponent(counts, at):.2f}" for name, at in grown.items())
        if len(counts) > 1
        else ""
    )
    return [
        Table(header, rows),
        picture(f"{folder}/parties", title, svg),
        Paragraph(
            f"{singles[0]['users']:,} users, every party with 200 items and as many ratings as users, GCN, D = 20, K = 2, "
            "all parties active, the coordinator's share included. Only the bits of a sum grow, with the logarithm of the "
            "number of parties. Parties are stacked while their users' embeddings have at most "
            f"{STACK_VALUES:,} values. Exponents in the number of parties: "
            f"{exponents}."
        ),
    ]


def _fits(figures: Figures) -> bool:
    """Return whether the local runtime stacks so many parties."""
    return int(figures["parties"]) * int(figures["users"]) * scale_config().model.dim <= STACK_VALUES


QUESTION = Question("parties", "A hundred parties", tasks, answer)

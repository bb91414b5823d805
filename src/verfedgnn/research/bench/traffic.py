r"""Bytes of a round, from the ledger of encoded messages, against the paper's formulas.

Sec. 5.3 counts per party and round at participation alpha, in numbers of s = 32 bits,

.. math:: \alpha ( K D (N + D) + \alpha P K q D + |\xi|_1 / r )

and `experiments/communication_formula.py` an accounting under which the paper's savings come out. What is
sent here is sums, once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from verfedgnn.reports.document import Block, Paragraph, Table
from verfedgnn.research.bench.bench_suite import BenchScope, Figures, Question, Task
from verfedgnn.research.experiments.communication_formula import formula

ALPHA = 0.5
RATIO = 5.0
D = 20
K = 2
P = 10


def tasks(scope: BenchScope) -> list[Task]:
    """Return tasks with full and half participation, and with a part of the users per round; those of Yelp
    are reused.
    """
    users = scope.pick(250_000, 5_000)
    sizes = {"users": users, "items": users // 10, "ratings": 4 * users}
    return [
        Task("bytes-all", "two_process:measure", {**sizes, "participation": 1.0}),
        Task("bytes-half", "two_process:measure", {**sizes}),
        Task(
            "bytes-twentieth",
            "two_process:measure",
            {**sizes, "user_blocks": scope.pick(20, 4), "warm": scope.pick(21, 5), "rounds": 20},
        ),
    ]


def section53(users: int, alpha: float, dim: int = D, layers: int = K, parties: int = P) -> float:
    """Return the bytes per party and round by Sec. 5.3, without gradients (whose |xi|_1 it does not give)."""
    down = layers * dim * (users + dim)
    shared = alpha * parties * layers * dim * users / RATIO
    return 4 * alpha * (down + shared)


def answer(found: Mapping[str, Figures], folder: str) -> Sequence[Block | None]:
    """Return our bytes next to the formulas."""
    rows = []
    for name, alpha, title in (
        ("bytes-all", 1.0, "all parties"),
        ("bytes-half", ALPHA, "half of the parties"),
        ("bytes-twentieth", ALPHA, "half of the parties, some users a round"),
        ("yelp", ALPHA, "Yelp, half of the parties"),
        ("yelp-twentieth", ALPHA, "Yelp, half of the parties, 1/20 of the users a round"),
    ):
        if name in found:
            users = found[name]["users"]
            ours = found[name]["bytes"]["per_party_per_round"]
            by_rule = section53(users, alpha)
            fitting = alpha * formula(RATIO, True, users, D, K) / 8
            rows.append(
                [
                    title,
                    f"{users:,}",
                    *(f"{size / 1e6:,.2f}" for size in (ours, by_rule, fitting)),
                    f"{by_rule / ours:.1f}",
                    f"{fitting / ours:.1f}",
                ]
            )
    if not rows:
        return []
    header = [
        "a round of",
        "users",
        "MB here",
        "MB by Sec. 5.3",
        "MB by an accounting that fits its savings",
        "Sec. 5.3 / here",
        "accounting / here",
    ]
    return [
        Table(header, rows),
        Paragraph(
            "MB per party and round in both directions, headers included, averaged over active and inactive parties; D = "
            "20, K = 2, ten parties, q = N/5. **Sec. 5.3**: public parameters K times as floats down, every other party's "
            "projected neighbourhoods, gradients not counted. **Here**: sums of ternary gradients down, one sum of "
            "neighbourhoods, ternary gradients up, packed. The formulas always cover all users, also where a round covers some."
        ),
    ]


QUESTION = Question("bytes", "Bytes against the paper's formulas", tasks, answer)

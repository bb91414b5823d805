"""Growth of a round with users, items, ratings, D and K: one of them is varied at a time, and an exponent
fitted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from verfedgnn.data.synthetic_shapes import LIKE
from verfedgnn.reports.document import Block, Paragraph, Picture, Table, picture
from verfedgnn.reports.svg_charts import draw_lines
from verfedgnn.research.bench.bench_suite import BenchScope, Figures, Question, Task
from verfedgnn.research.bench.two_process import memory

MILLION = 1_000_000
USERS = (MILLION // 4, MILLION // 2, MILLION, 2 * MILLION, 4 * MILLION)
QUICK_USERS = (5_000, 10_000, 20_000)
BASE = {"users": MILLION // 4, "items": 80_000, "ratings": MILLION, "dim": 20, "layers": 2}
QUICK_BASE = {"users": 5_000, "items": 1_600, "ratings": 20_000, "dim": 20, "layers": 2}
FACTORS = {"items": (1, 2, 4), "ratings": (1, 2, 4), "dim": (0.5, 1, 2), "layers": (0.5, 1, 2)}
TITLES = {"users": "users", "items": "items", "ratings": "ratings", "dim": "D", "layers": "K"}
SHOWN = {
    "party CPU": "party, CPU s",
    "coordinator CPU": "coordinator, CPU s",
    "memory": "party, memory",
    "bytes": "bytes",
}


def tasks(scope: BenchScope) -> list[Task]:
    """Return tasks for users (at Yelp's ratings per user and items), and for the other sizes around one
    base.
    """
    shape = LIKE["yelp"]
    made = []
    for users in scope.pick(USERS, QUICK_USERS):
        items = scope.pick(shape.items, 1_500)
        sizes = {"users": users, "items": items, "ratings": round(users * shape.ratings / shape.users)}
        made.append(Task(f"growth-users-{users}", "two_process:measure", sizes, needs=memory(users)))
    base: dict[str, int] = scope.pick(BASE, QUICK_BASE)
    for name, factors in FACTORS.items():
        for factor in factors:
            value = int(base[name] * factor)
            made.append(Task(f"growth-{name}-{value}", "two_process:measure", {**base, name: value}))
    return made


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Return the slope of log value over log size."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def values(figures: Figures) -> dict[str, float]:
    """Return the figures whose growth is reported."""
    return {
        "party CPU": figures["party"]["cpu"],
        "coordinator CPU": figures["coordinator"]["cpu"],
        "memory": figures["party"]["memory"],
        "bytes": figures["bytes"]["per_party_per_round"],
    }


def series(found: Mapping[str, Figures], name: str) -> list[tuple[int, dict[str, float]]]:
    """Return the sizes along one axis with their figures."""
    start = f"growth-{name}-"
    return sorted(
        ((int(task[len(start) :]), values(f)) for task, f in found.items() if task.startswith(start)),
        key=lambda at: at[0],
    )


def answer(found: Mapping[str, Figures], folder: str) -> Sequence[Block | None]:
    """Return a table for users, the exponents of all sizes, and a picture."""
    blocks: list[Block | None] = []
    by_users = series(found, "users")
    if by_users:
        rows = [
            [
                f"{n:,}",
                f"{v['party CPU']:.2f}",
                f"{v['coordinator CPU']:.2f}",
                f"{v['memory'] / 1e6:,.0f}",
                f"{v['bytes'] / 1e6:.2f}",
            ]
            for n, v in by_users
        ]
        header = [
            "users",
            "party, CPU s a round",
            "coordinator, CPU s",
            "party, MB of memory",
            "MB a party and round",
        ]
        blocks += [Table(header, rows), _picture(by_users, folder)]
    rows = []
    for name, title in TITLES.items():
        if len(at := series(found, name)) > 1:
            sizes = [size for size, _ in at]
            grown = [f"{exponent(sizes, [v[key] for _, v in at]):.2f}" for key in SHOWN]
            rows.append([title, " ".join(f"{size:,}" for size in sizes), *grown])
    if rows:
        blocks += [
            Table(["in", "from ... to", *(f"exponent of {title}" for title in SHOWN.values())], rows),
            Paragraph(
                "1 is proportional, 0 independent, 2 quadratic. Users: with Yelp's 3.5 ratings per user and number of items. "
                f"The others: one number varies, the rest are {BASE['users']:,} users, {BASE['items']:,} items, "
                f"{BASE['ratings']:,} ratings, D = {BASE['dim']} and K = {BASE['layers']}. "
                "A small exponent means that something else takes most of the time there. Processes keep freed memory, as "
                "the commands do. Otherwise glibc returns every block above 32 MiB (a matrix of D = 20 for 420,000 users) to "
                "the kernel, which zeroes it page by page at the next use; the exponents were then 1.13 (party) and 1.27 "
                "(coordinator)."
            ),
        ]
    return blocks


def _picture(at: list[tuple[int, dict[str, float]]], folder: str) -> Picture | None:
    sizes: list[Any] = [size for size, _ in at]
    curves = {
        f"{title} (exponent {exponent(sizes, [v[key] for _, v in at]):.2f})": (
            sizes,
            [v[key] / at[0][1][key] for _, v in at],
        )
        for key, title in SHOWN.items()
        if len(at) > 1
    }
    title = "Growth with users"
    svg = draw_lines(title, curves, "users", f"times the value at {sizes[0]:,} users", log="xy")
    return picture(f"{folder}/users", title, svg)


QUESTION = Question("growth", "Growth", tasks, answer)

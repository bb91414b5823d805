"""The cost of accuracy in bytes: validation RMSE against the bytes of all parties, for several trainings."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from verfedgnn.config import Config
from verfedgnn.data import read_parties
from verfedgnn.reports.document import Block, Paragraph, Table, picture
from verfedgnn.reports.svg_charts import draw_lines
from verfedgnn.research.bench.bench_suite import BenchScope, Figures, Question, Task
from verfedgnn.training.progress import Progress
from verfedgnn.training.train import train

SPARING = {"raters": 0, "user_blocks": 4, "bits": 12, "every": 5}
"""A quarter of the users per round, 12 bits per number, an exchange every fifth pass."""
LEAN = {**SPARING, "dim": 20, "epochs": 260, "lr": 0.2, "average": 0.992, "evaluate_every": 20, "patience": 0}
"""As accurate as preset best with GCN, with a tenth of preset paper's bytes: fewer dimensions, larger
steps, fewer passes.
"""


def measure(
    *, data: str, preset: str, model: Any, values: Mapping[str, Any], parties: int = 10
) -> dict[str, Any]:
    """Train to the end and return RMSE, bytes and seconds at each validation."""
    config = Config.preset(preset, model=model, **values)
    table = read_parties(data, parties=parties, seed=0)
    points = []
    began = time.process_time()

    def watch(event: Progress) -> None:
        if event.valid is not None:
            points.append([event.round, event.bytes, event.valid["rmse"], time.process_time() - began])

    run = train(table, config, watch=watch)
    return {
        "points": points,
        "test_rmse": run.metrics["test"]["rmse"],
        "best_round": run.metrics["best_round"],
        "rounds": run.metrics["rounds"],
        "bytes": run.ledger.total(),
        "per_party_per_round": run.metrics["bytes"]["per_party_per_round"],
        "cpu": time.process_time() - began,
        "settings": dict(values),
    }


def tasks(scope: BenchScope) -> list[Task]:
    """Return trainings of preset paper, preset best, and best with fewer bytes."""
    data, short = (scope.data, {}) if not scope.quick else ("synthetic", {"epochs": 20})
    plain = {"gate": False, **short}
    sparing = {**plain, **SPARING, "evaluate_every": 40}
    wanted = [
        ("best-gcn", "best", "gcn", plain),
        ("best-gcn-sparing", "best", "gcn", sparing),
        ("best-ggnn", "best", "ggnn", plain),
        ("best-ggnn-sparing", "best", "ggnn", sparing),
        ("best-ggnn-lean", "best", "ggnn", {"gate": False, **LEAN, **short}),
        ("paper-gcn", "paper", "gcn", {"evaluate_every": 40, **({"epochs": 2} if scope.quick else {})}),
    ]
    return [
        Task(
            f"curve-{name}",
            "bytes_curve:measure",
            {"data": data, "preset": preset, "model": model, "values": values},
        )
        for name, preset, model, values in wanted
    ]


def answer(found: Mapping[str, Figures], folder: str) -> Sequence[Block | None]:
    """Return the curves and a table of their ends."""
    mine = {name.removeprefix("curve-"): f for name, f in found.items() if name.startswith("curve-")}
    if not mine:
        return []
    rows = []
    for name, f in mine.items():
        sent = {
            t: next((size for _, size, rmse, _ in f["points"] if rmse <= t), None) for t in (0.9152, 0.875)
        }
        rows.append(
            [
                name,
                f"{f['test_rmse']:.4f}",
                f"{min(rmse for _, _, rmse, _ in f['points']):.4f}",
                f"{f['best_round']:,} of {f['rounds']:,}",
                f"{f['bytes'] / 1e6:,.0f}",
                *("-" if size is None else f"{size / 1e6:,.0f}" for size in sent.values()),
                f"{f['per_party_per_round'] / 1e3:,.1f}",
                f"{f['cpu']:,.0f}",
            ]
        )
    header = [
        "training",
        "test RMSE",
        "validation",
        "round kept of",
        "MB in all",
        "MB to 0.9152",
        "MB to 0.875",
        "kB a party and round",
        "CPU s",
    ]
    curves = {
        name: ([size / 1e6 for _, size, *_ in f["points"]], [rmse for _, _, rmse, _ in f["points"]])
        for name, f in mine.items()
    }
    title = "Validation RMSE against bytes"
    svg = draw_lines(
        title,
        curves,
        "MB, all parties, both directions",
        "validation RMSE",
        log="x",
        levels={"0.9152, the paper's GCN": 0.9152, "0.875": 0.875},
    )
    return [
        picture(f"{folder}/bytes", title, svg),
        Table(header, rows),
        Paragraph(
            "Ten parties, seed 0, `--set gate=false`. **sparing**: `--set model.raters=0 --set user_blocks=4 --set exchange.bits=12 "
            "--set exchange.every=5`, with a validation every 40 rounds (one pass is four rounds). **lean**: also `--set dim=20 --set "
            "epochs=260 --set lr=0.2 --set average=0.992 --set evaluate_every=20 --set patience=0`. MB are those of "
            "all parties in both directions, Welcome included. CPU seconds of one thread include validations and the final evaluation."
        ),
    ]


QUESTION = Question("curve", "RMSE against bytes", tasks, answer)

"""Table 2: RMSE of every method, with every GNN, on both data sets; and what the paper concludes from it."""

from __future__ import annotations

import statistics
from pathlib import Path

from verfedgnn.baselines import method
from verfedgnn.experiments.cell import Cell
from verfedgnn.experiments.tables import markdown, mean_std
from verfedgnn.paper.experiment import GNNS, TITLES, Experiment, Records, Scope, write_table
from verfedgnn.paper.published import TABLE2, WITHIN_CENTRAL

METHODS = ("mf", "central", "fedpergnn", "fedsage", "fedsage+", "verfedgnn")
MORE = ("bias", "biased-mf", "alone", "best")
"""Rows that the paper lacks."""
RIVALS = ("fedpergnn", "fedsage", "fedsage+", "mf")


def cells(scope: Scope) -> list[Cell]:
    """All rows, all seeds."""
    wanted = []
    for data in scope.data:
        for name in (*METHODS, *MORE):
            wanted += [scope.cell(data, name, gnn, seed) for gnn in models(name) for seed in range(scope.seeds)]
    return wanted


def models(name: str) -> tuple[str, ...]:
    """The GNNs of a method's rows; parties alone, ten trainings a row, with GCN only."""
    return GNNS if method(name).by_gnn and name != "alone" else GNNS[:1]


def write(records: Records, scope: Scope, folder: Path) -> str:
    """The table beside the paper's, then its claims."""
    header = ["method", "model"]
    for data in scope.data:
        header += [f"{TITLES[data]}, paper", f"{TITLES[data]}, here", "here - paper"]
    rows = []
    for name in (*METHODS, *MORE):
        for gnn in models(name):
            row = [method(name).title, gnn.upper() if method(name).by_gnn else ""]
            for data in scope.data:
                row += compared(rmse(records, data, name, gnn), TABLE2.get(data, {}).get((name, gnn)))
            rows.append(row)
    text = (
        "Test RMSE, mean ± standard deviation over seeds (the paper's: over five repetitions). *here - paper* is followed by how "
        "many standard deviations that is, of the larger of the two.\n\n"
    )
    return f"{text}{write_table(folder, 'table2', header, rows)}\n{_claims(records, scope)}"


def rmse(records: Records, data: str, name: str, gnn: str) -> list[float]:
    """Of every seed, in order; without settings of a figure."""
    found = [r for c, r in records.items() if c.data == (data,) and c.method == name and c.gnn == gnn]
    return [float(r["test"]["rmse"]) for r in sorted(found, key=lambda r: int(r["seed"]))]


def compared(ours: list[float], paper: tuple[float, float] | None) -> list[str]:
    """Three columns: the paper's value, ours, and the difference in standard deviations."""
    if paper is None:
        return ["", mean_std(ours), ""]
    difference = statistics.mean(ours) - paper[0]
    deviation = max(paper[1], statistics.stdev(ours) if len(ours) > 1 else 0.0)
    return [f"{paper[0]:.4f} ± {paper[1]:.4f}", mean_std(ours), f"{difference:+.4f} ({abs(difference) / deviation:.1f} sd)"]


def _claims(records: Records, scope: Scope) -> str:
    """The claims about order, seed by seed: the same seed is the same split for all methods."""
    seeds = scope.seeds
    rows = []
    for data in scope.data:
        for gnn in GNNS:
            ours = rmse(records, data, "verfedgnn", gnn)
            for rival in RIVALS:
                theirs = rmse(records, data, rival, gnn if method(rival).by_gnn else "gcn")
                lower = sum(a < b for a, b in zip(ours, theirs, strict=True))
                gap = statistics.mean(a - b for a, b in zip(ours, theirs, strict=True))
                claim = f"below {method(rival).title}"
                rows.append([TITLES[data], gnn.upper(), claim, f"{gap:+.4f}", f"{lower} of {seeds}", verdict(lower, seeds)])
            central = rmse(records, data, "central", gnn)
            gaps = [a / b - 1 for a, b in zip(ours, central, strict=True)]
            within = sum(g <= WITHIN_CENTRAL for g in gaps)
            claim = f"within {WITHIN_CENTRAL:.1%} of CentralGNN"
            mean = f"{statistics.mean(gaps):+.2%}"
            rows.append([TITLES[data], gnn.upper(), claim, mean, f"{within} of {seeds}", verdict(within, seeds)])
    return (
        "What the paper concludes from the table, VerFedGNN against each: the mean difference, on how many seeds it holds, and "
        f"whether it is confirmed. Confirmed: on every seed, which without a difference would happen in one of {2**seeds} cases; "
        "contradicted: on none; otherwise not settled.\n\n"
        + markdown(["data", "model", "claim", "difference", "holds on", "verdict"], rows)
    )


def verdict(holds: int, seeds: int) -> str:
    """A claim by the number of seeds on which it holds."""
    return "confirmed" if holds == seeds else "**contradicted**" if holds == 0 else "not settled"


EXPERIMENT = Experiment("table2", "Table 2: performance of different methods", cells, write)

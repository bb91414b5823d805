"""Table 2: RMSE of every method with every GNN on both data sets, and the paper's conclusions from it; and Table 6."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from verfedgnn_research.baselines import method
from verfedgnn_research.experiments.result_tables import markdown, mean_std
from verfedgnn_research.experiments.training_cell import Cell
from verfedgnn_research.paper.authors import DIFFERENCES, AuthorsCell
from verfedgnn_research.paper.paper_experiment import (
    GNNS,
    TITLES,
    BySeed,
    CellResults,
    Experiment,
    PaperScope,
    paired,
    rmse_by_seed,
    write_table,
)
from verfedgnn_research.paper.published import BELOW_MF, LAPLACE, TABLE2, WITHIN_CENTRAL

ROWS = ("mf", "central", "fedpergnn", "fedsage", "fedsage+", "verfedgnn")
MORE = ("bias", "biased-mf", "alone", "best", "private")
"""Rows that are not in the paper."""
ENOUGH = 5
"""Least number of seeds for a verdict. If there is no difference, an order holds on five seeds once in 32
times.
"""
RIVALS = ("fedpergnn", "fedsage", "fedsage+", "mf")


def cells(scope: PaperScope) -> list[Cell]:
    """Return all rows with all seeds."""
    wanted = []
    for data in scope.data:
        for name in (*ROWS, *MORE):
            for gnn in method(name).gnns(GNNS):
                wanted += _row(scope, data, name, gnn)
                if scope.authors and name == "verfedgnn":
                    wanted += _row(scope, data, name, gnn, AuthorsCell)
    return wanted


def _row(
    scope: PaperScope,
    data: str,
    name: str,
    gnn: str,
    kind: type[Cell] = Cell,
    settings: Mapping[str, Any] | None = None,
) -> list[Cell]:
    return [scope.cell(data, name, gnn, seed, settings, kind) for seed in range(scope.seeds)]


def write(records: CellResults, scope: PaperScope, folder: Path) -> str:
    """Write the table next to the paper's and return its page with the claims."""
    header = ["method", "model"]
    protocol = ["authors' protocol, here"] if scope.authors else []
    for data in scope.data:
        header += [f"{TITLES[data]}, paper", *protocol, f"{TITLES[data]}, here", "here - paper"]
    rows = []
    for name in (*ROWS, *MORE):
        for gnn in method(name).gnns(GNNS):
            row = [method(name).title, gnn.upper() if method(name).by_gnn else ""]
            for data in scope.data:
                paper, *here = compared(
                    _rmse(records, scope, data, name, gnn), TABLE2.get(data, {}).get((name, gnn))
                )
                theirs = rmse_by_seed(records, _row(scope, data, name, gnn, AuthorsCell)).values()
                row += [paper, *(mean_std(theirs) if theirs else "" for _ in protocol), *here]
            rows.append(row)
    text = (
        "Test RMSE, mean ± standard deviation over seeds (the paper's: over five repetitions). *here - paper* is followed by how "
        "many standard deviations that is, of the larger of the two.\n\n"
    )
    if protocol:
        text += f"*{protocol[0]}*: {DIFFERENCES}.\n\n"
    return f"{text}{write_table(folder, 'table2', header, rows)}\n{_claims(records, scope)}"


def _rmse(records: CellResults, scope: PaperScope, data: str, name: str, gnn: str) -> BySeed:
    return rmse_by_seed(records, _row(scope, data, name, gnn))


def compared(ours: BySeed, paper: tuple[float, float] | None) -> list[str]:
    """Return three columns: the paper's value, ours, and the difference in standard deviations."""
    published = "" if paper is None else f"{paper[0]:.4f} ± {paper[1]:.4f}"
    if paper is None or not ours:
        return [published, mean_std(ours.values()), ""]
    difference = statistics.mean(ours.values()) - paper[0]
    deviation = max(paper[1], statistics.stdev(ours.values()) if len(ours) > 1 else 0.0)
    return [published, mean_std(ours.values()), f"{difference:+.4f} ({abs(difference) / deviation:.1f} sd)"]


def _claims(records: CellResults, scope: PaperScope) -> str:
    """Return a table of the paper's conclusions by seed: the order for each GNN, and the two averages over
    GNNs.
    """
    rows = []
    for data in scope.data:
        found = {
            (m, g): _rmse(records, scope, data, m, g)
            for m in ("verfedgnn", "central", *RIVALS)
            for g in method(m).gnns(GNNS)
        }
        for gnn in GNNS:
            for rival in RIVALS:
                pairs = paired(found["verfedgnn", gnn], found[rival, gnn if method(rival).by_gnn else "gcn"])
                gap = f"{statistics.mean(a - b for a, b in pairs):+.4f}" if pairs else "-"
                claim = [TITLES[data], gnn.upper(), f"below {method(rival).title}", gap]
                rows.append(claim + verdict([a < b for a, b in pairs], scope.seeds))
        for rival, text, most in _averages(data):
            gaps = _mean_gaps(found, rival)
            claim = [TITLES[data], "mean of three", text, f"{statistics.mean(gaps):+.2%}" if gaps else "-"]
            rows.append(claim + verdict([gap <= most for gap in gaps], scope.seeds))
    return (
        "What the paper concludes from the table, VerFedGNN against each: the mean difference, on how many seeds it holds, and "
        f"whether it is confirmed. Confirmed: on every seed, {ENOUGH} or more; without a difference an order would hold so in "
        f"one of {2**ENOUGH} cases at most. Contradicted: on none. Otherwise not settled. Of so many claims, one or two "
        "verdicts by chance alone are to be expected.\n\n"
        + markdown(["data", "model", "claim", "difference", "holds on", "verdict"], rows)
    )


def _averages(data: str) -> list[tuple[str, str, float]]:
    """Return the paper's averages over models: the other method, the claim, and the largest relative
    difference allowed.
    """
    claims = [("central", f"on average within {WITHIN_CENTRAL:.1%} of CentralGNN", WITHIN_CENTRAL)]
    if data in BELOW_MF:
        claims.append(("mf", f"on average at least {BELOW_MF[data]:.1%} below MF", -BELOW_MF[data]))
    return claims


def _mean_gaps(found: Mapping[tuple[str, str], BySeed], rival: str) -> list[float]:
    """Return VerFedGNN's relative difference to a rival, averaged over GNNs, for every seed that all of
    them have.
    """
    relative = []
    for gnn in GNNS:
        ours = found["verfedgnn", gnn]
        theirs = found[rival, gnn if method(rival).by_gnn else "gcn"]
        relative.append({seed: ours[seed] / theirs[seed] - 1 for seed in ours if seed in theirs})
    return [
        statistics.mean(each[seed] for each in relative)
        for seed in relative[0]
        if all(seed in each for each in relative)
    ]


def verdict(holds: Sequence[bool], seeds: int) -> list[str]:
    """Return on how many seeds a claim holds, and the verdict once all seeds are there and there are
    enough of them.
    """
    word = "confirmed" if all(holds) else "not settled" if any(holds) else "**contradicted**"
    if len(holds) < seeds:
        word = "not finished"
    elif seeds < ENOUGH:
        word = "too few seeds"
    return [f"{sum(holds)} of {len(holds)}", word]


TABLE2_EXPERIMENT = Experiment("table2", "Table 2: performance of different methods", cells, write)


LAPLACE_SETTINGS = {
    "gradients.mechanism": "laplace",
    "gradients.epsilon": 1.0,
    "gradients.rescale": 1.0,
}
"""Settings without the public rescale, which is harmful with Laplace noise (chosen on the validation part:
docs/paper-notes.md).
"""


MECHANISMS = {"Laplace, epsilon = 1": LAPLACE_SETTINGS, "ternary, r = 3": None}
"""Settings of both mechanisms by their title; the ternary trainings are those of Table 2."""


def _mechanism_rows(scope: PaperScope) -> dict[tuple[str, str, str], list[Cell]]:
    return {
        (title, gnn, data): _row(scope, data, "verfedgnn", gnn, settings=settings)
        for title, settings in MECHANISMS.items()
        for gnn in GNNS
        for data in scope.data
    }


def write_laplace(records: CellResults, scope: PaperScope, folder: Path) -> str:
    """Write the table next to the paper's and return its page."""
    header = ["mechanism", "model"]
    for data in scope.data:
        header += [f"{TITLES[data]}, paper", f"{TITLES[data]}, here", "here - paper"]
    found = {key: rmse_by_seed(records, row) for key, row in _mechanism_rows(scope).items()}
    laplace, ternary = MECHANISMS
    rows = []
    for title in MECHANISMS:
        for gnn in GNNS:
            row = [title, gnn.upper()]
            for data in scope.data:
                by_gnn = LAPLACE.get(data, {}).get(gnn)
                of_table2 = TABLE2.get(data, {}).get(("verfedgnn", gnn))
                row += compared(found[title, gnn, data], by_gnn if title == laplace else of_table2)
            rows.append(row)
    claims = []
    for data in scope.data:
        for gnn in GNNS:
            lower = [a < b for a, b in paired(found[ternary, gnn, data], found[laplace, gnn, data])]
            claims.append([TITLES[data], gnn.upper(), *verdict(lower, scope.seeds)])
    table = write_table(folder, "table6", header, rows)
    return f"{table}\nTernary below Laplace:\n\n{markdown(['data', 'model', 'holds on', 'verdict'], claims)}"


TABLE6 = Experiment(
    "table6",
    "Table 6: Laplace noise against ternary quantization",
    lambda scope: [cell for row in _mechanism_rows(scope).values() for cell in row],
    write_laplace,
)

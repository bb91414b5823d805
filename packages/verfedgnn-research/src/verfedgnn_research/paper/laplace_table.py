"""Table 6: Laplace noise on gradients instead of ternary quantization."""

from __future__ import annotations

from pathlib import Path

from verfedgnn_research.experiments.result_tables import markdown
from verfedgnn_research.experiments.training_cell import Cell
from verfedgnn_research.paper.paper_experiment import (
    GNNS,
    TITLES,
    CellResults,
    Experiment,
    PaperScope,
    paired,
    rmse_by_seed,
    write_table,
)
from verfedgnn_research.paper.published import LAPLACE, TABLE2
from verfedgnn_research.paper.table2 import compared, verdict

SETTINGS = {
    "gradients.mechanism": "laplace",
    "gradients.epsilon": 1.0,
    "gradients.rescale": 1.0,
}
"""Settings without the public rescale, which is harmful with Laplace noise (chosen on the validation part:
docs/paper-notes.md).
"""


def cells(scope: PaperScope) -> list[Cell]:
    """Return the trainings of both mechanisms; the ternary ones are those of Table 2."""
    return [
        cell
        for data in scope.data
        for laplace in (True, False)
        for gnn in GNNS
        for cell in _row(scope, data, gnn, laplace)
    ]


def write(records: CellResults, scope: PaperScope, folder: Path) -> str:
    """Write the table next to the paper's and return its page."""
    header = ["mechanism", "model"]
    for data in scope.data:
        header += [f"{TITLES[data]}, paper", f"{TITLES[data]}, here", "here - paper"]
    found = {
        (data, gnn, laplace): rmse_by_seed(records, _row(scope, data, gnn, laplace))
        for data in scope.data
        for gnn in GNNS
        for laplace in (True, False)
    }
    rows = []
    for laplace, title in ((True, "Laplace, epsilon = 1"), (False, "ternary, r = 3")):
        for gnn in GNNS:
            row = [title, gnn.upper()]
            for data in scope.data:
                published = (
                    LAPLACE.get(data, {}).get(gnn)
                    if laplace
                    else TABLE2.get(data, {}).get(("verfedgnn", gnn))
                )
                row += compared(found[data, gnn, laplace], published)
            rows.append(row)
    claims = []
    for data in scope.data:
        for gnn in GNNS:
            lower = [a < b for a, b in paired(found[data, gnn, False], found[data, gnn, True])]
            claims.append([TITLES[data], gnn.upper(), *verdict(lower, scope.seeds)])
    table = write_table(folder, "table6", header, rows)
    return f"{table}\nTernary below Laplace:\n\n{markdown(['data', 'model', 'holds on', 'verdict'], claims)}"


def _row(scope: PaperScope, data: str, gnn: str, laplace: bool) -> list[Cell]:
    return [
        scope.cell(data, "verfedgnn", gnn, seed, SETTINGS if laplace else None) for seed in range(scope.seeds)
    ]


EXPERIMENT = Experiment("table6", "Table 6: Laplace noise against ternary quantization", cells, write)

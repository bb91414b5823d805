"""Table 6: Laplace noise on gradients in place of ternary quantization."""

from __future__ import annotations

from pathlib import Path

from verfedgnn.experiments.cell import Cell
from verfedgnn.paper.experiment import GNNS, TITLES, Experiment, Records, Scope, write_table
from verfedgnn.paper.published import LAPLACE, TABLE2
from verfedgnn.paper.table2 import compared, verdict

SETTINGS = {
    "gradients.mechanism": "laplace",
    "gradients.epsilon": 1.0,
    "gradients.rescale_users": 1.0,
    "gradients.rescale_weights": 1.0,
}
"""Without the public rescale, which does Laplace noise no good (chosen on the validation part: docs/paper-notes.md)."""


def cells(scope: Scope) -> list[Cell]:
    """Both mechanisms; the ternary ones are those of Table 2."""
    return [
        scope.cell(data, "verfedgnn", gnn, seed, settings)
        for data in scope.data
        for settings in (SETTINGS, None)
        for gnn in GNNS
        for seed in range(scope.seeds)
    ]


def write(records: Records, scope: Scope, folder: Path) -> str:
    """The table beside the paper's."""
    header = ["mechanism", "model"]
    for data in scope.data:
        header += [f"{TITLES[data]}, paper", f"{TITLES[data]}, here", "here - paper"]
    rows, found = [], {}
    for laplace, title in ((True, "Laplace, epsilon = 1"), (False, "ternary, r = 3")):
        for gnn in GNNS:
            row = [title, gnn.upper()]
            for data in scope.data:
                ours = _rmse(records, data, gnn, laplace)
                found[data, gnn, laplace] = ours
                published = LAPLACE.get(data, {}).get(gnn) if laplace else TABLE2.get(data, {}).get(("verfedgnn", gnn))
                row += compared(ours, published)
            rows.append(row)
    lines = []
    for data in scope.data:
        for gnn in GNNS:
            pairs = list(zip(found[data, gnn, False], found[data, gnn, True], strict=True))
            lower = sum(a < b for a, b in pairs)
            lines.append(f"- {TITLES[data]}, {gnn.upper()}: on {lower} of {len(pairs)} seeds, {verdict(lower, len(pairs))}.\n")
    return f"{write_table(folder, 'table6', header, rows)}\nTernary below Laplace:\n\n{''.join(lines)}"


def _rmse(records: Records, data: str, gnn: str, laplace: bool) -> list[float]:
    found = [r for c, r in records.items() if (c.data, c.gnn) == ((data,), gnn) and _is_laplace(c) == laplace]
    return [float(r["test"]["rmse"]) for r in sorted(found, key=lambda r: int(r["seed"]))]


def _is_laplace(cell: Cell) -> bool:
    return dict(cell.settings).get("gradients.mechanism") == "laplace"


EXPERIMENT = Experiment("table6", "Table 6: Laplace noise against ternary quantization", cells, write)

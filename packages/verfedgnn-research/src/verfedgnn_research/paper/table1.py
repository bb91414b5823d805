"""Table 1: properties of the methods, from their own declarations."""

from __future__ import annotations

from pathlib import Path

from verfedgnn_research.experiments.result_tables import declarations, in_order
from verfedgnn_research.paper.paper_experiment import CellResults, Experiment, PaperScope, write_table
from verfedgnn_research.paper.published import TABLE1


def write(records: CellResults, scope: PaperScope, folder: Path) -> str:
    """Write the table and return its page, which says whether it agrees with the paper's."""
    methods = in_order(TABLE1)
    table = write_table(folder, "table1", *declarations(methods))
    declared = {
        m.name: (m.declares.high_order, m.declares.gradient_protection, m.declares.cross_graph)
        for m in methods
    }
    same = all(declared[name] == row[:3] for name, row in TABLE1.items())
    same = same and all(m.declares.storage == TABLE1[m.name][3] for m in methods)
    sentences = "".join(f"- **{m.title}** protects: {m.declares.protects}.\n" for m in methods)
    return f"{table}\n{'As in the paper.' if same else 'Not as in the paper.'}\n\n{sentences}"


EXPERIMENT = Experiment("table1", "Table 1: comparison of different approaches", lambda scope: [], write)

"""Figures 2-4: RMSE of VerFedGNN against participation, privacy budget and dimension reduction."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verfedgnn_research.experiments.result_tables import markdown, mean_std
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
from verfedgnn_research.paper.paper_pictures import draw_study_panels
from verfedgnn_research.paper.published import TABLE2


@dataclass(frozen=True)
class Study:
    """A study of one setting over its range."""

    name: str
    title: str
    axis: str
    values: tuple[float, ...]
    standard: float
    """Value of the setting in Table 2."""
    settings: Callable[[float], Mapping[str, Any]]
    claims: str
    """The paper's statement about its figure."""
    log: bool = False

    def cells(self, scope: PaperScope) -> list[Cell]:
        """Return trainings for every value, every GNN and both data sets."""
        return [cell for row in self._grid(scope).values() for cell in row]

    def _grid(self, scope: PaperScope) -> dict[tuple[str, str, float], list[Cell]]:
        return {
            (data, gnn, value): [
                scope.cell(
                    data, "verfedgnn", gnn, seed, None if value == self.standard else self.settings(value)
                )
                for seed in range(scope.study_seeds)
            ]
            for data in scope.data
            for gnn in GNNS
            for value in self.points(scope)
        }

    def write(self, records: CellResults, scope: PaperScope, folder: Path) -> str:
        """Write the curves as a picture and a table, and return the page."""
        found = {key: rmse_by_seed(records, row) for key, row in self._grid(scope).items()}
        values = self.points(scope)
        rows = []
        changes = []
        for data in scope.data:
            for gnn in GNNS:
                rows.append(
                    [
                        TITLES[data],
                        gnn.upper(),
                        *(mean_std(found[data, gnn, value].values()) for value in values),
                    ]
                )
                pairs = [paired(found[data, gnn, value], found[data, gnn, self.standard]) for value in values]
                changes.append([TITLES[data], gnn.upper(), *(_change(each) for each in pairs)])
        header = ["data", "model", *(f"{self.axis.split(' ')[0]} = {value:g}" for value in values)]
        table = write_table(folder, self.name, header, rows)
        published = {(d, g): TABLE2[d]["verfedgnn", g][0] for d in scope.data if d in TABLE2 for g in GNNS}
        draw_study_panels(self, scope, found, published, folder)
        picture = f"![{self.title}]({self.name}.svg)\n\n"
        change = f"Change against {header[2].split(' ')[0]} = {self.standard:g}, seed by seed:\n\n{markdown(header, changes)}"
        about = f"Test RMSE, mean ± standard deviation over {scope.study_seeds} seeds."
        return f"{picture}{about}\n\n{table}\n{change}\nThe paper: {self.claims}\n"

    def points(self, scope: PaperScope) -> tuple[float, ...]:
        """Return the values of the axis."""
        return scope.points(self.values, self.standard)

    @property
    def experiment(self) -> Experiment:
        """The study as an experiment."""
        return Experiment(self.name, self.title, self.cells, self.write)


def _change(pairs: list[tuple[float, float]]) -> str:
    return f"{statistics.mean(a / b - 1 for a, b in pairs):+.2%}" if pairs else "-"


PARTICIPATION = Study(
    "figure2",
    "Figure 2: RMSE with varying participation rate",
    "α (participation rate)",
    (0.2, 0.4, 0.5, 0.6, 0.8, 1.0),
    1.0,
    lambda value: {"training.participation": value},
    "GCN at α = 0.5 is within 0.15 % (ML-1M) and 0.7 % (BookCrossing) of full participation; the other two stay at or below 0.92 "
    "and 1.2 for α > 0.5 (the 1.2 is below every value of its Table 2).",
).experiment
BUDGET = Study(
    "figure3",
    "Figure 3: RMSE with varying privacy budget 1/r",
    "r (the budget is 1/r)",
    (2, 3, 5, 10, 20, 50),
    3,
    lambda value: {"gradients.r": value},
    "GGNN is most sensitive to the budget, GAT remains effective.",
    log=True,
).experiment
DIMENSION = Study(
    "figure4",
    "Figure 4: RMSE by inverse dimension reduction ratio N/q",
    "N/q (users a row of the projection)",
    (1, 2, 5, 10, 20, 50, 100),
    5,
    lambda value: {"exchange": value, **({"unprotected": "projection"} if value < 2 else {})},
    "GCN and GAT are more robust than GGNN; they lose 0.5 % (ML-1M) and 1.5 % (BookCrossing) when N/q grows to 100.",
    log=True,
).experiment

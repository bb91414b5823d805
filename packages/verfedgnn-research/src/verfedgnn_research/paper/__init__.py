"""The paper's tables and figures, one module each, listed in `EXPERIMENTS`."""

from __future__ import annotations

from verfedgnn_research.paper import attack_tables as attacks
from verfedgnn_research.paper import communication, studies, table1, table2
from verfedgnn_research.paper.paper_experiment import Experiment, PaperScope

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        table1.EXPERIMENT,
        table2.TABLE2_EXPERIMENT,
        attacks.TABLE3,
        attacks.TABLE4,
        attacks.TABLE5,
        table2.TABLE6,
        attacks.TABLE7,
        studies.PARTICIPATION,
        studies.BUDGET,
        studies.DIMENSION,
        communication.EXPERIMENT,
    )
}
"""Experiments by their names in the paper."""

__all__ = ["EXPERIMENTS", "Experiment", "PaperScope"]

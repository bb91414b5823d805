"""`verfedgnn evaluate`: compute the metrics of a run again from its model and data."""

from __future__ import annotations

from typing import Annotated

import typer

from verfedgnn.cli.next_step import TrainingWords, show_run_findings
from verfedgnn.cli.output import Output
from verfedgnn.cli.shared_options import AsJson, Quiet, RunFolder
from verfedgnn.cli.tables import gate_table, lift_texts, party_table, run_table


def evaluate(
    run: RunFolder,
    top: Annotated[int, typer.Option(help="K of Recall@K, NDCG@K and HitRate@K.", min=1)] = 20,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Evaluate a run on its test ratings: RMSE, MAE and metrics of lists, per party and overall."""
    from verfedgnn.runs.run import Run

    output = Output(quiet=quiet, as_json=as_json)
    loaded = Run.load(run, added=False)
    with output.busy("evaluating"):
        figures = loaded.metrics | loaded.evaluate(top)
    lift = lift_texts(figures["lift"], run) if "lift" in figures else []
    output.result(figures, *lift, run_table(figures), party_table(figures), gate_table(figures))
    show_run_findings(output, loaded, run, TrainingWords.load(run))

"""`verfedgnn evaluate`, `lift` and `report`: the figures, verdict and report of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from verfedgnn.cli.next_step import show_next, show_run_findings
from verfedgnn.cli.output import STANDARD, Output
from verfedgnn.cli.shared_options import RunFolder, Threads, use_threads
from verfedgnn.cli.signals import Halt
from verfedgnn.cli.tables import gate_table, make_table, party_table, run_table, verdict_texts
from verfedgnn.reports.round_progress import RoundProgress


def evaluate(
    run: RunFolder,
    top: Annotated[int, typer.Option(help="K of Recall@K, NDCG@K and HitRate@K.", min=1)] = 20,
    predictions: Annotated[
        Path | None,
        typer.Option(
            help="Also write each test rating with its predictions, as Parquet, to recompute the figures.",
            metavar="FILE",
        ),
    ] = None,
    output: Output = STANDARD,
) -> None:
    """Evaluate a run on its test ratings: RMSE, MAE and metrics of lists, per party and overall."""
    from verfedgnn.core.files import writing
    from verfedgnn.runs.predictions import write_predictions
    from verfedgnn.runs.run import Run

    loaded = Run.load(run, added=False)
    with output.busy("evaluating"):
        figures = loaded.metrics | loaded.evaluate(top)
        if predictions is not None:
            with writing(predictions.parent):
                write_predictions(loaded, predictions, top)
    lift = verdict_texts(figures, loaded.judged.config, details=True) if "lift" in figures else []
    output.result(figures, *lift, run_table(figures), party_table(figures), gate_table(figures))
    show_run_findings(output, loaded, run)


def lift(
    run: RunFolder,
    partners: Annotated[
        bool,
        typer.Option(
            "--partners", help="Also train without each party in turn, to see which partner is worth it."
        ),
    ] = False,
    threads: Threads = 1,
    output: Output = STANDARD,
) -> None:
    """Show what joining gains each party of a run, in lists and ratings, for known and for new customers."""
    from verfedgnn.core.files import writing
    from verfedgnn.estimator.lift_result import lift as read_lift
    from verfedgnn.evaluation.verdict import PARTNERS_HEADER, partner_rows
    from verfedgnn.runs.run import Run, write_json
    from verfedgnn.training.train import compare_partners

    use_threads(threads)
    loaded = Run.load(run, added=False)
    read_lift(loaded)
    figures = loaded.metrics["lift"]
    if partners:
        with RoundProgress(hidden=output.quiet) as progress, Halt(quiet=output.quiet) as halt:
            figures["partners"] = compare_partners(loaded, watch=progress.round, stop=halt.asked)
        with writing(run):
            write_json(run / "metrics.json", loaded.metrics)
    rows = partner_rows(figures.get("partners", []))
    table = make_table(PARTNERS_HEADER, rows, box=None) if "partners" in figures else None
    output.result(figures, *verdict_texts(loaded.metrics, loaded.judged.config, details=True), table)
    show_run_findings(output, loaded, run)


def report(
    run: RunFolder,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the report; RUN/report by default.", metavar="FOLDER")
    ] = None,
    output: Output = STANDARD,
) -> None:
    """Write a report of a run as one HTML page.

    It contains the verdict, accuracy, lift, overlap, learning curves, traffic, who sees what, privacy guarantees and configuration.
    It names the parties, but no user and no item.
    """
    from verfedgnn.core.files import check_writable
    from verfedgnn.reports.run_report import run_document
    from verfedgnn.runs.run import Run
    from verfedgnn.runs.run_folder import REPORT, check_outside

    loaded = Run.load(run, added=False)
    if out is not None:
        check_outside(out)
    folder = run / REPORT if out is None else out
    check_writable(folder)
    with output.busy("writing the report"):
        document = run_document(loaded, run.resolve().name, run)
        page = document.write(folder / "report.html")
    output.result({"page": page}, f"written: {page}")
    show_next(output, [], ["serve", str(run)])

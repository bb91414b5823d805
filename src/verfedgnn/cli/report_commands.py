"""`verfedgnn evaluate`, `lift`, `report` and `export`: the figures, verdict, report and vectors of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from verfedgnn.cli.completion import among
from verfedgnn.cli.next_step import TrainingWords, diagnose_run, next_command, show_next, show_run_findings
from verfedgnn.cli.output import Output
from verfedgnn.cli.shared_options import AsJson, Quiet, RunFolder, Threads, WholeRun, use_threads
from verfedgnn.cli.signals import Halt
from verfedgnn.cli.tables import gate_table, lift_texts, party_table, run_table
from verfedgnn.core.errors import Interrupted
from verfedgnn.reports.round_progress import RoundProgress

if TYPE_CHECKING:
    from verfedgnn.runs.run import Run


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


def lift(
    run: WholeRun,
    seeds: Annotated[
        int, typer.Option(help="Number of seeds: that of the run and the following ones.", min=1)
    ] = 1,
    threads: Threads = 1,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Judge what joining gains each party of a run, in ratings and lists, for known customers and newcomers.

    With `--seeds 3` the run is trained twice more, with other seeds, and joining pays only where it pays over all of them. Lifts of
    finished seeds are kept: after Ctrl-C, the same command resumes.
    """
    from verfedgnn.reports.lift_plan import describe_plan, plan_lift
    from verfedgnn.runs.run import Run

    use_threads(threads)
    output = Output(quiet=quiet, as_json=as_json)
    loaded = Run.load(run, added=False)
    with RoundProgress(hidden=quiet) as progress, Halt(quiet=quiet) as halt:
        progress.clock = plan_lift(loaded, seeds, run)
        expected = describe_plan(loaded, progress.clock)
        if expected is not None:
            output.remark(expected)
        try:
            compute_lift(loaded, run, seeds, watch=progress.round, stop=halt.asked)
        except Interrupted as stop:
            raise Interrupted(stop.what) from None
    output.result(loaded.metrics["lift"], *lift_texts(loaded.metrics["lift"], run))
    output.remark(f"written: {run / 'lift' / 'lift.html'}; a server of this run shows it within seconds")
    show_run_findings(output, loaded, run, TrainingWords.load(run))


def compute_lift(run: Run, folder: Path | None, seeds: int = 1, **options: Any) -> None:
    """Add the lift to the metrics of a run and, if it has a folder, write both and the page of the lift."""
    from verfedgnn.core.files import writing
    from verfedgnn.evaluation.seeds import lift_over_seeds
    from verfedgnn.reports.drift_section import add_drift
    from verfedgnn.reports.lift_report import lift_document
    from verfedgnn.runs.run import write_json

    run.metrics["lift"] = lift_over_seeds(run, seeds, folder=folder, **options)
    run.metrics.pop("old_lift", None)
    if folder is not None:
        with writing(folder):
            write_json(folder / "metrics.json", run.metrics)
        document = lift_document(run.metrics["lift"], folder.resolve().name)
        add_drift(document, run)
        document.write(folder / "lift", "lift")


def report(
    run: RunFolder,
    out: Annotated[Path | None, typer.Option(help="Folder for the report; RUN/report by default.")] = None,
    errors: Annotated[
        bool,
        typer.Option(
            "--errors", help="Also list the largest errors. They name users and items, so keep such a report."
        ),
    ] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Write a report of a run as one HTML page and as Markdown.

    It contains the verdict, accuracy, lift, overlap, learning curves, traffic, who sees what, privacy guarantees and configuration.
    It names the parties, but no user and no item, unless you give --errors.
    """
    from verfedgnn.core.files import check_writable
    from verfedgnn.reports.drift_section import add_drift
    from verfedgnn.reports.run_report import run_document
    from verfedgnn.runs.run import Run
    from verfedgnn.runs.run_folder import check_outside
    from verfedgnn.runs.run_layout import REPORT

    output = Output(quiet=quiet, as_json=as_json)
    loaded = Run.load(run, added=False)
    if out is not None:
        check_outside(out)
    folder = run / REPORT if out is None else out
    check_writable(folder)
    with output.busy("writing the report"):
        document = run_document(loaded, run.resolve().name, errors=errors)
        add_drift(document, loaded)
        page, text = document.write(folder, "report")
    output.result({"page": page, "markdown": text}, f"written: {page} and {text.name}")
    findings = diagnose_run(loaded)
    command = next_command(findings, run, TrainingWords.load(run))
    if command[0] == "report":
        command = ["serve", str(run)]
    if len(loaded.parties) > 1 and not (run / "audit").exists():
        show_next(output, [], ["audit", str(run)], "to see who could learn what")
    show_next(output, [finding.text for finding in findings], command)


def export(
    run: RunFolder,
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    kind: Annotated[
        str,
        typer.Option(
            "--format", help="File format: parquet or npy.", autocompletion=among(("parquet", "npy"))
        ),
    ] = "parquet",
    party: Annotated[str | None, typer.Option(help="Export only this party; all by default.")] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Write the user and item vectors of the served models, with ids and titles.

    Each party gets a folder with the vectors whose dot products are the predicted ratings. Vectors that order
    lists are in its subfolder `lists`. embeddings.json says what a product means and lists the components.
    """
    from verfedgnn.runs.embeddings import export_embeddings
    from verfedgnn.runs.run import Run

    loaded = Run.load(run)
    models = [loaded] if loaded.lists is None else [loaded, loaded.lists]
    chosen = [
        each
        for model in models
        for each in (model.embeddings().values() if party is None else [model.embeddings(party)])
    ]
    files = export_embeddings(chosen, out, kind)
    lines = []
    for each in chosen:
        parts = ", ".join(f"{name} {part.start}:{part.stop}" for name, part in each.parts.items())
        lines.append(
            f"{each.party}, {each.purpose}: {len(each.users):,} users, {len(each.items):,} items; components: {parts}"
        )
    output = Output(quiet=quiet, as_json=as_json)
    output.result({"files": files}, *lines, f"written: {len(files)} files in {out}")
    sentence = (
        "The dot product of a user's and an item's vector is a prediction; embeddings.json says of what."
    )
    show_next(output, [sentence], ["serve", str(run), *([] if party is None else ["--party", party])])

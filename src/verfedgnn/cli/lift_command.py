"""`verfedgnn lift`: judge what joining gains each party, over one seed or several."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from verfedgnn.cli.next_step import TrainingWords, show_run_findings
from verfedgnn.cli.output import Output
from verfedgnn.cli.shared_options import AsJson, Quiet, Threads, WholeRun, use_threads
from verfedgnn.cli.signals import Halt
from verfedgnn.cli.tables import lift_texts
from verfedgnn.core.errors import Interrupted
from verfedgnn.reports.round_progress import RoundProgress

if TYPE_CHECKING:
    from verfedgnn.runs.run import Run


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
    from verfedgnn.reports.ancestor_section import add_ancestor
    from verfedgnn.reports.lift_report import lift_document
    from verfedgnn.runs.run import write_json

    run.metrics["lift"] = lift_over_seeds(run, seeds, folder=folder, **options)
    run.metrics.pop("old_lift", None)
    if folder is not None:
        with writing(folder):
            write_json(folder / "metrics.json", run.metrics)
        document = lift_document(run.metrics["lift"], folder.resolve().name)
        add_ancestor(document, run, folder)
        document.write(folder / "lift", "lift")

"""`verfedgnn bench`: a page with plots on what rounds cost and how that grows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from verfedgnn.cli.completion import QUESTIONS, among, complete_data_sets
from verfedgnn.cli.next_step import show_next
from verfedgnn.cli.output import Output
from verfedgnn.cli.shared_options import AsJson, Quiet
from verfedgnn.reports.round_progress import RoundProgress


def bench(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help=f"Questions to measure: {', '.join(QUESTIONS)}. Default: all.",
            autocompletion=among(QUESTIONS),
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for records and plots; the page is written next to it. Default: bench, or bench-quick."
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Use small sizes, which take minutes, to see that everything works."),
    ] = False,
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Measure nothing; write the page from existing records.")
    ] = False,
    data: Annotated[
        str,
        typer.Option(
            help="Data set for the comparisons with other recommenders and the byte curves, as for train.",
            autocompletion=complete_data_sets,
        ),
    ] = "ml-1m",
    memory: Annotated[
        float | None,
        typer.Option(help="Memory limit in GB; larger measurements are skipped. Default: the free memory."),
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Measure time, memory and bytes of rounds, and compare them with a lower bound, the paper's formulas
    and other recommenders.

    All measurements take an hour or two. Each runs in its own process and is saved at once: Ctrl-C loses only
    the running one, and the same command resumes. Other recommenders are measured if they are installed.
    """
    from verfedgnn.core.files import check_writable
    from verfedgnn.research.bench import QUESTIONS as ASKED
    from verfedgnn.research.bench.bench_report import bench_document
    from verfedgnn.research.bench.bench_suite import BenchScope, choose_questions
    from verfedgnn.research.bench.measure import free_memory
    from verfedgnn.research.bench.task_queue import TaskRecords, run_tasks

    output = Output(quiet=quiet, as_json=as_json)
    scope = BenchScope(quick, data)
    folder = out or Path("bench-quick" if quick else "bench")
    questions = choose_questions(names or [], ASKED)
    check_writable(folder)
    asked_by = {task.name: question.name for question in questions for task in question.tasks(scope)}
    tasks = [task for question in questions for task in question.tasks(scope)]
    if not report_only:
        with RoundProgress(hidden=quiet, unit="measurements") as progress:
            run_tasks(
                tasks,
                folder,
                command=lambda task: f"verfedgnn bench {asked_by[task.name]}{' --quick' if quick else ''}",
                memory=lambda: free_memory() if memory is None else memory,
                watch=lambda state: progress.step("bench", state.done, state.total, state.last),
            )
    page, text = bench_document(list(ASKED.values()), scope, folder).write(folder.parent, folder.name)
    records = TaskRecords(folder)
    known = [task.name for task in tasks if records.finished(task) is not None]
    missing = [task.name for task in tasks if task.name not in known]
    output.result(
        {"page": page, "markdown": text, "measured": known, "missing": missing},
        f"written: {page} and {text.name}",
    )
    if missing:
        sentence = (
            f"{len(known)} of {len(tasks)} measurements are there; the same command measures the others."
        )
    else:
        sentence = "All measurements are there; methods are compared by their accuracy next."
    again = ["bench", *(names or []), *(["--quick"] if quick else []), "--data", data, "--out", str(folder)]
    show_next(output, [sentence], again if missing else ["compare", "--data", data])

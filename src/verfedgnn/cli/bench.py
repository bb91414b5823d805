"""`verfedgnn bench`: what rounds cost and how that grows, as a page with plots."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from verfedgnn.bench import QUESTIONS
from verfedgnn.bench.measure import free_memory
from verfedgnn.bench.report import report
from verfedgnn.bench.suite import Records, Scope, chosen, take
from verfedgnn.cli.halt import Halt
from verfedgnn.cli.show import RoundProgress


def bench(
    names: Annotated[list[str] | None, typer.Argument(help=f"Some of {', '.join(QUESTIONS)}; unset: all.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for records and plots; the page lies beside it. Unset: bench, or bench-quick.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes, in minutes: to see that everything works.")] = False,
    report_only: Annotated[bool, typer.Option("--report-only", help="Measure nothing: the page of what is there.")] = False,
    data: Annotated[str, typer.Option(help="Data set of peers and curves, as for train.")] = "ml-1m",
    memory: Annotated[
        float | None, typer.Option(help="GB to take at most; larger sizes are left out. Unset: what is free.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Measure rounds (time, memory, bytes) against their floor, the paper's formulas and other recommenders, and how they grow.

    Each measurement is a process of its own and is kept as soon as it is there: Ctrl-C loses only the one that runs, and the
    same command goes on. An hour or two in all. Other recommenders are compared with where they are installed.
    """
    scope, folder = Scope(quick, data), out or Path("bench-quick" if quick else "bench")
    questions, records = chosen(names or [], QUESTIONS), Records(folder)
    console = Console(highlight=False, soft_wrap=True)
    todo = [(question, task) for question in questions for task in question.tasks(scope)]
    if not report_only:
        with Halt() as halt, RoundProgress(hidden=quiet, unit="measurements") as progress:
            for done, (question, task) in enumerate(todo):
                progress.step("bench", done, len(todo), task.name)
                if halt.asked():
                    break
                if not records.known(task):
                    words = ["verfedgnn", "bench", question.name, *(["--quick"] if quick else [])]
                    records.put(task, take(task, " ".join(words), free_memory() if memory is None else memory))
            else:
                progress.step("bench", len(todo), len(todo), "")
    page, text = report(list(QUESTIONS.values()), scope, folder).write(folder.parent, folder.name)
    console.print(f"written: {page} and {text.name}", markup=False)

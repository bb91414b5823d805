"""`verfedgnn report`: write a run's report as HTML and Markdown."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from verfedgnn.cli.next_step import TrainingWords, diagnose_run, next_command, show_next
from verfedgnn.cli.output import Output
from verfedgnn.cli.shared_options import AsJson, Quiet, RunFolder


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
    from verfedgnn.reports.ancestor_section import add_ancestor
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
        add_ancestor(document, loaded, run)
        page, text = document.write(folder, "report")
    output.result({"page": page, "markdown": text}, f"written: {page} and {text.name}")
    findings = diagnose_run(loaded)
    command = next_command(findings, run, TrainingWords.load(run))
    if command[0] == "report":
        command = ["serve", str(run)]
    if len(loaded.parties) > 1 and not (run / "audit").exists():
        show_next(output, [], ["audit", str(run)], "to see who could learn what")
    show_next(output, [finding.text for finding in findings], command)

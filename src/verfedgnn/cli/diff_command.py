"""`verfedgnn diff`: compare two runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from verfedgnn.cli.completion import complete_run_folders
from verfedgnn.cli.next_step import show_next
from verfedgnn.cli.output import Output
from verfedgnn.cli.shared_options import AsJson, Quiet
from verfedgnn.core.errors import ConfigError

if TYPE_CHECKING:
    from verfedgnn.reports.difference_view import DifferenceTable


def diff(
    before: Annotated[Path, typer.Argument(help="Earlier run folder.", autocompletion=complete_run_folders)],
    after: Annotated[Path, typer.Argument(help="Later run folder.", autocompletion=complete_run_folders)],
    out: Annotated[Path | None, typer.Option(help="HTML page to write, and the same as Markdown.")] = None,
    sample: Annotated[
        int, typer.Option(help="Number of users whose recommendations are compared, at most.", min=1)
    ] = 1000,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Compare two runs: settings, data, accuracy on the test ratings of both, and how recommendations changed."""
    from verfedgnn.core.files import check_writable
    from verfedgnn.evaluation.run_difference import difference
    from verfedgnn.reports.difference_view import difference_document, difference_tables
    from verfedgnn.runs.run import Run
    from verfedgnn.runs.run_folder import check_outside

    output = Output(quiet=quiet, as_json=as_json)
    if out is not None:
        if out.suffix.lower() != ".html":
            raise ConfigError(
                f"--out {out} is not a page; use for example --out {out.with_suffix('.html').name}"
            )
        check_writable(out.parent)
        check_outside(out)
    runs = [Run.load(folder, added=False) for folder in (before, after)]
    with output.busy("comparing"):
        found = difference(*runs, sample=sample)
    names = [folder.resolve().name for folder in (before, after)]
    if out is not None:
        difference_document(found, *names).write(out.parent, out.stem)
    output.result(found, *show_tables(difference_tables(found)))
    if out is not None:
        output.remark(f"written: {out}")
    better = {metric: table["overall"]["better"] for metric, table in found["figures"].items()}
    chosen = before if "no" in better.values() and "yes" not in better.values() else after
    words = {"yes": "better", "no": "worse"}
    judged = ", ".join(
        f"{metric.upper()} {words.get(word, 'not clearly different')}" for metric, word in better.items()
    )
    show_next(output, [f"The later run on the same test ratings: {judged}."], ["serve", str(chosen)])


def show_tables(tables: Sequence[DifferenceTable]) -> list[RenderableType]:
    """Return tables for the terminal, each with its note."""
    shown: list[RenderableType] = []
    for found in tables:
        if found.rows:
            table = Table(*found.header, title=found.title, title_justify="left", caption_justify="left")
            table.caption = found.note or None
            for row in found.rows:
                table.add_row(*(escape(cell) for cell in row))
            shown += [table, ""]
        elif found.note:
            shown += [f"{found.title}. {found.note}", ""]
    return shown

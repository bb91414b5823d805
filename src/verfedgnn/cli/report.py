"""`verfedgnn report`: a run as one page to send on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from verfedgnn.reports.run import run_document
from verfedgnn.run import Run


def report(
    run: Annotated[Path, typer.Argument(help="The run folder.")],
    out: Annotated[Path | None, typer.Option(help="Folder for the report; unset: RUN/report.")] = None,
) -> None:
    """Write a run's figures, curves, lift, bytes, guarantees and worst errors as one HTML page, and as Markdown."""
    folder = run / "report" if out is None else out
    page, text = run_document(Run.load(run), run.resolve().name).write(folder, "report")
    Console(highlight=False, soft_wrap=True).print(f"written: {page} and {text.name}", markup=False)

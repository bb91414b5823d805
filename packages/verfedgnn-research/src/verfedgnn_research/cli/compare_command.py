"""`verfedgnn compare`: methods side by side, with the same data, split and evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer
from rich.table import Table

from verfedgnn.cli.next_step import Request, command_text, fresh_path, show_next
from verfedgnn.cli.output import STANDARD, Output
from verfedgnn.cli.shared_options import Data, Jobs, Parties, Settings
from verfedgnn.cli.signals import Halt
from verfedgnn.cli.train_command import TrainRequest
from verfedgnn.core.errors import ConfigError
from verfedgnn.plugins import check_gnn
from verfedgnn_research.cli.progress_bars import CellProgress
from verfedgnn_research.names import METHODS

if TYPE_CHECKING:
    from verfedgnn.data.read_options import ReadOptions

_SIMPLE = METHODS.index("mf")


@dataclass(frozen=True, kw_only=True)
class CompareRequest(Request):
    """What `verfedgnn compare` was asked for."""

    command: ClassVar[str] = "compare"
    data: Data = None
    methods: Annotated[
        str,
        typer.Option(
            help="Methods, separated by commas, or all; those of plug-ins have their own names. "
            f"Simple: {', '.join(METHODS[:_SIMPLE])}. Others: {', '.join(METHODS[_SIMPLE:])}.",
        ),
    ] = "all"
    models: Annotated[
        str,
        typer.Option(
            help="GNNs, separated by commas: gcn, gat, ggnn or those of plug-ins.",
        ),
    ] = "gcn"
    reading: ReadOptions
    seeds: Annotated[int, typer.Option(help="Number of seeds, from 0 on.", min=1)] = 5
    parties: Parties = None
    by: str | None = None
    set_: Settings = None
    out: Annotated[
        Path,
        typer.Option(help="Folder for the tables and the records of finished trainings.", metavar="FOLDER"),
    ] = Path("comparison")
    jobs: Jobs = 0
    device: str = "cpu"
    output: Output = STANDARD


def compare(request: CompareRequest) -> None:
    """Train methods on the same data and compare their accuracy, cost and protection.

    Finished trainings are saved in the folder: Ctrl-C loses only the running ones, and the same command
    resumes.
    """
    from verfedgnn.config import parse_settings
    from verfedgnn.core.files import check_writable
    from verfedgnn.reports.phrases import format_size
    from verfedgnn_research.baselines import in_all
    from verfedgnn_research.experiments.comparison import (
        HEADER,
        comparison_cells,
        comparison_csv,
        comparison_page,
        comparison_rows,
        diagnose_comparison,
    )
    from verfedgnn_research.experiments.result_tables import write_text
    from verfedgnn_research.experiments.training_queue import run_cells

    output, out = request.output, request.out
    names = in_all(request.methods)
    given = request.data or ["synthetic"]
    gnns = [check_gnn(name.strip()) for name in request.models.split(",")]
    settings = parse_settings(request.set_ or [])
    _refuse_defining(settings)
    check_writable(out)
    cells = comparison_cells(
        given, names, gnns, request.seeds, request.parties, settings, request.reading, request.by
    )
    with (
        CellProgress(hidden=output.quiet) as progress,
        Halt(quiet=output.quiet, after="the rounds under way") as halt,
    ):
        records = run_cells(
            cells, out, jobs=request.jobs, device=request.device, watch=progress.report, stop=halt.asked
        )
    page = out / "comparison.md"
    file = out / "comparison.csv"
    shown = replace(request, data=given, methods=",".join(names), models=",".join(gnns))
    write_text(
        page,
        comparison_page(records, command_text(shown.to_words(without=("out", "jobs", "device", "output")))),
    )
    write_text(file, comparison_csv(records))
    table = Table("method", "model", "RMSE", "NDCG@20", "a party and round", "seconds", title_justify="left")
    table.title = f"Comparison on {', '.join(given)} (test part)"
    for row in comparison_rows(records):
        figures = dict(zip(HEADER, row, strict=True))
        sent = format_size(figures["bytes a party and round"])
        seconds = str(figures["seconds"])
        table.add_row(figures["method"], figures["model"], figures["RMSE"], figures["NDCG@20"], sent, seconds)
    trained = [
        {
            "method": cell.method,
            "model": cell.gnn,
            "seed": cell.seed,
            **{key: record[key] for key in ("test", "bytes", "seconds")},
        }
        for cell, record in records.items()
    ]
    output.result(
        {"page": page, "table": file, "trainings": trained},
        table,
        f"written: {page}, {file} (with what each method protects, and where its settings come from)",
    )
    again = TrainRequest(
        data=given,
        reading=request.reading,
        preset="best",
        parties=request.parties,
        by=request.by,
        set_=request.set_,
        out=fresh_path("runs/first"),
    )
    show_next(output, diagnose_comparison(records), again.to_words())


def _refuse_defining(settings: Mapping[str, str]) -> None:
    """Raise if a setting decides what is exchanged or how it is protected, because that defines a method."""
    from verfedgnn.config.tree import setting_path

    for name in settings:
        path = setting_path(name)
        if path.split(".")[0] in ("exchange", "gradients", "masking", "unprotected"):
            raise ConfigError(
                f"{path} defines a method, so compare cannot set it; use train for a variant of a method"
            )

"""`verfedgnn compare`: methods side by side, with the same data, split and evaluation."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from verfedgnn.cli.next_step import show_next, training_words
from verfedgnn.cli.output import STANDARD, Output
from verfedgnn.cli.shared_options import By, Data, Device, Jobs, Parties, Settings, among
from verfedgnn.cli.signals import Halt
from verfedgnn.cli.train_command import parse_gnn
from verfedgnn.core.errors import ConfigError
from verfedgnn.plugins import GNNS
from verfedgnn_research.cli.progress_bars import CellProgress
from verfedgnn_research.names import METHODS

if TYPE_CHECKING:
    from verfedgnn.data.read_options import ReadOptions


def compare(
    *,
    data: Data = None,
    methods: Annotated[
        str,
        typer.Option(
            help=f"Methods, separated by commas: {', '.join(METHODS)}, those of plug-ins, or all.",
            autocompletion=among(("all", *METHODS)),
        ),
    ] = "all",
    models: Annotated[
        str,
        typer.Option(
            help="GNNs, separated by commas: gcn, gat, ggnn or those of plug-ins.",
            autocompletion=among(GNNS),
        ),
    ] = "gcn",
    seeds: Annotated[int, typer.Option(help="Number of seeds, from 0 on.", min=1)] = 5,
    parties: Parties = None,
    by: By = None,
    reading: ReadOptions,
    set_: Settings = None,
    out: Annotated[
        Path, typer.Option(help="Folder for the tables and the records of finished trainings.")
    ] = Path("comparison"),
    jobs: Jobs = 0,
    device: Device = "cpu",
    output: Output = STANDARD,
) -> None:
    """Train methods on the same data and compare their accuracy, cost and protection.

    Finished trainings are saved in the folder: Ctrl-C loses only the running ones, and the same command
    resumes.
    """
    from verfedgnn.config import parse_settings
    from verfedgnn.core.files import check_writable
    from verfedgnn.plugins import list_files
    from verfedgnn.reports.phrases import format_size
    from verfedgnn_research.baselines import in_all, method
    from verfedgnn_research.experiments.comparison import (
        HEADER,
        comparison_cells,
        comparison_csv,
        comparison_page,
        comparison_rows,
        diagnose_comparison,
    )
    from verfedgnn_research.experiments.result_tables import declarations, in_order, write_text
    from verfedgnn_research.experiments.training_queue import run_cells

    names = in_all(methods)
    given = data or ["synthetic"]
    gnns = [str(parse_gnn(name.strip())) for name in models.split(",")]
    settings = parse_settings(set_ or [])
    _refuse_defining(settings)
    check_writable(out)
    cells = comparison_cells(given, names, gnns, seeds, parties, settings, reading, by)
    with (
        CellProgress(hidden=output.quiet) as progress,
        Halt(quiet=output.quiet, after="the rounds under way") as halt,
    ):
        records = run_cells(cells, out, jobs=jobs, device=device, watch=progress.report, stop=halt.asked)
    words = [word for file in list_files() for word in ("--plugin", os.path.relpath(file))]
    words += [
        "compare",
        *(w for d in given for w in ("--data", d)),
        "--methods",
        ",".join(names),
        "--models",
        ",".join(gnns),
    ]
    words += [
        *reading.to_arguments(),
        "--seeds",
        str(seeds),
        *([] if parties is None else ["--parties", str(parties)]),
        *([] if by is None else ["--by", by]),
    ]
    words += [word for setting in set_ or [] for word in ("--set", setting)]
    page = out / "comparison.md"
    file = out / "comparison.csv"
    write_text(page, comparison_page(records, shlex.join(["verfedgnn", *words])))
    write_text(file, comparison_csv(records))
    table = Table("method", "model", "RMSE", "NDCG@20", "a party and round", "seconds", title_justify="left")
    table.title = f"Comparison on {', '.join(given)} (test part)"
    for row in comparison_rows(records):
        figures = dict(zip(HEADER, row, strict=True))
        sent = format_size(figures["bytes a party and round"])
        seconds = str(figures["seconds"])
        table.add_row(figures["method"], figures["model"], figures["RMSE"], figures["NDCG@20"], sent, seconds)
    header, declared = declarations(in_order(names))
    traits = Table(*header, title="What the methods declare", title_justify="left")
    for declaration in declared:
        traits.add_row(*declaration)
    protects = [f"{method(name).title}: {method(name).declares.protects}" for name in names]
    sources = [f"{method(name).title}: {method(name).settings}" for name in names]
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
        traits,
        *protects,
        "\nSettings:",
        *sources,
        f"written: {page}, {file}",
    )
    words = training_words(given, reading, out="runs/first", parties=parties, by=by, preset="best", set_=set_)
    show_next(output, diagnose_comparison(records), words)


def _refuse_defining(settings: Mapping[str, str]) -> None:
    """Raise if a setting decides what is exchanged or how it is protected, because that defines a method."""
    from verfedgnn.config import setting_path

    for name in settings:
        path = setting_path(name)
        if path.split(".")[0] in ("exchange", "gradients", "masking", "unprotected"):
            raise ConfigError(
                f"{path} defines a method, so compare cannot set it; use train for a variant of a method"
            )

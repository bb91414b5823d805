"""`verfedgnn compare`: methods side by side, under the same data, parts and evaluation."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from verfedgnn.baselines import METHODS, in_all, method
from verfedgnn.cli.halt import Halt
from verfedgnn.cli.reading import Columns, Delimiter, Duplicates, Encoding, Events, Query, Scale
from verfedgnn.cli.show import CellProgress
from verfedgnn.cli.train import parse_gnn
from verfedgnn.config import parse_settings, setting_path
from verfedgnn.data.address import shown
from verfedgnn.data.reading import Reading
from verfedgnn.errors import ConfigError
from verfedgnn.experiments.comparison import HEADER, comparison_cells, comparison_csv, comparison_page, comparison_rows
from verfedgnn.experiments.queue import run_cells
from verfedgnn.experiments.tables import declarations, in_order, write_text
from verfedgnn.plugins import files
from verfedgnn.reports.words import size


def compare(
    data: Annotated[list[str] | None, typer.Option(help="As for train; unset: synthetic.")] = None,
    methods: Annotated[str, typer.Option(help=f"Some of {', '.join(METHODS)}, plug-ins'; or all.")] = "all",
    models: Annotated[str, typer.Option(help="Some of gcn, gat, ggnn and plug-ins'.")] = "gcn",
    seeds: Annotated[int, typer.Option(help="How many seeds, from 0 on.", min=1)] = 5,
    parties: Annotated[int | None, typer.Option(help="As for train.", min=1)] = None,
    query: Query = None,
    columns: Columns = None,
    events: Events = None,
    duplicates: Duplicates = None,
    encoding: Encoding = None,
    delimiter: Delimiter = None,
    scale: Scale = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="One setting for all methods, key=value, as for train.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the tables and the records of finished trainings.")] = Path("comparison"),
    jobs: Annotated[int, typer.Option(help="Trainings at a time; 0: as many as cores or GPU memory allow.", min=0)] = 0,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress, no tables.")] = False,
) -> None:
    """Train methods on the same data and write their accuracy, cost and protection side by side.

    Finished trainings are kept in the folder: Ctrl-C loses only those that run, and the same command goes on.
    """
    names, given = in_all(methods), data or ["synthetic"]
    gnns = [str(parse_gnn(name.strip())) for name in models.split(",")]
    settings = parse_settings(set_ or [])
    _refuse_defining(settings)
    reading = Reading.of(
        query=query,
        columns=columns,
        events=events,
        duplicates=duplicates,
        encoding=encoding,
        delimiter=delimiter,
        scale=scale,
    )
    cells = comparison_cells(given, names, gnns, seeds, parties, settings, reading)
    given = [shown(source) for source in given]
    with Halt() as halt, CellProgress(hidden=quiet) as progress:
        records = run_cells(cells, out, jobs=jobs, device=device, watch=progress.report, stop=halt.asked)
    words = [word for file in files() for word in ("--plugin", os.path.relpath(file))]
    words += ["compare", *(w for d in given for w in ("--data", d)), "--methods", ",".join(names), "--models", ",".join(gnns)]
    words += [*reading.words(), "--seeds", str(seeds), *([] if parties is None else ["--parties", str(parties)])]
    words += [word for setting in set_ or [] for word in ("--set", setting)]
    write_text(out / "comparison.md", comparison_page(records, shlex.join(["verfedgnn", *words])))
    write_text(out / "comparison.csv", comparison_csv(records))
    if quiet:
        return
    console = Console()
    table = Table("method", "model", "RMSE", "NDCG@20", "a party and round", "seconds", title_justify="left")
    table.title = f"Comparison on {', '.join(given)} (test part)"
    for row in comparison_rows(records):
        figures = dict(zip(HEADER, row, strict=True))
        sent, seconds = size(figures["bytes a party and round"]), str(figures["seconds"])
        table.add_row(figures["method"], figures["model"], figures["RMSE"], figures["NDCG@20"], sent, seconds)
    console.print(table)
    header, rows = declarations(in_order(names))
    traits = Table(*header, title="What the methods declare", title_justify="left")
    for row in rows:
        traits.add_row(*row)
    console.print(traits)
    for name in names:
        console.print(f"{method(name).title}: {method(name).declares.protects}", highlight=False, soft_wrap=True)
    console.print(f"written: {out / 'comparison.md'}, {out / 'comparison.csv'}", highlight=False, soft_wrap=True)


def _refuse_defining(settings: Mapping[str, str]) -> None:
    """What is exchanged and how it is protected is what tells methods apart; it is not for `--set`."""
    for name in settings:
        path = setting_path(name)
        if path.split(".")[0] in ("exchange", "gradients", "masking", "unprotected"):
            raise ConfigError(f"{path} is what defines a method, so compare does not set it; use train for a variant of your own")

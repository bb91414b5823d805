"""`verfedgnn paper`: the paper's tables and figures, made again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from verfedgnn.cli.halt import Halt
from verfedgnn.cli.show import CellProgress
from verfedgnn.errors import ConfigError, RunError
from verfedgnn.experiments.queue import finished_cells, run_cells
from verfedgnn.paper import EXPERIMENTS, Scope
from verfedgnn.paper.page import fill_page


def paper(
    what: Annotated[list[str], typer.Argument(help=f"Some of {', '.join(EXPERIMENTS)}; or all.")],
    quick: Annotated[
        bool, typer.Option("--quick", help="A coarse version in minutes: ML-100K for ML-1M, one seed, half the epochs.")
    ] = False,
    seeds: Annotated[
        int | None, typer.Option(help="How many seeds, from 0 on; unset: 5 (tables) and 3 (figures).", min=1)
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for pages and records; unset: paper, or paper-quick.")] = None,
    so_far: Annotated[bool, typer.Option("--so-far", help="Train nothing: pages of what is finished.")] = False,
    page: Annotated[Path | None, typer.Option(help="Also put the tables into this page, between its markers.")] = None,
    jobs: Annotated[int, typer.Option(help="Trainings at a time; 0: as many as cores or GPU memory allow.", min=0)] = 0,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Make tables and figures of the paper again, with the paper's values beside ours.

    Needs ml-1m and book-crossing (with --quick: ml-100k and book-crossing) in the folder named by VERFEDGNN_DATA. Finished
    trainings are kept: Ctrl-C loses only those that run, and the same command goes on.
    """
    unknown = [name for name in what if name not in (*EXPERIMENTS, "all")]
    if unknown:
        raise ConfigError(f"there is no '{unknown[0]}' here; there are: {', '.join(EXPERIMENTS)}, all")
    if page is not None and quick:
        raise ConfigError("--page takes the whole version; leave out --quick")
    chosen = [e for name, e in EXPERIMENTS.items() if name in what or "all" in what]
    scope = Scope.quick() if quick else Scope()
    if seeds is not None:
        scope = Scope(scope.data, seeds, seeds, scope.coarse)
    folder = out or Path("paper-quick" if quick else "paper")
    wanted = {experiment.name: experiment.cells(scope) for experiment in chosen}
    cells = [cell for each in wanted.values() for cell in each]
    failed: RunError | None = None
    if not so_far:
        with Halt() as halt, CellProgress(hidden=quiet) as progress:
            try:
                run_cells(cells, folder, jobs=jobs, device=device, watch=progress.report, stop=halt.asked)
            except RunError as error:  # the pages of what did not fail are still worth having
                failed = error
    records = finished_cells(cells, folder)
    console = Console()
    for experiment in chosen:
        own = {cell: records[cell] for cell in wanted[experiment.name] if cell in records}
        made = experiment.make(own, scope, folder)
        console.print(f"{experiment.title}: {made}", highlight=False, soft_wrap=True)
    if page is not None:
        fill_page(page, folder)
        console.print(f"filled: {page}", highlight=False, soft_wrap=True)
    if failed is not None:
        raise failed

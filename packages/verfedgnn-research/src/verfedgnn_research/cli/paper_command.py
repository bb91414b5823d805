"""`verfedgnn paper`: reproduce the paper's tables and figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from verfedgnn.cli.next_step import show_next
from verfedgnn.cli.output import STANDARD, Output
from verfedgnn.cli.shared_options import Jobs
from verfedgnn.cli.signals import Halt
from verfedgnn.core.errors import ConfigError, RunError
from verfedgnn_research.cli.progress_bars import CellProgress
from verfedgnn_research.names import EXPERIMENTS


def paper(
    what: Annotated[
        list[str],
        typer.Argument(
            help=f"Tables and figures: {', '.join(EXPERIMENTS)}; or all.",
        ),
    ],
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Run a coarse version in minutes: ML-100K for ML-1M, one seed, a fifth of the epochs.",
        ),
    ] = False,
    authors: Annotated[
        bool,
        typer.Option("--authors", help="Add a column to Table 2: the protocol of the authors' code."),
    ] = False,
    seeds: Annotated[
        int | None,
        typer.Option(help="Number of seeds, from 0 on. Default: 5 (tables) and 3 (figures).", min=1),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for pages and records. Default: paper, or paper-quick.")
    ] = None,
    so_far: Annotated[
        bool, typer.Option("--so-far", help="Train nothing; write pages of what is finished.")
    ] = False,
    page: Annotated[
        Path | None, typer.Option(help="Also insert the tables into this page, between its markers.")
    ] = None,
    jobs: Jobs = 0,
    device: str = "cpu",
    output: Output = STANDARD,
) -> None:
    """Reproduce tables and figures of the paper, next to the paper's values.

    Needs ml-1m and book-crossing (with --quick: ml-100k and book-crossing) in the folder named by
    VERFEDGNN_DATA. Finished trainings are saved: Ctrl-C loses only the running ones, and the same command
    resumes.
    """
    from verfedgnn.core.files import check_writable
    from verfedgnn_research.experiments.training_queue import finished_cells, run_cells
    from verfedgnn_research.paper import EXPERIMENTS as AT_HAND
    from verfedgnn_research.paper import PaperScope
    from verfedgnn_research.paper.paper_page import fill_page

    unknown = [name for name in what if name not in (*EXPERIMENTS, "all")]
    if unknown:
        raise ConfigError(f"the paper has no '{unknown[0]}'; choose from: {', '.join(EXPERIMENTS)}, all")
    if page is not None and quick:
        raise ConfigError("--page needs the full version; leave out --quick")
    chosen = [e for name, e in AT_HAND.items() if name in what or "all" in what]
    scope = replace(PaperScope.quick() if quick else PaperScope(), authors=authors)
    if seeds is not None:
        scope = replace(scope, seeds=seeds, study_seeds=seeds)
    folder = out or Path("paper-quick" if quick else "paper")
    check_writable(folder)
    wanted = {experiment.name: experiment.cells(scope) for experiment in chosen}
    cells = list(dict.fromkeys(cell for each in wanted.values() for cell in each))
    failed: RunError | None = None
    records = None
    if not so_far:
        with (
            CellProgress(hidden=output.quiet) as progress,
            Halt(quiet=output.quiet, after="the rounds under way") as halt,
        ):
            try:
                records = run_cells(
                    cells, folder, jobs=jobs, device=device, watch=progress.report, stop=halt.asked
                )
            except RunError as error:  # write the pages of what did not fail first
                failed = error
    if records is None:
        records = finished_cells(cells, folder)
    made: dict[str, Path] = {}
    for experiment in chosen:
        own = {cell: records[cell] for cell in wanted[experiment.name] if cell in records}
        made[experiment.name] = experiment.make(own, scope, folder)
    if page is not None:
        fill_page(page, folder)
    lines = [f"{experiment.title}: {made[experiment.name]}" for experiment in chosen]
    output.result({"pages": made, "filled": page}, *lines, *([f"filled: {page}"] if page is not None else []))
    if failed is not None:
        raise failed
    options = ["--authors"] if authors else []
    options += [*(["--seeds", str(seeds)] if seeds is not None else []), "--out", str(folder)]
    if len(records) < len(cells):
        sentence = f"{len(records)} of {len(cells)} trainings are finished; the same command without --so-far trains the others."
        command = ["paper", *what, *(["--quick"] if quick else []), *options]
    elif quick:
        sentence = "These are coarse figures; the full version has all seeds and epochs, and takes hours."
        command = ["paper", *what]
    else:
        sentence = (
            "All trainings of these tables are finished; compare the same methods on your own data next."
        )
        command = ["compare", "--data", "synthetic"]
    show_next(output, [sentence], command)

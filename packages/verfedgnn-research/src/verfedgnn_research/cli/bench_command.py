"""`verfedgnn bench`: what trainings cost and reach, on several data sets and seeds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar

import typer
from rich.table import Table

from verfedgnn.cli.next_step import Request, command_text, show_next
from verfedgnn.cli.output import STANDARD, Output
from verfedgnn.cli.shared_options import Jobs, Parties, Settings
from verfedgnn.cli.signals import Halt
from verfedgnn.core.errors import ConfigError
from verfedgnn_research.cli.progress_bars import CellProgress
from verfedgnn_research.names import CASES


@dataclass(frozen=True, kw_only=True)
class BenchRequest(Request):
    """What `verfedgnn bench` was asked for."""

    command: ClassVar[str] = "bench"
    data: Annotated[
        list[str] | None,
        typer.Argument(
            help=f"Data sets, each as in `train --data`, or one of {', '.join(CASES)}. Default: synthetic.",
        ),
    ] = None
    preset: str | None = None
    model: str | None = None
    set_: Settings = None
    seeds: Annotated[int, typer.Option(help="Number of seeds, from 0 on.", min=1)] = 3
    parties: Parties = None
    out: Annotated[
        Path, typer.Option(help="JSON file for the records; the table is written next to it, as Markdown.")
    ] = Path("bench.json")
    device: str = "cpu"
    jobs: Jobs = 1
    output: Output = STANDARD


def bench(request: BenchRequest) -> None:
    """Train on several data sets and seeds, and write rounds, bytes, CPU seconds, RMSE and NDCG@20.

    Each training is saved at once: Ctrl-C loses only the running one, and the same command resumes.
    """
    from verfedgnn.config import build_config, parse_settings
    from verfedgnn.core.files import check_writable
    from verfedgnn_research.bench import HEADER, BenchFile, Measurement, bench_page, bench_rows
    from verfedgnn_research.experiments.result_tables import write_text
    from verfedgnn_research.experiments.training_cell import read_case
    from verfedgnn_research.experiments.training_queue import run_queue

    out, output = request.out, request.output
    if out.suffix != ".json":
        raise ConfigError(f"the records are a JSON file, such as {out.with_suffix('.json')}, not {out}")
    check_writable(out.parent)
    names = request.data or ["synthetic"]
    settings = parse_settings(request.set_ or [])
    chosen = request.preset or "best"
    configs = [
        build_config(preset=chosen, model=request.model, overrides={**settings, "seed": seed})
        for seed in range(request.seeds)
    ]
    for name in names:
        read_case(name, 0, request.parties)  # says at once if there is no such data
    wanted = [Measurement(name, config, request.parties) for name in names for config in configs]
    file = BenchFile(out)
    with (
        CellProgress(hidden=output.quiet) as progress,
        Halt(quiet=output.quiet, after="the rounds under way") as halt,
    ):
        run_queue(
            wanted,
            file,
            processes=request.jobs,
            device=request.device,
            watch=progress.report,
            stop=halt.asked,
        )
    records = [record for each in wanted if (record := file.finished(each)) is not None]
    words = replace(request, preset=chosen).to_words(without=("data", "out", "device", "jobs", "output"))
    page = out.with_suffix(".md")
    write_text(page, bench_page(records, command_text([words[0], *names, *words[1:]])))
    table = Table(*HEADER, title=f"Trainings with preset {chosen} (test part)", title_justify="left")
    for row in bench_rows(records):
        table.add_row(*row)
    output.result({"records": out, "page": page, "trainings": records}, table, f"written: {out}, {page}")
    sentence = "Every training is measured; other methods are compared on the same data next."
    show_next(output, [sentence], ["compare", "--data", names[0]])

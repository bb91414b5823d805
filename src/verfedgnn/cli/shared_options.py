"""Options that several commands have, each defined and explained once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from verfedgnn.cli.completion import PRESETS, among, data_sets, run_folders
from verfedgnn.plugins import GNNS

DATA, TRAINING, RUN, OUTPUT = "Data", "Training", "Run", "Output"
"""Panels of the help."""

Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet", help="No progress and no remarks; warnings and errors are shown.", rich_help_panel=OUTPUT
    ),
]
AsJson = Annotated[
    bool,
    typer.Option(
        "--json",
        help="The result as one line of JSON, the only line on standard output.",
        rich_help_panel=OUTPUT,
    ),
]
RunFolder = Annotated[Path, typer.Argument(help="The run folder.", autocompletion=run_folders)]
WholeRun = Annotated[
    Path,
    typer.Argument(
        help="A run folder that holds all parties, as `train --out` writes it.", autocompletion=run_folders
    ),
]
Data = Annotated[
    list[str] | None,
    typer.Option(
        help="A file, a folder, postgresql://... or a name (ml-1m, ...); several times, NAME=FILE: one per party. "
        "Unset: synthetic.",
        rich_help_panel=DATA,
        autocompletion=data_sets,
    ),
]
Parties = Annotated[
    int | None,
    typer.Option(
        help="Cut one data set's items at random into so many parties; unset: 10.",
        min=1,
        rich_help_panel=DATA,
    ),
]
By = Annotated[
    str | None,
    typer.Option(
        help="Cut by an item column, such as genre; with --parties N: its largest values and the rest.",
        rich_help_panel=DATA,
    ),
]
Users = Annotated[
    str | None,
    typer.Option(
        help="Users who take part: any, all (those at every party), or N (those at N or more parties). Default: any.",
        rich_help_panel=DATA,
        autocompletion=among(("any", "all", "2")),
    ),
]
Preset = Annotated[
    str | None,
    typer.Option(
        help=f"Where to start from: {', '.join(PRESETS)}; or a preset file. Unset: paper; for tune best.",
        rich_help_panel=TRAINING,
        autocompletion=among(PRESETS),
    ),
]
Model = Annotated[
    str | None,
    typer.Option(help="gcn, gat, ggnn or a plug-in's.", rich_help_panel=TRAINING, autocompletion=among(GNNS)),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="One setting, key=value; `verfedgnn train --help` lists them.", rich_help_panel=TRAINING
    ),
]
Device = Annotated[
    str, typer.Option(help="cpu, cuda or cuda:N.", rich_help_panel=RUN, autocompletion=among(("cpu", "cuda")))
]
Threads = Annotated[
    int, typer.Option(help="Processor threads; 0: all. On a busy machine, 1.", min=0, rich_help_panel=RUN)
]
Jobs = Annotated[
    int,
    typer.Option(
        help="Trainings at a time; 0: as many as cores or GPU memory allow.", min=0, rich_help_panel=RUN
    ),
]


def use_threads(count: int) -> None:
    """Let torch compute with so many threads; 0 leaves it all."""
    if count:
        import torch

        torch.set_num_threads(count)

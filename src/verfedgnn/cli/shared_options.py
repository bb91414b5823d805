"""Options that several commands share, each defined and explained once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from verfedgnn.cli.completion import (
    PRESETS,
    among,
    complete_data_sets,
    complete_run_folders,
    complete_setting,
)
from verfedgnn.plugins import GNNS

DATA = "Data"
TRAINING = "Training"
RUN = "Run"
OUTPUT = "Output"
"""Panels of the help."""

Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet",
        help="Print no progress and no remarks, only the result, warnings and errors.",
        rich_help_panel=OUTPUT,
    ),
]
AsJson = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print the result as one line of JSON, the only line on standard output.",
        rich_help_panel=OUTPUT,
    ),
]
RunFolder = Annotated[Path, typer.Argument(help="Run folder.", autocompletion=complete_run_folders)]
WholeRun = Annotated[
    Path,
    typer.Argument(
        help="Run folder that holds all parties, as `train --out` writes it.",
        autocompletion=complete_run_folders,
    ),
]
Data = Annotated[
    list[str] | None,
    typer.Option(
        help="Ratings: a file, a folder, postgresql://... or a data set such as ml-1m. Repeat as NAME=FILE for one "
        "file per party. Default: synthetic.",
        rich_help_panel=DATA,
        autocompletion=complete_data_sets,
    ),
]
Parties = Annotated[
    int | None,
    typer.Option(
        help="Number of parties among which the items of one data set are divided at random. Default: 10.",
        min=1,
        rich_help_panel=DATA,
    ),
]
By = Annotated[
    str | None,
    typer.Option(
        help="Divide items by a column, such as genre. With --parties N, the N - 1 most frequent values get a party "
        "each and the rest share one.",
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
        help=f"Preset to start from: {', '.join(PRESETS)}, or a TOML file. Default: best.",
        rich_help_panel=TRAINING,
        autocompletion=among(PRESETS),
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        help="GNN: gcn, gat, ggnn or a plug-in.", rich_help_panel=TRAINING, autocompletion=among(GNNS)
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Change a setting. Repeatable. `verfedgnn settings` explains all of them.",
        rich_help_panel=TRAINING,
        autocompletion=complete_setting,
    ),
]
Device = Annotated[
    str,
    typer.Option(
        help="Device: cpu, cuda or cuda:N.", rich_help_panel=RUN, autocompletion=among(("cpu", "cuda"))
    ),
]
Track = Annotated[
    str,
    typer.Option(
        help="Log settings, curves and results with mlflow, tensorboard, wandb or none.",
        rich_help_panel=RUN,
        autocompletion=among(("mlflow", "tensorboard", "wandb", "none")),
    ),
]
Threads = Annotated[
    int,
    typer.Option(
        help="CPU threads; 0 means all cores. More than 1 helps from about a million ratings, and on a machine without other work.",
        min=0,
        rich_help_panel=RUN,
    ),
]
Jobs = Annotated[
    int,
    typer.Option(
        help="Trainings that run at the same time; 0: as many as CPU cores or GPU memory allow.",
        min=0,
        rich_help_panel=RUN,
    ),
]


def use_threads(count: int) -> None:
    """Limit torch to `count` threads; 0 sets no limit."""
    if count:
        import torch

        torch.set_num_threads(count)

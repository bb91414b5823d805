"""Options that several commands share, each explained once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

PRESETS = tuple(
    sorted(path.stem for path in (Path(__file__).parent.parent / "config" / "presets").glob("*.toml"))
)


SHARED = f"""
Args:
    run: Run folder.
Data:
    data: Ratings: a file, a folder or a data set such as ml-1m. Repeat as NAME=FILE for one file per party. Default:
        synthetic.
    columns: Column names of your table: user=...,item=...,rating=...,time=...,title=... NAME:user=... for one of
        several sources.
    events: Weigh the kinds of events, as view=1,purchase=5 (5: one event is a like). Without ratings and this option,
        each row is a like.
    read: Read an unusual table: missing=drop, duplicates=last (by time; or first, mean), encoding=latin-1, delimiter=;,
        scale=1,5, catalogue=30000 (items that you offer) or ids=number (16, 0016 and 16.0 are one user; lower,
        mail). Repeatable; NAME:scale=1,5 for one of several sources. Preset private needs scale and catalogue.
    parties: Number of parties among which the items of one data set are divided at random. Default: 10.
    by: Divide items by a column, such as genre. With --parties N, the N - 1 most frequent values get a party each and
        the rest share one.
    users: Users who take part: any, all (those at every party), or N (those at N or more parties). Default: any.
Training:
    preset: Preset to start from: {", ".join(PRESETS)}, or a TOML file. Default: best.
    model: GNN: gcn, gat, ggnn or a plug-in.
    set_: Change a setting. Repeatable. `verfedgnn settings` explains all of them.
Run:
    device: Device: cpu, cuda or cuda:N.
    threads: CPU threads; 0 means all cores. More than 1 helps from about a million ratings, and on a machine without
        other work.
    jobs: Trainings that run at the same time; 0: as many as CPU cores or GPU memory allow.
    split_test: Give this percentage of the customers federated lists, and the others those of the party alone.
    split_key: File with the secret that puts customers into buckets, created if missing; in the run folder by default.
    status: Serve a status page at a PORT of 127.0.0.1 or at HOST:PORT, with /metrics, /healthz and /readyz.
    log: Log format on standard error: text, or json for every line, the result among them.
    log_level: Log events from this level on: info, warning or error.
Federation:
    federation: federation.toml from the coordinator, or the folder that holds it.
"""
"""Help of parameters that a command does not explain itself, by the panel of the help."""
DATA, TRAINING, RUN = "Data", "Training", "Run"

Data = Annotated[list[str] | None, typer.Option(metavar="FILE")]
Settings = Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE")]
Threads = Annotated[int, typer.Option(min=0)]
Jobs = Threads
Parties = Annotated[int | None, typer.Option(min=1)]
Count = Annotated[int, typer.Option(min=1)]
SplitPercent = Annotated[int | None, typer.Option(metavar="PERCENT", min=1, max=99)]
Folder = Annotated[Path | None, typer.Option(metavar="FOLDER")]
OtherRun = Annotated[Path | None, typer.Option(metavar="RUN")]
FederationFile = Annotated[Path, typer.Option()]
WholeRun = Annotated[
    Path, typer.Argument(help="Run folder that holds all parties, as `train --out` writes it.")
]
READING: dict[str, Any] = {
    "columns": Annotated[list[str] | None, typer.Option(metavar="USER=COLUMN,...")],
    "events": Annotated[list[str] | None, typer.Option(metavar="WEIGHTS")],
    "read": Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE")],
}
"""Options for which a parameter `reading` stands."""


def use_threads(count: int) -> None:
    """Limit torch to `count` threads; 0 sets no limit."""
    if count:
        import torch

        torch.set_num_threads(count)

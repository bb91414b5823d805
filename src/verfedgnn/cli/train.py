"""`verfedgnn train`: a federation on one machine."""

from __future__ import annotations

import json
import sys
from functools import reduce
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from verfedgnn.cli.halt import Halt
from verfedgnn.cli.reading import Columns, Delimiter, Duplicates, Encoding, Events, Query, Scale
from verfedgnn.cli.show import RoundProgress, activity_table, error_console, lift_table, run_table
from verfedgnn.config import build_config, fields, parse_settings, presets
from verfedgnn.data import PartyData, read_parties
from verfedgnn.data.ratings import counted
from verfedgnn.data.reading import Reading
from verfedgnn.errors import ConfigError
from verfedgnn.evaluation.lift import lift as compute_lift
from verfedgnn.evaluation.plots import draw_lift
from verfedgnn.plugins import check_gnn
from verfedgnn.privacy.rating_dp import within
from verfedgnn.run import Run, write_json
from verfedgnn.runtime.checkpoint import writing
from verfedgnn.training import Interrupted
from verfedgnn.training import resume as resume_run
from verfedgnn.training import train as train_run

DATA, TRAINING, RUN = "Data", "Training", "Run"
"""Panels of the help."""


def settings_help() -> str:
    """Every setting with its value in preset paper and its sentence."""
    lines = [
        "**Settings** with their values in preset paper (`--set name=value`, the last word of a name is enough; or the same tree "
        "in a TOML file):",
        "",
    ]
    paper = build_config(preset="paper").model_dump(mode="json")
    for path, field in fields().items():
        value = reduce(lambda tree, key: tree[key], path.split("."), paper)
        lines.append(f"- `{path}` = {'unset' if value is None else value}: {field.description}")
    return "\n".join(lines)


def train(
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="A file, a folder, postgresql://... or a name (ml-1m, ...); several times, NAME=FILE: one source per party. "
            "Unset: synthetic.",
            rich_help_panel=DATA,
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help=f"Where to start from: {', '.join(presets())}; or a preset file; unset: paper.", rich_help_panel=TRAINING
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="gcn, gat, ggnn or a plug-in's.", rich_help_panel=TRAINING)] = None,
    parties: Annotated[
        int | None, typer.Option(help="Cut one data set's items at random into so many parties; unset: 10.", rich_help_panel=DATA)
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            help="Cut by an item column, such as genre; with --parties N: its largest values and the rest.", rich_help_panel=DATA
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.", rich_help_panel=TRAINING)] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder to write.", rich_help_panel=RUN)] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="One setting, key=value; see the list below.", rich_help_panel=TRAINING)
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(
            help="Choose the noise for this budget of differential privacy of single ratings; with --preset private.",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    delta: Annotated[float | None, typer.Option(help="The budget's delta; unset: 1e-6.", rich_help_panel=TRAINING)] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file of settings.", rich_help_panel=TRAINING)] = None,
    lift: Annotated[
        bool,
        typer.Option("--lift", help="Also train each party alone and all data pooled, and compare.", rich_help_panel=TRAINING),
    ] = False,
    resume: Annotated[Path | None, typer.Option(help="Continue this interrupted run folder.", rich_help_panel=RUN)] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the run folder if it exists.", rich_help_panel=RUN)
    ] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.", rich_help_panel=RUN)] = "cpu",
    one_by_one: Annotated[
        bool,
        typer.Option(
            "--one-by-one", help="Compute parties one after the other, bit for bit as separate processes.", rich_help_panel=RUN
        ),
    ] = False,
    threads: Annotated[
        int, typer.Option(help="Processor threads; 0: all. On a busy machine, 1.", min=0, rich_help_panel=RUN)
    ] = 0,
    query: Query = None,
    columns: Columns = None,
    events: Events = None,
    duplicates: Duplicates = None,
    encoding: Encoding = None,
    delimiter: Delimiter = None,
    scale: Scale = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress, no tables.", rich_help_panel=RUN)] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print metrics.json on one line at the end.", rich_help_panel=RUN)
    ] = False,
) -> None:
    """Train a federation on one machine and say what it gained, cost and protects."""
    if threads:
        torch.set_num_threads(threads)
    progress = RoundProgress(hidden=quiet)
    halt = Halt()
    reading = Reading.of(
        query=query,
        columns=columns,
        events=events,
        duplicates=duplicates,
        encoding=encoding,
        delimiter=delimiter,
        scale=scale,
    )
    with progress, halt:
        watch: dict[str, Any] = {"watch": progress.round, "stop": halt.asked, "device": device, "stack": not one_by_one}
        if resume is not None:
            of_data = [data, parties, by, reading or None]
            of_training = [preset, model, seed, out, set_, epsilon, delta, config]
            if any(value is not None for value in of_data + of_training) or overwrite:
                raise ConfigError("--resume takes data and settings from the run; leave out all options that set them")
            run = resume_run(resume, **watch)
            folder: Path | None = resume
        else:
            if data is not None and len(data) > 1 and (parties is not None or by is not None):
                raise ConfigError("--parties and --by cut one data set; leave them out with one file per party")
            overrides: dict[str, Any] = parse_settings(set_ or [])
            if seed is not None:
                overrides["seed"] = seed
            chosen = build_config(preset=preset or "paper", model=parse_gnn(model), file=config, overrides=overrides)
            if delta is not None and epsilon is None:
                raise ConfigError("--delta belongs to a budget; give its --epsilon, too")
            if epsilon is not None:
                chosen = within(chosen, wanted=epsilon, delta=chosen.gradients.delta if delta is None else delta)
            if lift and chosen.training.ranks:
                raise ConfigError("--lift compares errors of ratings, and a ranking predicts none; leave it out")
            read = read_parties(data or ["synthetic"], parties=parties, seed=chosen.seed, by=by, reading=reading)
            if not quiet:
                _introduce(read)
            folder = out
            run = train_run(read, chosen, out=out, overwrite=overwrite, **watch)
        if lift and "lift" not in run.metrics:
            run.metrics["lift"] = _lift(run, folder, stack=not one_by_one, watch=progress.round, stop=halt.asked)
            if folder is not None:
                with writing(folder):
                    write_json(folder / "metrics.json", run.metrics)
                draw_lift(run.metrics["lift"], folder / "lift.png")
    _report(run, folder, as_json=as_json, quiet=quiet)


def _lift(run: Run, folder: Path | None, **options: Any) -> dict[str, Any]:
    try:
        return compute_lift(run, **options)
    except Interrupted:
        where = f"; compute it with `verfedgnn train --resume {folder} --lift`" if folder else ""
        raise Interrupted(f"the federation is trained, its lift is not computed{where}") from None


def _report(run: Run, folder: Path | None, *, as_json: bool, quiet: bool) -> None:
    if as_json:
        typer.echo(json.dumps(run.metrics))
        return
    if quiet:
        return
    console = Console()
    console.print(run_table(run.metrics))
    if "lift" in run.metrics:
        console.print(lift_table(run.metrics["lift"]))
        console.print(activity_table(run.metrics["lift"]))
    if folder is not None:
        user = run.parties[0].ratings.user_ids[0]
        text = f"next: {sys.argv[0]} recommend {folder} --user {user}"
    else:
        text = "not saved: give --out RUN to keep the run"
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _introduce(parties: list[PartyData]) -> None:
    console = error_console()
    first = parties[0].ratings
    ratings, items = sum(len(p.ratings) for p in parties), sum(p.ratings.n_items for p in parties)
    parts = [f"{len(parties)} {'party' if len(parties) == 1 else 'parties'}", counted(first.n_users, "common user")]
    console.print(", ".join([*parts, counted(items, "item"), counted(ratings, "rating")]))
    if len({p.ratings.scale for p in parties}) > 1:
        console.print("  rating scales differ between parties: errors are in each party's own stars", style="dim")
    for note in dict.fromkeys(f"{p.name}: {note}" for p in parties for note in p.ratings.notes):
        console.print(f"  {note}", style="dim", markup=False)


def parse_gnn(name: str | None) -> str | None:
    """The name of a model, if there is one of that name."""
    return None if name is None else check_gnn(name)

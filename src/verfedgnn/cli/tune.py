"""`verfedgnn tune`: hyper-parameters for your data, chosen on the validation part."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from verfedgnn.cli.halt import Halt
from verfedgnn.cli.reading import Columns, Delimiter, Duplicates, Encoding, Events, Query, Scale
from verfedgnn.cli.show import error_console
from verfedgnn.cli.train import parse_gnn
from verfedgnn.config import build_config, parse_settings, presets
from verfedgnn.data import read_parties
from verfedgnn.data.reading import Reading
from verfedgnn.errors import ConfigError
from verfedgnn.evaluation.plots import draw_study
from verfedgnn.runtime.checkpoint import write_bytes, writing
from verfedgnn.tuning import Trial, parse_space
from verfedgnn.tuning import tune as tune_study


def tune(
    out: Annotated[Path, typer.Argument(help="The preset to write, such as mine.toml; use it with train --preset mine.toml.")],
    data: Annotated[list[str] | None, typer.Option(help="As for train.")] = None,
    preset: Annotated[str, typer.Option(help=f"Where to start from: {', '.join(presets())}, or a file.")] = "best",
    model: Annotated[str | None, typer.Option(help="gcn, gat, ggnn or a plug-in's.")] = None,
    parties: Annotated[int | None, typer.Option(help="As for train.", min=1)] = None,
    by: Annotated[str | None, typer.Option(help="As for train.")] = None,
    query: Query = None,
    columns: Columns = None,
    events: Events = None,
    duplicates: Duplicates = None,
    encoding: Encoding = None,
    delimiter: Delimiter = None,
    scale: Scale = None,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    trials: Annotated[int, typer.Option(help="How many trials the study shall have in all.", min=1)] = 40,
    study: Annotated[Path | None, typer.Option(help="The study's file; unset: beside the preset, ending in .db.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="One setting, key=value, as for train.")] = None,
    space: Annotated[
        list[str] | None,
        typer.Option(help="What to try instead: training.lr=0.02:0.4 (a range) or model.dim=16|32."),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    threads: Annotated[int, typer.Option(help="Processor threads; 0: all.", min=0)] = 0,
) -> None:
    """Try hyper-parameters on the validation part and write the best as a preset, with where they come from.

    Ctrl-C keeps the finished trials; the same command goes on with the study.
    """
    if threads:
        torch.set_num_threads(threads)
    if out.suffix != ".toml":
        raise ConfigError(f"the preset is a TOML file, such as {out.with_suffix('.toml')}, not {out}")
    overrides: dict[str, object] = {**parse_settings(set_ or []), "seed": seed}
    chosen = build_config(preset=preset, model=parse_gnn(model), overrides=overrides)
    reading = Reading.of(
        query=query,
        columns=columns,
        events=events,
        duplicates=duplicates,
        encoding=encoding,
        delimiter=delimiter,
        scale=scale,
    )
    read = read_parties(data or ["synthetic"], parties=parties, seed=seed, by=by, reading=reading)
    console = error_console()

    def show(trial: Trial) -> None:
        value, best = trial.error, trial.best
        shown = {path.split(".")[-1]: f"{v:.3g}" if isinstance(v, float) else str(v) for path, v in trial.values.items()}
        values = "  ".join(f"{name}={text}" for name, text in shown.items())
        found = "given up" if value is None else f"error {value:.5f}"
        console.print(f"trial {trial.number}/{trial.trials}: {found} (best {best:.5f})  {values}", soft_wrap=True)

    database = study or out.with_suffix(".db")
    with Halt() as halt:
        tuned = tune_study(
            read,
            chosen,
            trials=trials,
            study=database,
            space=parse_space(space) if space else None,
            device=device,
            watch=show,
            stop=halt.asked,
        )
    with writing(out):
        write_bytes(out, tuned.to_preset().encode())
    drawn = draw_study(tuned.history, out.with_suffix(".png"))
    Console().print(tuned.provenance, highlight=False, soft_wrap=True)
    picture = f", {out.with_suffix('.png')}" if drawn else ""
    Console().print(f"written: {out}{picture}; the study is {database}. Use it with: train --preset {out}", soft_wrap=True)

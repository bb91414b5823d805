"""`verfedgnn tune`: choose hyper-parameters for your data on the validation part."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from verfedgnn.cli.next_step import fresh_path, show_next
from verfedgnn.cli.output import STANDARD, Output
from verfedgnn.cli.shared_options import (
    RUN,
    TRAINING,
    Data,
    Device,
    Model,
    Parties,
    Preset,
    Settings,
    Threads,
    use_threads,
)
from verfedgnn.cli.signals import Halt
from verfedgnn.cli.train_command import TrainRequest
from verfedgnn.core.errors import ConfigError
from verfedgnn.reports.round_progress import RoundProgress

CLEAR_GAIN = 0.005
"""Share of the validation error below which tuning gains little."""

if TYPE_CHECKING:
    from verfedgnn.data.read_options import ReadOptions
    from verfedgnn_research.tuning import Trial, Tuned


def tune(
    *,
    data: Data = None,
    preset: Preset = None,
    model: Model = None,
    parties: Parties = None,
    by: str | None = None,
    reading: ReadOptions,
    seed: Annotated[int, typer.Option(help="Random seed.", rich_help_panel=TRAINING)] = 0,
    trials: Annotated[int, typer.Option(help="Total number of trials in the study.", min=1)] = 40,
    out: Annotated[
        Path,
        typer.Option(help="Preset file to write; use it with train --preset mine.toml.", rich_help_panel=RUN),
    ] = Path("mine.toml"),
    study: Annotated[
        Path | None, typer.Option(help="File of the study. Default: next to the preset, with the ending .db.")
    ] = None,
    set_: Settings = None,
    space: Annotated[
        list[str] | None,
        typer.Option(
            help="Replace the search space: training.lr=0.02:0.4 (a range) or model.dim=16|32 (values)."
        ),
    ] = None,
    device: Device = "cpu",
    threads: Threads = 1,
    output: Output = STANDARD,
) -> None:
    """Try hyper-parameters on the validation part and write the best as a preset, with its provenance.

    Ctrl-C keeps the finished trials; run the same command again to resume the study.
    """
    from verfedgnn.config import build_config, parse_settings
    from verfedgnn.core.files import check_writable, write_bytes, writing
    from verfedgnn.data import read_parties
    from verfedgnn_research.tuning import parse_space
    from verfedgnn_research.tuning import tune as tune_study

    use_threads(threads)
    if out.suffix != ".toml":
        raise ConfigError(f"the preset is a TOML file, such as {out.with_suffix('.toml')}, not {out}")
    database = study or out.with_suffix(".db")
    for place in (out, database):
        if not place.parent.is_dir():
            raise ConfigError(
                f"{place.parent} is not a folder, so {place.name} cannot be written there; make it, or choose another"
            )
        check_writable(place.parent)
    overrides: dict[str, object] = {**parse_settings(set_ or []), "seed": seed}
    chosen = build_config(preset=preset or "best", model=model, overrides=overrides)
    tried = parse_space(space) if space else None
    with output.busy("reading the data"):
        read = read_parties(
            data or ["synthetic"], parties=parties, seed=seed, by=by, users=chosen.users, reading=reading
        )
    with RoundProgress(hidden=output.quiet, unit="trials") as progress, Halt(quiet=output.quiet) as halt:

        def show(trial: Trial) -> None:
            shown = {
                path.split(".")[-1]: f"{v:.3g}" if isinstance(v, float) else str(v)
                for path, v in trial.values.items()
            }
            values = "  ".join(f"{name}={text}" for name, text in shown.items())
            found = "pruned" if trial.error is None else f"error {trial.error:.5f}"
            progress.line(f"trial {trial.number}/{trial.trials}: {found} (best {trial.best:.5f})  {values}")
            progress.step("tune", trial.number, trial.trials, f"best {trial.best:.5f}")

        progress.step("tune", 0, trials)
        tuned = tune_study(
            read,
            chosen,
            trials=trials,
            study=database,
            space=tried,
            device=device,
            watch=show,
            stop=halt.asked,
        )
    with writing(out):
        write_bytes(out, tuned.to_preset().encode())
    found = {"preset": out, "study": database, "trials": len(tuned.history), "valid_error": tuned.error}
    output.result(found, tuned.provenance, f"written: {out}; the study is {database}")
    users = None if chosen.users == "any" else str(chosen.users)
    again = TrainRequest(
        data=data or ["synthetic"],
        reading=reading,
        preset=str(out),
        parties=parties,
        by=by,
        users=users,
        out=fresh_path("runs/tuned"),
    )
    show_next(output, [_describe(tuned)], again.to_words())


def _describe(tuned: Tuned) -> str:
    """Compare the best trial with the first, which has the settings of the preset."""
    first = tuned.history[0]
    count = len(tuned.history)
    if count == 1:
        return "One trial compares nothing: the preset's own settings are written; use more --trials."
    if first is None or tuned.error >= first:
        return f"None of {count} trials is better than the settings it started from, so these are written."
    text = f"The best of {count} trials lowers the validation error from {first:.4f} to {tuned.error:.4f}."
    if tuned.error > (1 - CLEAR_GAIN) * first:
        text += " That is little: other settings are not what limits this model."
    return text

"""`verfedgnn train`: train a federation on one machine."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from verfedgnn.cli.completion import among, complete_run_folders
from verfedgnn.cli.items_command import read_feature_options
from verfedgnn.cli.lift_command import compute_lift
from verfedgnn.cli.next_step import TrainingWords, show_next, show_run_findings
from verfedgnn.cli.output import Output
from verfedgnn.cli.shared_options import (
    DATA,
    RUN,
    TRAINING,
    AsJson,
    By,
    Data,
    Device,
    Model,
    Parties,
    Preset,
    Quiet,
    Settings,
    Threads,
    Track,
    Users,
    use_threads,
)
from verfedgnn.cli.signals import Halt
from verfedgnn.cli.source_options import reads_ratings_hiding
from verfedgnn.cli.tables import gate_table, lift_texts, run_table
from verfedgnn.core.errors import ConfigError, Interrupted
from verfedgnn.plugins import check_gnn
from verfedgnn.reports.round_progress import RoundProgress
from verfedgnn.reports.training_steps import StepClock, describe_cost, list_steps

if TYPE_CHECKING:
    from verfedgnn.config import Config
    from verfedgnn.data import PartyData
    from verfedgnn.data.read_options import ReadOptions
    from verfedgnn.runs.run import Run
    from verfedgnn.training.cost_forecast import CostForecast
    from verfedgnn.training.progress import Progress as RoundEvent


MOSTLY_NEW = 0.5
"""Share of a party's items that are new since the run that a training continues, from which on its file may be a wrong one."""


@reads_ratings_hiding("encoding", "delimiter", "scale", "catalogue")
def train(
    *,
    data: Data = None,
    preset: Preset = None,
    model: Model = None,
    parties: Parties = None,
    by: By = None,
    users: Users = None,
    seed: Annotated[int | None, typer.Option(help="Random seed.", rich_help_panel=TRAINING)] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder to write.", rich_help_panel=RUN)] = None,
    set_: Settings = None,
    epsilon: Annotated[
        float | None,
        typer.Option(
            help="Privacy budget of single ratings; chooses the noise. Needs --preset private.",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(
            help="Delta of the privacy budget. Default: 1e-6.", rich_help_panel=TRAINING, hidden=True
        ),
    ] = None,
    protect: Annotated[
        str | None,
        typer.Option(
            help="What a privacy budget covers: rating, or user (all ratings of a user at a party). Needs --preset private.",
            rich_help_panel=TRAINING,
            autocompletion=among(("rating", "user")),
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="TOML file of settings, applied after the preset.", rich_help_panel=TRAINING),
    ] = None,
    features: Annotated[
        list[str] | None,
        typer.Option(
            help="Features of a party's items, as NAME=FILE, for items without ratings. Repeatable. They stay at the party.",
            rich_help_panel=DATA,
        ),
    ] = None,
    lift: Annotated[
        bool,
        typer.Option(
            "--lift",
            help="Also judge what joining gains, in ratings and lists, for known and new customers.",
            rich_help_panel=TRAINING,
        ),
    ] = False,
    resume: Annotated[
        Path | None,
        typer.Option(
            help="Resume the interrupted training of this run folder.",
            rich_help_panel=RUN,
            autocompletion=complete_run_folders,
        ),
    ] = None,
    from_: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Continue from this finished run. Users and items that are still there keep their parameters.",
            rich_help_panel=RUN,
            autocompletion=complete_run_folders,
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Overwrite the run folder if it exists.", rich_help_panel=RUN)
    ] = False,
    track: Track = "none",
    device: Device = "cpu",
    one_by_one: Annotated[
        bool,
        typer.Option(
            "--one-by-one",
            help="Compute the parties one by one, with the same bits as separate processes.",
            rich_help_panel=RUN,
            hidden=True,
        ),
    ] = False,
    threads: Threads = 1,
    reading: ReadOptions,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train a federation on one machine and print its accuracy, the bytes sent and what is protected.

    After Ctrl-C, `--resume` continues to the same result. `--from` continues a finished run with the data of today and a tenth of the
    rounds, unless you set `epochs`. It takes the settings of that run unless you give a preset, a model or a file. `--json` prints the
    content of metrics.json. `verfedgnn settings` explains every setting, and `verfedgnn data check --help` lists more options for
    unusual files.
    """
    from verfedgnn.config import build_config, parse_settings
    from verfedgnn.data import read_parties
    from verfedgnn.privacy.rating_dp import fit_budget
    from verfedgnn.reports.run_report import report_to_track
    from verfedgnn.runs.run import read_run_config
    from verfedgnn.runs.run_folder import holds_run
    from verfedgnn.runs.start_from import read_ancestor
    from verfedgnn.runs.tracking.tracker import tracked
    from verfedgnn.training.cost_forecast import forecast
    from verfedgnn.training.train import resume as resume_run
    from verfedgnn.training.train import train as train_run
    from verfedgnn.upkeep.new_items import NewItems

    use_threads(threads)
    output = Output(quiet=quiet, as_json=as_json)
    folder = resume if resume is not None else out
    training = None if resume is None else TrainingWords.load(resume)
    words = ["--lift"] * lift + ["--one-by-one"] * one_by_one + ["--quiet"] * quiet + ["--json"] * as_json
    words += [] if device == "cpu" else ["--device", device]
    words += [] if track == "none" else ["--track", track]
    words += ["--threads", str(threads)] if threads != 1 else []
    words += [word for text in features or [] for word in ("--features", text)]
    if features and folder is None:
        raise ConfigError("--features are stored with the run; add --out RUN")
    if resume is not None:
        of_data = [data, parties, by, users, reading or None]
        of_training = [preset, model, seed, out, set_, epsilon, delta, protect, config, from_]
        if any(value is not None for value in of_data + of_training) or overwrite:
            raise ConfigError("--resume takes data and settings from the run; leave out all options for them")
    else:
        if data is not None and len(data) > 1 and (parties is not None or by is not None):
            raise ConfigError(
                "--parties and --by divide one data set; leave them out with one file per party"
            )
        training = TrainingWords.of(
            data,
            reading,
            choices={"parties": parties, "by": by, "users": users},
            settings={
                "preset": preset,
                "model": model,
                "seed": seed,
                "set": set_,
                "epsilon": epsilon,
                "delta": delta,
                "protect": protect,
                "config": config,
            },
        )
        overrides: dict[str, Any] = parse_settings(set_ or [])
        if seed is not None:
            overrides["seed"] = seed
        if users is not None:
            overrides["users"] = users
        if protect is not None:
            overrides["gradients.protects"] = protect
        if from_ is not None and preset is None and model is None and config is None:
            chosen = read_run_config(from_)
        else:
            chosen = build_config(preset=preset or "best", model=parse_gnn(model), file=config)
        if from_ is not None:
            chosen = chosen.for_night()
        chosen = chosen.with_values(overrides)
        if delta is not None and epsilon is None:
            raise ConfigError("--delta needs --epsilon; add --epsilon")
        if epsilon is not None:
            chosen = fit_budget(
                chosen, wanted=epsilon, delta=chosen.gradients.delta if delta is None else delta
            )
        if out is not None:
            holds_run(out, overwrite)
        with output.busy("reading the data"):
            read = read_parties(
                data or ["synthetic"],
                parties=parties,
                seed=chosen.seed,
                by=by,
                users=chosen.users,
                reading=reading,
            )
        if lift and len(read) == 1:
            raise ConfigError("--lift compares parties with a federation; give two parties or more")
        read_feature_options(
            features or [], [party.name for party in read]
        )  # finds mistakes before the training
        _introduce(read, output)
        if len(read) == 2:
            output.remark(f"  {_describe_two_parties(chosen)}", style="dim")
        if from_ is not None:
            read_ancestor(from_, chosen)  # finds mistakes before it is said what happens
            output.remark(f"  {_describe_night(from_, chosen)}", style="dim")
            for suspicion in _check_night(from_, read):
                output.warn(suspicion)
        gone = _count_forgotten(read, from_, out)
        if gone:
            output.warn(f"left out {gone}; remove them from your own data, too")
    settings = ""
    if track != "none":
        settings = (read_run_config(resume) if resume is not None else chosen).to_toml()
    with (
        RoundProgress(hidden=quiet) as progress,
        _resumable(folder, words, training),
        Halt(quiet=quiet) as halt,
        tracked(track, folder, settings, resumed=resume is not None) as log_to,
    ):

        def watch_round(event: RoundEvent) -> None:
            progress.round(event)
            if event.valid is not None:
                values = {f"valid_{name.replace('@', '_')}": value for name, value in event.valid.items()}
                values["bytes"] = event.bytes
                log_to.metrics({f"{event.label}/{name}": v for name, v in values.items()}, event.round)

        watch: dict[str, Any] = {
            "watch": watch_round,
            "stop": halt.asked,
            "device": device,
            "stack": not one_by_one,
        }
        if resume is not None:
            run = resume_run(resume, **watch)
        else:
            expected = None
            if not quiet and from_ is None:
                with output.busy("estimating time and bytes"):
                    expected = forecast(read, chosen, device=device, stack=not one_by_one)
            progress.clock = _plan(read, chosen, expected, lift=lift)
            if expected is not None:
                output.remark(describe_cost(progress.clock.steps, chosen, expected, len(read)))
            run = train_run(read, chosen, out=out, overwrite=overwrite, start_from=from_, **watch)
        for name, table in read_feature_options(
            features or [], [party.name for party in run.parties]
        ).items():
            assert folder is not None
            NewItems(folder, run, name).set_features(table)
        if lift and "lift" not in run.metrics:
            progress.clock = progress.clock or _plan(run.parties, run.config, lift=lift)
            try:
                compute_lift(run, folder, stack=not one_by_one, watch=progress.round, stop=halt.asked)
            except Interrupted:
                raise Interrupted("the federation is trained, but its lift is not computed") from None
        if folder is not None:
            with report_to_track(run, folder, track) as files:
                log_to.result(folder, run.metrics, files)
    _report(run, folder, training, output, before=from_)


def _plan(
    parties: Sequence[PartyData], config: Config, expected: CostForecast | None = None, *, lift: bool
) -> StepClock:
    """Return a clock of all trainings of the command."""
    names = [party.name for party in parties]
    return StepClock(list_steps(names, config.for_parties(len(names)), lift=lift), len(names), expected)


@contextmanager
def _resumable(folder: Path | None, words: list[str], training: TrainingWords | None) -> Iterator[None]:
    """Name the command that resumes the training when it is interrupted, and keep the options of the training."""
    begun = folder is not None and (folder / "config.toml").is_file()
    remedy = "nothing is kept; pass --out RUN to be able to resume"
    if folder is not None:
        remedy = f"continue with `{shlex.join(['verfedgnn', 'train', '--resume', str(folder), *words])}`"
    try:
        yield
    except Interrupted as stop:
        raise Interrupted(stop.what, remedy) from None
    except KeyboardInterrupt:
        if folder is not None and not begun and not (folder / "config.toml").is_file():
            raise
        raise Interrupted(
            "stopped at once; the run resumes from its last checkpoint" if folder else "stopped", remedy
        ) from None
    finally:
        if folder is not None and training is not None and (folder / "config.toml").is_file():
            training.save(folder)


def _report(
    run: Run, folder: Path | None, words: TrainingWords | None, output: Output, *, before: Path | None
) -> None:
    """Print the result and the next command: for a run that continues the run `before`, whether it may replace that one."""
    metrics = run.metrics
    lift = lift_texts(metrics["lift"], folder) if "lift" in metrics else []
    output.result(metrics, *lift, run_table(metrics), gate_table(metrics))
    if lift and folder is not None:
        output.remark(f"tables by group of customers for each party: {folder / 'lift' / 'lift.html'}")
    if folder is None:
        output.remark("not saved; pass --out RUN to keep the run")
    if before is not None and folder is not None:
        show_next(output, [], ["promote", str(folder), "--over", str(before)])
    else:
        show_run_findings(output, run, folder, words)


def _describe_two_parties(chosen: Config) -> str:
    """Say what was chosen for two parties, and what they can and cannot hide from each other."""
    config = chosen.for_parties(2)
    gradients = {"ternary": "ternary", "rounded": "rounded", "none": "exact"}.get(
        config.gradients.mechanism, "noised"
    )
    seen = f"{gradients} gradients"
    if config.exchange.mode != "off":
        seen += f" and {config.exchange.mode} neighbourhoods"
    chose = "" if config == chosen else "exchange.mode is noised instead of masked, because "
    masks = "; masks hide these only from the coordinator" if config.masking else ""
    return (
        f"two parties: {chose}either can subtract its own part from a sum and see the other's {seen}{masks}. "
        "Ratings, item ids and item embeddings are never sent."
    )


def _describe_night(folder: Path, chosen: Config) -> str:
    """Say how many epochs a training has that continues another one."""
    return f"continues {folder} with {count_epochs(chosen.training.epochs)}"


def count_epochs(count: int) -> str:
    """Return "1 epoch" or "30 epochs"."""
    return f"{count:,} epoch{'' if count == 1 else 's'}"


def _check_night(folder: Path, parties: Sequence[PartyData]) -> list[str]:
    """Return what is suspicious about the data of a training that continues the run in `folder`, such as a wrong file."""
    from verfedgnn.runs.start_from import measure_run_drift

    found = []
    for name, drift in measure_run_drift(folder, parties)["drift"].items():
        share = drift["unknown_items"]
        if share > MOSTLY_NEW:
            found.append(
                f"{100 * share:.0f} % of {name}'s items are new since {folder}; is this the right file?"
            )
    return found


def _count_forgotten(parties: Sequence[PartyData], *runs: Path | None) -> str:
    """Say how many users the training leaves out, because some of these runs have forgotten them; "" if there are none."""
    from verfedgnn.data.ratings import format_count
    from verfedgnn.runs.forget_record import read_forgotten_users

    gone = read_forgotten_users(*runs).find(parties[0].ratings.user_ids, federated=False)
    return format_count(int(gone.sum()), "forgotten user") if gone.any() else ""


def _introduce(parties: list[PartyData], output: Output) -> None:
    from verfedgnn.data.ratings import format_count

    first = parties[0].ratings
    ratings = sum(len(p.ratings) for p in parties)
    items = sum(p.ratings.n_items for p in parties)
    parts = [
        f"{len(parties)} {'party' if len(parties) == 1 else 'parties'}",
        format_count(first.n_users, "user"),
    ]
    output.remark(", ".join([*parts, format_count(items, "item"), format_count(ratings, "rating")]))
    if len({p.ratings.scale for p in parties}) > 1:
        output.remark(
            "  rating scales differ between parties; errors are on each party's own scale", style="dim"
        )
    for note in dict.fromkeys(f"{p.name}: {note}" for p in parties for note in p.ratings.notes):
        output.remark(f"  {note}", style="dim")


def parse_gnn(name: str | None) -> str | None:
    """Return the name of an installed GNN, or None if none is given; raise ConfigError for an unknown one."""
    return None if name is None else check_gnn(name)

"""`verfedgnn train`: train a federation on one machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from verfedgnn.cli.next_step import Request, command_text, show_next, show_run_findings
from verfedgnn.cli.output import STANDARD, Output
from verfedgnn.cli.shared_options import (
    RUN,
    TRAINING,
    By,
    Data,
    Device,
    Model,
    Parties,
    Preset,
    Settings,
    Threads,
    Users,
    use_threads,
)
from verfedgnn.cli.signals import Halt
from verfedgnn.cli.tables import gate_table, run_table, verdict_texts
from verfedgnn.core.errors import ConfigError, DataError, Interrupted
from verfedgnn.plugins import check_gnn
from verfedgnn.reports.round_progress import RoundProgress, TrainingPlan

if TYPE_CHECKING:
    from rich.console import RenderableType

    from verfedgnn.config import Config
    from verfedgnn.data import PartyData
    from verfedgnn.data.read_options import ReadOptions
    from verfedgnn.runs.run import Run


LONG = 300.0
"""Seconds from which a sample of users gives a first answer."""
FIRST_SECONDS = 90.0
"""Seconds that the first answer may take; reading and judging bring it to two minutes."""


def _option(panel: str, text: str, *names: str, **options: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, **options)


@dataclass(frozen=True, kw_only=True)
class TrainRequest(Request):
    """What `verfedgnn train` was asked for: its options, and what follows from them."""

    command: ClassVar[str] = "train"
    data: Data = None
    reading: ReadOptions
    preset: Preset = None
    model: Model = None
    parties: Parties = None
    by: By = None
    users: Users = None
    seed: Annotated[int | None, _option(TRAINING, "Random seed.")] = None
    set_: Settings = None
    epsilon: Annotated[
        float | None,
        _option(TRAINING, "Privacy budget, which chooses the noise. Needs --preset private."),
    ] = None
    config: Annotated[Path | None, _option(TRAINING, "TOML file of settings, applied after the preset.")] = (
        None
    )
    judge: Annotated[
        bool,
        _option(
            TRAINING,
            "Only judge: train no model on all ratings. What is served has not seen the test part.",
            "--judge",
        ),
    ] = False
    out: Annotated[Path | None, _option(RUN, "Run folder to write.", metavar="FOLDER")] = None
    details: Annotated[bool, _option(RUN, "Print all tables, not only the verdict.", "--details")] = False
    resume: Annotated[
        Path | None,
        _option(RUN, "Resume the interrupted training of this run folder.", metavar="RUN"),
    ] = None
    final: Annotated[
        Path | None,
        _option(
            RUN,
            "Train the model of all ratings of this run folder, which was only judged (--judge).",
            metavar="RUN",
        ),
    ] = None
    after: Annotated[
        Path | None,
        _option(
            RUN,
            "The run before this one: users forgotten in it are left out, and a warning tells of a wrong file.",
            metavar="RUN",
        ),
    ] = None
    overwrite: Annotated[bool, _option(RUN, "Overwrite the run folder if it exists.", "--overwrite")] = False
    device: Device = "cpu"
    threads: Threads = 1
    output: Output = STANDARD

    @property
    def folder(self) -> Path | None:
        """Folder of the run; None if it is not kept."""
        return self.resume or self.final or self.out

    def check(self) -> None:
        """Raise `ConfigError` if options contradict each other."""
        if self.data is not None and len(self.data) > 1 and (self.parties is not None or self.by is not None):
            raise ConfigError(
                "--parties and --by divide one data set; leave them out with one file per party"
            )
        for name in ("resume", "final"):
            if getattr(self, name) is not None and self.to_words(without=(name, *AGAIN)) != ["train"]:
                raise ConfigError(
                    f"--{name} takes data and settings from the run; leave out all options for them"
                )

    def resume_command(self) -> str:
        """Return the command that resumes this training, with the options that it takes again."""
        others = [field.name for field in fields(self) if field.name not in AGAIN]
        train, *options = self.to_words(without=others)
        return command_text([train, "--resume", str(self.folder), *options])

    def choose(self) -> Config:
        """Return the configuration of a new training."""
        from verfedgnn.config import build_config, parse_settings
        from verfedgnn.privacy.rating_dp import fit_budget

        final = False if self.judge else None
        given = {"seed": self.seed, "users": self.users, "final": final}
        overrides = parse_settings(self.set_ or []) | {k: v for k, v in given.items() if v is not None}
        chosen = build_config(preset=self.preset or "best", model=parse_gnn(self.model), file=self.config)
        chosen = chosen.with_values(overrides)
        if self.epsilon is not None:
            chosen = fit_budget(chosen, wanted=self.epsilon)
        return chosen

    def read(self, config: Config) -> list[PartyData]:
        """Read the data of a new training, and say what was found."""
        from verfedgnn.data import read_parties
        from verfedgnn.data.ratings import format_count
        from verfedgnn.privacy.visibility import describe_two_parties
        from verfedgnn.runs.forget_record import read_forgotten_users
        from verfedgnn.runs.run_before import read_before, suspect_files
        from verfedgnn.runs.run_folder import holds_run

        if self.out is not None:
            holds_run(self.out, self.overwrite)
        with self.output.busy("reading the data"):
            read = read_parties(
                self.data or ["synthetic"],
                parties=self.parties,
                seed=config.seed,
                by=self.by,
                users=config.users,
                reading=self.reading,
            )
        _introduce(read, self.output)
        if len(read) == 2:
            self.output.remark(f"  {describe_two_parties(config)}", style="dim")
        if self.after is not None:
            for suspicion in suspect_files(self.after, read_before(self.after, read)):
                self.output.warn(suspicion)
        forgotten = read_forgotten_users(self.after, self.out)
        gone = int(forgotten.find(read[0].ratings.user_ids).sum())
        if gone:
            count = format_count(gone, "forgotten user")
            self.output.warn(f"left out {count}; remove them from your own data, too")
        return read

    def run(self, parties: list[PartyData], config: Config) -> Run:
        """Train, or go on with a training, and compute what else was asked for."""
        from verfedgnn.runs.prepared_data import choose_config
        from verfedgnn.training.cost_forecast import forecast
        from verfedgnn.training.train import resume, train, train_final

        with (
            RoundProgress(hidden=self.output.quiet) as progress,
            _resumable(self),
            Halt(quiet=self.output.quiet) as halt,
        ):
            options: dict[str, Any] = {"watch": progress.round, "stop": halt.asked, "device": self.device}
            if self.resume is not None:
                run = resume(self.resume, **options)
            elif self.final is not None:
                run = train_final(self.final, **options)
            else:
                config, names = choose_config(parties, config), [party.name for party in parties]
                with self.output.busy("estimating time and bytes"):
                    expected = {} if self.output.quiet else forecast(parties, config, device=self.device)
                progress.plan = TrainingPlan.of(names, config, expected)
                if expected:
                    self.output.remark(progress.plan.describe_cost(len(parties)))
                if progress.plan.seconds > LONG and config.training.gate and config.split.kind != "all":
                    self.answer_first(parties, config, progress, options)
                run = train(
                    parties, config, out=self.out, overwrite=self.overwrite, after=self.after, **options
                )
        return run

    def answer_first(
        self, parties: list[PartyData], config: Config, progress: RoundProgress, options: dict[str, Any]
    ) -> None:
        """Print the verdict of a training with so many users, drawn at random, as two minutes allow."""
        import numpy as np

        from verfedgnn.data import PartyData
        from verfedgnn.evaluation.verdict import headline
        from verfedgnn.training.train import train

        everybody = parties[0].ratings.n_users
        count = max(1, int(everybody * FIRST_SECONDS / progress.plan.seconds))
        drawn = np.sort(np.random.default_rng(config.seed).permutation(everybody)[:count])
        sample = [PartyData(party.name, party.ratings.select_users(drawn)) for party in parties]

        def watch(event: Any) -> None:
            progress.round(replace(event, label=f"sample, {event.label}"))

        try:
            run = train(sample, config.with_values({"final": False}), **options | {"watch": watch})
        except DataError as error:
            progress.line(f"no first answer: a sample of {count:,} users is too small ({error})")
            return
        first = (
            f"first answer, from {count:,} of {everybody:,} users drawn at random; more data can change it:"
        )
        progress.line(f"{first} {headline(run.metrics['lift'])}")
        progress.line("now the training with all users")

    def report(self, run: Run) -> None:
        """Print the result and the next command: for a run after another one, whether it may replace that one."""
        metrics, folder, output = run.metrics, self.folder, self.output
        texts: list[RenderableType | None] = [run_table(metrics)]
        if "lift" in metrics:
            verdict = verdict_texts(metrics, run.judged.config, details=self.details)
            texts = [*verdict, *([*texts, gate_table(metrics)] if self.details else [])]
        output.result(metrics, *texts)
        if folder is None:
            output.remark("not saved; pass --out RUN to keep the run")
        if self.after is not None and folder is not None:
            show_next(output, [], ["promote", str(folder), "--over", str(self.after)])
        else:
            show_run_findings(output, run, folder)


AGAIN = ("details", "device", "threads", "output")
"""Options that a resumed training takes again."""


def train(request: TrainRequest) -> None:
    """Train a federation on one machine and print its accuracy, the bytes sent and what is protected.

    After Ctrl-C, `--resume` continues to the same result. `--json` prints the content of metrics.json. `verfedgnn settings` explains
    every setting.
    """
    from verfedgnn.runs.run import read_run_config

    use_threads(request.threads)
    request.check()
    given = request.resume or request.final
    config = request.choose() if given is None else read_run_config(given)
    request.report(request.run(request.read(config) if given is None else [], config))


@contextmanager
def _resumable(request: TrainRequest) -> Iterator[None]:
    """Name the command that resumes the training when it is interrupted, and keep the options of the training."""
    folder = request.folder
    begun = folder is not None and (folder / "config.toml").is_file()
    remedy = "nothing is kept; pass --out RUN to be able to resume"
    if folder is not None:
        remedy = f"continue with `{request.resume_command()}`"
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


def _introduce(parties: list[PartyData], output: Output) -> None:
    from verfedgnn.data.ratings import format_count

    tables = [party.ratings for party in parties]
    counts = {
        "user": tables[0].n_users,
        "item": sum(t.n_items for t in tables),
        "like" if all(t.likes == len(t) for t in tables) else "rating": sum(map(len, tables)),
    }
    texts = [f"{len(parties)} {'party' if len(parties) == 1 else 'parties'}"]
    output.remark(", ".join([*texts, *(format_count(count, what) for what, count in counts.items())]))
    if len({p.ratings.scale for p in parties}) > 1:
        output.remark(
            "  rating scales differ between parties; errors are on each party's own scale", style="dim"
        )
    for name in (p.name for p in parties if not p.ratings.likes):
        output.warn(f"{name} has no like, a rating in the upper quarter of its scale: no lists are trained")
    for note in dict.fromkeys(f"{p.name}: {note}" for p in parties for note in p.ratings.notes):
        output.remark(f"  {note}", style="dim")


def parse_gnn(name: str | None) -> str | None:
    """Return the name of an installed GNN, or None if none is given; raise ConfigError for an unknown one."""
    return None if name is None else check_gnn(name)

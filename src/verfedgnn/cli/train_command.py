"""`verfedgnn train`: train a federation on one machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

import verfedgnn as vf
from verfedgnn.cli import shared_options as shared
from verfedgnn.cli.next_step import Request, command_text, show_next, show_run_findings
from verfedgnn.cli.output import STANDARD, Output
from verfedgnn.cli.signals import Halt
from verfedgnn.cli.tables import run_texts
from verfedgnn.core.errors import ConfigError, DataError, Interrupted
from verfedgnn.reports.round_progress import RoundProgress, TrainingPlan

if TYPE_CHECKING:
    from verfedgnn.data.read_options import ReadOptions


LONG = 300.0
"""Seconds from which a sample of users gives a first answer."""
FIRST_SECONDS = 90.0
"""Seconds that the first answer may take; reading and judging bring it to two minutes."""


@dataclass(frozen=True, kw_only=True)
class TrainRequest(Request):
    """What `verfedgnn train` was asked for: its options, and what follows from them.

    Training:
        seed: Random seed.
        epsilon: Privacy budget, which chooses the noise. Needs --preset private.
        config: TOML file of settings, applied after the preset.
        judge: Only judge: train no model on all ratings. What is served has not seen the test part.
    Run:
        out: Run folder to write.
        details: Print all tables, not only the verdict.
        lift: Measure what joining gains, as every training does.
        resume: Resume the interrupted training of this run folder.
        final: Train the model of all ratings of this run folder, which was only judged (--judge).
        after: The run before this one: users forgotten in it are left out, and a warning tells of a wrong file.
        overwrite: Overwrite the run folder if it exists.
    """

    command: ClassVar[str] = "train"
    data: shared.Data = None
    reading: ReadOptions
    preset: str | None = None
    model: str | None = None
    parties: shared.Parties = None
    by: str | None = None
    users: str | None = None
    seed: int | None = None
    set_: shared.Settings = None
    epsilon: float | None = None
    config: Path | None = None
    judge: bool = False
    out: shared.Folder = None
    details: bool = False
    lift: Annotated[bool, typer.Option(hidden=True)] = False
    resume: shared.OtherRun = None
    final: shared.OtherRun = None
    after: shared.OtherRun = None
    overwrite: bool = False
    device: str = "cpu"
    threads: shared.Threads = 1
    output: Output = STANDARD

    @property
    def folder(self) -> Path | None:
        """Folder of the run; None if it is not kept."""
        return self.resume or self.final or self.out

    def check(self) -> None:
        """Raise `ConfigError` if options contradict each other."""
        if len(self.data or []) > 1 and (self.parties or self.by is not None):
            problem = "--parties and --by divide one data set"
            raise ConfigError(f"{problem}; leave them out with one file per party")
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

    def choose(self) -> vf.Config:
        """Return the configuration of a new training."""
        from verfedgnn.config import build_config, parse_settings
        from verfedgnn.privacy.rating_dp import fit_budget

        given = {"seed": self.seed, "users": self.users, "final": False if self.judge else None}
        overrides = parse_settings(self.set_ or []) | {k: v for k, v in given.items() if v is not None}
        chosen = build_config(preset=self.preset or "best", model=self.model, file=self.config)
        chosen = chosen.with_values(overrides)
        return chosen if self.epsilon is None else fit_budget(chosen, wanted=self.epsilon)

    def read(self, config: vf.Config) -> list[vf.PartyData]:
        """Read the data of a new training, and say what was found."""
        from verfedgnn.data.ratings import format_count
        from verfedgnn.privacy.visibility import describe_two_parties
        from verfedgnn.runs.forget_record import read_forgotten_users
        from verfedgnn.runs.run_folder import holds_run

        if self.out is not None:
            holds_run(self.out, self.overwrite)
        with self.output.busy("reading the data"):
            read = vf.read_parties(
                self.data or ["synthetic"],
                parties=self.parties,
                seed=config.seed,
                by=self.by,
                users=config.users,
                reading=self.reading,
            )
            read, _, gone = read_forgotten_users(self.after, self.out).leave_out(read)
        _introduce(read, self.output)
        if len(read) == 2:
            self.output.remark(f"  {describe_two_parties(config)}", style="dim")
        if gone:
            count = format_count(gone, "forgotten user")
            self.output.warn(f"left out {count}; remove them from your own data, too")
        return read

    def run(self, parties: list[vf.PartyData], config: vf.Config) -> vf.Run:
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
                return resume(self.resume, **options)
            if self.final is not None:
                return train_final(self.final, **options)
            config, names = choose_config(parties, config), [party.name for party in parties]
            with self.output.busy("estimating time and bytes"):
                expected = {} if self.output.quiet else forecast(parties, config, device=self.device)
            progress.plan = TrainingPlan.of(names, config, expected)
            if expected:
                self.output.remark(progress.plan.describe_cost(len(parties)))
            if progress.plan.seconds > LONG and config.training.gate and config.split.kind != "all":
                self.answer_first(parties, config, progress, options)
            options |= {"out": self.out, "after": self.after, "overwrite": self.overwrite}
            return train(parties, config, **options)

    def answer_first(
        self, parties: list[vf.PartyData], config: vf.Config, progress: RoundProgress, options: dict[str, Any]
    ) -> None:
        """Print the verdict of a training with so many users, drawn at random, as two minutes allow."""
        import numpy as np

        from verfedgnn.evaluation.verdict import headline
        from verfedgnn.training.train import train

        everybody = parties[0].ratings.n_users
        count = max(1, int(everybody * FIRST_SECONDS / progress.plan.seconds))
        drawn = np.sort(np.random.default_rng(config.seed).permutation(everybody)[:count])
        sample = [vf.PartyData(party.name, party.ratings.select_users(drawn)) for party in parties]

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

    def report(self, run: vf.Run) -> None:
        """Print the result and the next command: for a run after another one, whether it may replace that one."""
        folder, output = self.folder, self.output
        output.result(run.metrics, *run_texts(run, details=self.details))
        if folder is None:
            output.remark("not saved; pass --out RUN to keep the run")
        if self.after is not None and folder is not None:
            show_next(output, [], ["promote", str(folder), "--over", str(self.after)])
        else:
            show_run_findings(output, run, folder)


AGAIN = ("details", "lift", "device", "threads", "output")
"""Options that a resumed training takes again."""


def train(request: TrainRequest) -> None:
    """Train a federation on one machine and print its accuracy, the bytes sent and what is protected.

    After Ctrl-C, `--resume` continues to the same result. `--json` prints the content of metrics.json. `verfedgnn settings` explains
    every setting.
    """
    from verfedgnn.runs.run import read_run_config

    shared.use_threads(request.threads)
    request.check()
    given = request.resume or request.final
    config = request.choose() if given is None else read_run_config(given)
    request.report(request.run(request.read(config) if given is None else [], config))


@contextmanager
def _resumable(request: TrainRequest) -> Iterator[None]:
    """Name the command that resumes the training when it is interrupted, and keep the options of the training."""
    folder = request.folder
    remedy, stopped = "nothing is kept; pass --out RUN to be able to resume", "stopped"
    if folder is not None:
        remedy = f"continue with `{request.resume_command()}`"
        stopped = "stopped at once; the run resumes from its last checkpoint"
    try:
        yield
    except Interrupted as stop:
        raise Interrupted(stop.what, remedy) from None
    except KeyboardInterrupt:
        if folder is not None and not (folder / "config.toml").is_file():
            raise
        raise Interrupted(stopped, remedy) from None


def _introduce(parties: list[vf.PartyData], output: Output) -> None:
    from verfedgnn.data.rating_checks import CHECK
    from verfedgnn.data.ratings import format_count

    tables = [party.ratings for party in parties]
    members = f"{len(parties)} {'party' if len(parties) == 1 else 'parties'}"
    users = format_count(tables[0].n_users, "user")
    items = format_count(sum(table.n_items for table in tables), "item")
    what = "like" if all(table.likes == len(table) for table in tables) else "rating"
    output.remark(f"{members}, {users}, {items}, {format_count(sum(map(len, tables)), what)}")
    if len({table.scale for table in tables}) > 1:
        remark = "  rating scales differ between parties; errors are on each party's own scale"
        output.remark(remark, style="dim")
    for name in (party.name for party in parties if not party.ratings.likes):
        output.warn(f"{name} has no like, a rating in the upper quarter of its scale: no lists are trained")
    for note in dict.fromkeys(f"{p.name}: {note}" for p in parties for note in p.ratings.notes):
        output.warn(note) if CHECK in note else output.remark(f"  {note}", style="dim")

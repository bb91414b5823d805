"""The last lines of a command: what its result means, and the next command, complete and quoted for the shell."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verfedgnn.cli.output import Output
from verfedgnn.plugins import list_files

if TYPE_CHECKING:
    from verfedgnn.data import PartyData
    from verfedgnn.data.read_options import ReadOptions
    from verfedgnn.reports.diagnosis import Finding, Step
    from verfedgnn.runs.run import Run

MOST_SENTENCES = 3
"""Findings that a command shows; the report has all of them."""
FILE = "command.json"
"""File in a run folder with the options of its training."""

Words = list[str]


@dataclass(frozen=True)
class TrainingWords:
    """The options of a training that choose data and settings, as pairs of a name and a value; sources without passwords."""

    options: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, sources: Sequence[str] | None, reading: ReadOptions, **options: Any) -> TrainingWords:
        """Return the given options; values of None are left out, lists are repeated."""
        from verfedgnn.data.read_options import redact

        words = reading.to_arguments()
        pairs = [("--data", redact(source)) for source in sources or ["synthetic"]]
        return cls((*pairs, *zip(words[::2], words[1::2], strict=True), *_pairs(options)))

    @property
    def sources(self) -> Words:
        """The sources of the data."""
        return [value for name, value in self.options if name == "--data"]

    def train(self, options: Sequence[str] = (), *, out: Path | str, lift: bool = True) -> Words:
        """Return the command that trains with these options, some of them replaced by `options`."""
        changed = self
        for name, value in zip(options[::2], options[1::2], strict=True):
            changed = changed._with(name, value)
        return [
            "train",
            *_flat(changed.options),
            *(["--lift"] if lift else []),
            "--out",
            str(fresh_path(out)),
        ]

    def declared(self, parties: Sequence[PartyData]) -> TrainingWords:
        """Return these options with scales and catalogues as preset private needs them; those that are given stay."""
        given = {name for name, _ in self.options}
        several = len(self.sources) > 1
        more: list[tuple[str, str]] = []
        for party in parties if several else parties[:1]:
            head = f"{party.name}:" if several else ""
            low, high = party.ratings.scale
            more.append(("--scale", f"{head}{low:g},{high:g}"))
            if several:
                more.append(("--catalogue", f"{head}{party.ratings.n_items}"))
        return TrainingWords((*self.options, *(pair for pair in more if pair[0] not in given)))

    def tune(self, out: Path | str) -> Words:
        """Return the command that tunes the settings for the same data."""
        kept = [
            pair for pair in self.options if pair[0] not in ("--users", "--epsilon", "--protect", "--config")
        ]
        kept += [("--set", f"users={value}") for name, value in self.options if name == "--users"]
        return ["tune", *_flat(kept), "--out", str(fresh_path(out))]

    def check(self) -> Words:
        """Return the command that checks the sources."""
        from verfedgnn.data.read_options import ReadOptions

        reading = [f"--{field.name}" for field in fields(ReadOptions)]
        return ["data", "check", *self.sources, *_flat(pair for pair in self.options if pair[0] in reading)]

    def _with(self, name: str, value: str) -> TrainingWords:
        """Return these options with one more, which replaces an earlier one of the same name or setting."""

        def is_replaced(pair: tuple[str, str]) -> bool:
            option, given = pair
            if name == "--set":
                return option == "--set" and _setting(given) == _setting(value)
            if name == "--preset" and option == "--set":  # these settings may not exist in another preset
                return _setting(given).partition(".")[0] in ("model", "exchange", "gradients")
            return option == name or (name == "--preset" and option in ("--epsilon", "--protect", "--model"))

        return TrainingWords((*(pair for pair in self.options if not is_replaced(pair)), (name, value)))

    def save(self, folder: Path) -> None:
        """Write the options to a run folder, so that later commands can name a training of the same data."""
        from verfedgnn.core.files import writing
        from verfedgnn.runs.run import write_json

        with writing(folder):
            write_json(folder / FILE, {"folder": str(Path.cwd()), "options": self.options})

    @classmethod
    def load(cls, folder: Path) -> TrainingWords | None:
        """Return the options of the training of a run folder; None if it was not trained by a command."""
        try:
            saved = json.loads((folder / FILE).read_text("utf-8"))
            place = Path(saved["folder"])
            pairs = [(str(name), str(value)) for name, value in saved["options"]]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return cls(tuple((name, _seen_from_here(name, value, place)) for name, value in pairs))


def _flat(pairs: Iterable[tuple[str, str]]) -> Words:
    return [word for pair in pairs for word in pair]


def _pairs(options: dict[str, Any]) -> list[tuple[str, str]]:
    found = []
    for name, given in options.items():
        values = given if isinstance(given, list) else [] if given is None else [given]
        found += [(f"--{name.strip('_')}", str(value)) for value in values]
    return found


def _setting(text: str) -> str:
    """Return the path of the setting in `NAME=VALUE`."""
    from verfedgnn.config import setting_path

    return setting_path(text.partition("=")[0])


def _seen_from_here(option: str, value: str, place: Path) -> str:
    """Return a file name that was relative to `place` relative to the current folder."""
    if option not in ("--data", "--config", "--preset") or place == Path.cwd():
        return value
    name, equals, file = value.rpartition("=")
    if not file or not (place / file).exists():
        return value
    return f"{name}{equals}{os.path.relpath(place / file)}"


def fresh_path(wanted: Path | str) -> Path:
    """Return `wanted`, or the first of `wanted-2`, `wanted-3`, ... that does not exist."""
    path = Path(wanted)
    free = path
    number = 1
    while free.exists():
        number += 1
        free = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return free


def add_columns(words: Sequence[str], flags: Sequence[str]) -> Words:
    """Return a command with values of `--columns`, which replace those of the same source."""
    sources = {flag.partition(":")[0] if ":" in flag else "" for flag in flags}
    kept: Words = []
    place = 0
    while place < len(words):
        pair = words[place : place + 2]
        if pair[0] == "--columns" and len(pair) == 2:
            if (pair[1].partition(":")[0] if ":" in pair[1] else "") not in sources:
                kept += pair
            place += 2
        else:
            kept.append(words[place])
            place += 1
    return [*kept, *(word for flag in flags for word in ("--columns", flag))]


def command_text(words: Sequence[str]) -> str:
    """Return a command of this program as text for the shell, with the plug-ins that are loaded and without passwords."""
    plugins = [word for file in list_files() for word in ("--plugin", os.path.relpath(file))]
    return shlex.join([*_program(), *plugins, *map(_without_password, words)])


def _without_password(word: str) -> str:
    """Return a word of a command, without the password of an address."""
    if ":/" not in word and "password" not in word.lower():
        return word
    from verfedgnn.data.read_options import redact

    return redact(word)


def _program() -> Words:
    """Return how this program was called."""
    called = sys.argv[0]
    if called.endswith("__main__.py"):
        python = shutil.which("python")
        same = python is not None and Path(python).resolve() == Path(sys.executable).resolve()
        return ["python" if same else sys.executable, "-m", "verfedgnn"]
    found = shutil.which("verfedgnn")
    return ["verfedgnn" if found is not None and Path(found) == Path(called).absolute() else called]


def show_next(output: Output, sentences: Sequence[str], command: Sequence[str], where: str = "") -> None:
    """Print what a result means and the next command; `where` says at whom it runs, if not here."""
    if sentences:
        output.remark(f"diagnosis: {' '.join(sentences[:MOST_SENTENCES])}")
    output.remark(f"next{where and f', {where}'}: {command_text(command)}")


def diagnose_run(run: Run, *, whole: bool = True) -> list[Finding]:
    """Return what the figures of a run show; a party's run of a federation says nothing about overlap."""
    from verfedgnn.reports.diagnosis import Customers, diagnose

    customers = Customers.count(run.parties) if whole else None
    return diagnose(run.metrics, run.config, history=run.history, customers=customers)


def show_run_findings(output: Output, run: Run, folder: Path | None, words: TrainingWords | None) -> None:
    """Print what the figures of a run show, and the next command for it."""
    findings = diagnose_run(run)
    command = next_command(findings, folder, words)
    show_next(output, [finding.text for finding in findings], command)


def next_command(findings: Sequence[Finding], folder: Path | None, words: TrainingWords | None) -> Words:
    """Return the command for the first finding that has one and for which enough is known.

    A run that is not saved is trained again into a folder. Without the options of its training, a run is reported.
    """
    steps = [finding.step for finding in findings if finding.step is not None]
    if folder is None:
        first = steps[0]
        options = first.options if first.action == "train" else ()
        return (words or TrainingWords()).train(options, out="runs/first", lift=first.action != "serve")
    for step in steps:
        command = _command(step, folder, words)
        if command is not None:
            return command
    return ["report", str(folder)]


def _command(step: Step, folder: Path, words: TrainingWords | None) -> Words | None:
    """Return the command of one step; None if it needs the options of the training and they are not known."""
    if step.action in ("report", "serve"):
        return [step.action, str(folder)]
    if step.action == "lift":
        return ["lift", str(folder)]
    if words is None:
        return None
    if step.action == "train":
        return words.train(step.options, out=folder)
    if step.action == "tune":
        return words.tune("tuned.toml")
    return words.check() if len(words.sources) > 1 else None

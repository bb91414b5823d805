"""The last lines of a command: what its result means, and the next command, complete and quoted for the shell."""

from __future__ import annotations

import itertools
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from verfedgnn.cli.output import Output
from verfedgnn.plugins import list_files

if TYPE_CHECKING:
    from verfedgnn.runs.run import Run

MOST_SENTENCES = 3
"""Findings that a command shows; the report has all of them."""


class Request:
    """The options of a command, from which it can be printed; a subclass is a dataclass with a field per option."""

    command: ClassVar[str]

    def to_words(self, *, without: Sequence[str] = ()) -> list[str]:
        """Return the command, with the options that are not at their defaults."""
        words = [self.command]
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if value == field.default or value is None or field.name in without:
                continue
            if hasattr(value, "to_arguments"):
                words += value.to_arguments()
                continue
            name = f"--{field.name.strip('_').replace('_', '-')}"
            for each in value if isinstance(value, list) else [value]:
                words += [name] if each is True else [name, str(each)]
        return words


def fresh_path(wanted: Path | str) -> Path:
    """Return `wanted`, or the first of `wanted-2`, `wanted-3`, ... that does not exist."""
    path = Path(wanted)
    others = (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in itertools.count(2))
    return next(free for free in itertools.chain([path], others) if not free.exists())


def add_columns(words: Sequence[str], flags: Sequence[str]) -> list[str]:
    """Return a command with values of `--columns`, which replace those of the same source, or all if there is one source."""
    sources = [flag[: flag.find(":") + 1] for flag in flags]
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        value = next(rest, None) if word == "--columns" else None
        if value is None or not {"", value[: value.find(":") + 1]}.intersection(sources):
            kept += [word] if value is None else [word, value]
    return [*kept, *(word for flag in flags for word in ("--columns", flag))]


def command_text(words: Sequence[str]) -> str:
    """Return a command of this program as text for the shell, with the plug-ins that are loaded."""
    plugins = [word for file in list_files() for word in ("--plugin", os.path.relpath(file))]
    return shlex.join([*_program(), *plugins, *words])


def _program() -> list[str]:
    """Return how this program was called."""
    called = sys.argv[0]
    if called.endswith("__main__.py"):
        python = shutil.which("python")
        same = python is not None and Path(python).resolve() == Path(sys.executable).resolve()
        return ["python" if same else sys.executable, "-m", "verfedgnn"]
    return ["verfedgnn" if shutil.which("verfedgnn") == str(Path(called).absolute()) else called]


def show_next(output: Output, sentences: Sequence[str], command: Sequence[str], where: str = "") -> None:
    """Print what a result means and the next command; `where` says at whom it runs, if not here."""
    if sentences:
        output.remark(f"diagnosis: {' '.join(sentences[:MOST_SENTENCES])}")
    output.remark(f"next{where and f', {where}'}: {command_text(command)}")


def show_run_findings(output: Output, run: Run, folder: Path | None) -> None:
    """Print what the figures of a run show beside its verdict, and the next command."""
    from verfedgnn.reports.phrases import diagnose

    findings = diagnose(run.metrics, run.judged.config)
    show_next(output, findings, ["train", "--help"] if folder is None else ["report", str(folder)])

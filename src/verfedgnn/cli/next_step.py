"""The last lines of a command: what its result means, and the next command, complete and quoted for the shell."""

from __future__ import annotations

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

Words = list[str]


class Request:
    """The options of a command, from which it can be printed; a subclass is a dataclass with a field per option."""

    command: ClassVar[str]

    def to_words(self, *, without: Sequence[str] = ()) -> Words:
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
    """Return a command of this program as text for the shell, with the plug-ins that are loaded."""
    plugins = [word for file in list_files() for word in ("--plugin", os.path.relpath(file))]
    return shlex.join([*_program(), *plugins, *words])


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


def show_run_findings(output: Output, run: Run, folder: Path | None) -> None:
    """Print what the figures of a run show beside its verdict, and the next command."""
    from verfedgnn.reports.phrases import diagnose

    findings = diagnose(run.metrics, run.judged.config, history=run.history)
    if folder is None:
        show_next(output, findings, ["train", "--help"])
    else:
        show_next(output, findings, ["report", str(folder)])

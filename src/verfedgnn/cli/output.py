"""What a command says: its result on standard output, everything else on standard error, colours and bars on a terminal only."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

_WIDTH = 160
"""Columns of tables in a file or a pipe, so that no cell has to be cut."""


def error_console() -> Console:
    """Where progress and remarks go."""
    return Console(stderr=True, highlight=False)


def drawable(console: Console) -> bool:
    """Whether somebody sees a bar move: a terminal, and not one that can only print."""
    return console.is_interactive and sys.stderr.isatty()


def program() -> str:
    """How the command was called, for lines that are to be copied."""
    return "python -m verfedgnn" if sys.argv[0].endswith("__main__.py") else sys.argv[0]


class Output:
    """The two streams of a command, as `--quiet` and `--json` ask for them."""

    def __init__(self, *, quiet: bool, as_json: bool) -> None:
        self.quiet, self.as_json = quiet, as_json

    def remark(self, text: str, *, style: str | None = None) -> None:
        """Something worth knowing that is not the result."""
        if not self.quiet:
            error_console().print(text, style=style, markup=False, soft_wrap=True)

    def result(self, value: Any, *shown: RenderableType) -> None:
        """What the command is for: `value` as a line of JSON, or else `shown`, tables and lines of text."""
        if self.as_json:
            print(json.dumps(value, allow_nan=False, default=str), flush=True)
            return
        console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)
        for part in shown:
            if isinstance(part, str):
                console.print(part, markup=False, soft_wrap=True)
            else:
                console.print(part)

    @contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """While something takes a moment that cannot be measured: on a terminal, what it is and for how long it lasts."""
        console = error_console()
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(
            *columns, console=console, transient=True, disable=self.quiet or not drawable(console)
        ) as bar:
            bar.add_task(what, total=None)
            yield

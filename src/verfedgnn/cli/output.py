"""Output of commands: results on standard output, the rest on standard error, which survive a closed pipe."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any, TextIO, cast

from rich.console import RenderableType
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from verfedgnn.reports.console import SafeConsole, drawable, error_console

_WIDTH = 160
"""Width of tables in a file or a pipe, wide enough that no cell is cut."""


@dataclass(frozen=True)
class Output:
    """The output of a command, which honours `--quiet` and `--json`."""

    quiet: bool = False
    as_json: bool = False

    def to_arguments(self) -> list[str]:
        """Return the options as command-line arguments."""
        return ["--quiet"] * self.quiet + ["--json"] * self.as_json

    def remark(self, text: str, *, style: str | None = None) -> None:
        """Print a line on standard error, unless `--quiet` is given."""
        if not self.quiet:
            error_console().print(text, style=style, markup=False, soft_wrap=True)

    def warn(self, text: str) -> None:
        """Print a warning on standard error, also with `--quiet`."""
        error_console().print(f"warning: {text}", style="bold yellow", markup=False, soft_wrap=True)

    def result(self, value: Any, *parts: RenderableType | None) -> None:
        """Print the result: `value` as one line of JSON with `--json`, otherwise the tables and texts in `parts`.

        None, for a table that this result does not have, is skipped.
        """
        if self.as_json:
            print(json.dumps(value, allow_nan=False, default=str), flush=True)
            return
        console = SafeConsole(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)
        for part in parts:
            if isinstance(part, str):
                console.print(part, markup=False, soft_wrap=True)
            elif part is not None:
                console.print(part)

    @contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """Show a spinner on a terminal while something runs whose duration is unknown."""
        console = error_console()
        columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
        hidden = self.quiet or not drawable(console)
        with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
            bar.add_task(what, total=None)
            yield


STANDARD = Output()
"""The output of a command without --quiet and --json."""


class Lasting:
    """A text stream that discards its output once the reader has closed the pipe."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write `text`, or discard it if nobody reads."""
        with self._discarding():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush the stream, or discard its buffer if nobody reads."""
        with self._discarding():
            self._stream.flush()

    @contextmanager
    def _discarding(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), self._stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def lasting_streams() -> Iterator[None]:
    """Replace standard output and error by `Lasting` streams and flush them at the end."""
    out, err = (cast(TextIO, Lasting(stream)) for stream in (sys.stdout, sys.stderr))
    with redirect_stdout(out), redirect_stderr(err):
        try:
            yield
        finally:
            out.flush()
            err.flush()

"""Words of messages for two surfaces: `--read missing=drop` on the command line, `missing="drop"` in Python.

Messages are written once. The command line enters `on_command_line` for the time of a command.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

READ = ("missing", "duplicates", "encoding", "delimiter", "scale", "catalogue", "ids")
"""Options of `read_ratings` that the command line takes as `--read NAME=VALUE`."""
_on_command_line = False
_table: ContextVar[str | None] = ContextVar("table", default=None)
"""The table that is being read, if there are several."""


@contextmanager
def on_command_line() -> Iterator[None]:
    """Name options as flags in messages of this block, in all threads of the process."""
    global _on_command_line
    before = _on_command_line
    _on_command_line = True
    try:
        yield
    finally:
        _on_command_line = before


@contextmanager
def reading_table(name: str | None) -> Iterator[None]:
    """Name the option `columns` for this table alone in messages of this block, because other tables have other columns."""
    token = _table.set(name)
    try:
        yield
    finally:
        _table.reset(token)


def option(name: str, value: Any = None) -> str:
    """Return an option, with a value if one is given, as the reader of a message writes it."""
    table = _table.get()
    if table is not None and name == "columns" and value is not None:
        return (
            f"--columns {table}:{_as_text(value)}"
            if _on_command_line
            else option("own", {table: {name: value}})
        )
    if not _on_command_line:
        return name if value is None else f"{name}={_in_python(value)}"
    if name in READ:
        return f"--read {name}={'...' if value is None else _as_text(value)}"
    named = f"--{name.replace('_', '-')}"
    return named if value is None or value is True else f"{named} {_as_text(value)}"


def setting(path: str, value: Any) -> str:
    """Return a setting with a value: `--set model.dim=16`, or the keyword argument `dim=16` in Python."""
    if _on_command_line:
        return f"--set {path}={_as_text(value)}"
    return f"{path.split('.')[-1]}={_in_python(value)}"


def worded(command: str, python: str) -> str:
    """Return the words of a message that the reader's surface needs: those for the command line, or those for Python."""
    return command if _on_command_line else python


def resume_words(folder: Path) -> str:
    """Return how to resume the training of `folder`."""
    return worded(f"`verfedgnn train --resume {folder}`", f"`vf.resume({_in_python(str(folder))})`")


def _in_python(value: Any) -> str:
    if isinstance(value, str):
        return "..." if value == "..." else json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_in_python(key)}: {_in_python(each)}" for key, each in value.items()) + "}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_in_python, value))})"
    return repr(value)


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return ",".join(f"{key}={_as_text(each)}" for key, each in value.items())
    if isinstance(value, tuple):
        return ",".join(map(_as_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def make_printable(text: str) -> str:
    """Return `text` with "?" for every character that a terminal may interpret; line breaks stay.

    Those are control characters, which begin escape sequences, and invisible ones, which change the direction of text.
    """
    return "".join(c if c.isprintable() or c == "\n" else " " if c.isspace() else "?" for c in text)

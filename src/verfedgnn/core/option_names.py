"""Names of options in messages: `--missing drop` on the command line, `missing="drop"` in Python.

Messages are written once. The command line enters `on_command_line` for the time of a command.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

_on_command_line = False


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


def option(name: str, value: Any = None, *, flag: str | None = None) -> str:
    """Return an option, with a value if one is given, as the reader of a message writes it.

    `flag` is the name on the command line if it differs from the argument's.
    """
    if not _on_command_line:
        return name if value is None else f"{name}={_in_python(value)}"
    named = f"--{flag or name.replace('_', '-')}"
    return named if value is None or value is True else f"{named} {_as_text(value)}"


def setting(path: str, value: Any) -> str:
    """Return a setting with a value: `--set masking=true`, or `masking=True`, `**{"model.dim": 16}` in Python."""
    if _on_command_line:
        return f"--set {path}={_as_text(value)}"
    return f'**{{"{path}": {_in_python(value)}}}' if "." in path else f"{path}={_in_python(value)}"


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

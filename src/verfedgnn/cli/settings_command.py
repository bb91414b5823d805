"""`verfedgnn settings`: explain the settings of a training."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from verfedgnn.cli.output import STANDARD, Output
from verfedgnn.cli.tables import make_table

if TYPE_CHECKING:
    from verfedgnn.config.settings import Setting


def settings(
    name: Annotated[str | None, typer.Argument()] = None,
    output: Output = STANDARD,
) -> None:
    """Explain settings: what each does, its range, its default and its value in each preset.

    Change a setting with `--set NAME=VALUE` or in a TOML file for `--config`. The last word of a name is enough.

    Args:
        name: A setting, such as model.dim or lr, or a part of names, such as model. Unset: all settings.
    """
    from verfedgnn.config.tree import find_settings

    entries = find_settings(name)
    texts = "\n\n".join(map(describe_entry, entries))
    output.result(
        [entry.to_dict() for entry in entries], texts, preset_table(entries) if entries[1:] else None
    )


def preset_table(entries: Sequence[Setting]) -> Table:
    """Return the value of each setting in each preset, in columns; a dash where a preset lacks the setting."""
    from verfedgnn.config import presets
    from verfedgnn.config.tree import format_value

    names = [name for entry in entries for name in entry.presets]
    columns = [name for name in dict.fromkeys(names + presets()) if name in presets()]
    rows = [
        [entry.path]
        + [format_value(entry.presets[name]) if name in entry.presets else "-" for name in columns]
        for entry in entries
    ]
    return make_table(["setting", *columns], rows, "\nIn each preset", box=None)


def describe_entry(entry: Setting) -> str:
    """Return a setting as lines of text."""
    from verfedgnn.config.tree import format_value

    default = "must be given" if entry.required else f"default {format_value(entry.default)}"
    lines = [f"{entry.path}: {entry.range}; {default}"]
    if entry.belongs_to:
        lines.append(f"only with {entry.belongs_to}")
    lines += textwrap.wrap(entry.explanation, 94)
    lines.append(
        "   ".join(f"{preset} {format_value(value)}" for preset, value in entry.presets.items())
        or "in no preset"
    )
    return "\n    ".join(lines)

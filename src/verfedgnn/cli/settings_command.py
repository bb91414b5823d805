"""`verfedgnn settings`: explain the settings of a training."""

from __future__ import annotations

from typing import Annotated

import typer

from verfedgnn.cli.output import STANDARD, Output


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
    output.result([entry.to_dict() for entry in entries], "\n\n".join(entry.describe() for entry in entries))

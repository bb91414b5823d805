"""A hook of the documentation site that writes the reference of all commands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer.main
from mkdocs.structure.files import File, Files

from verfedgnn.cli.main import app
from verfedgnn.config.settings import format_value
from verfedgnn.config.tree import find_settings

URI = "reference/commands.md"
BEGINNING = """\
# Commands

This page is generated from the help texts that `verfedgnn COMMAND --help` prints. [The terminal](../terminal.md)
describes what all commands share, such as exit codes and stopping.
"""


def on_files(files: Files, config: Any) -> Files:
    """Add the page to the site."""
    files.append(File.generated(config, URI, content=command_reference()))
    return files


def command_reference() -> str:
    """Return a page with every command, its arguments and options, and every setting of a training."""
    root = typer.main.get_command(app)
    context = typer.Context(root, info_name="verfedgnn")
    named = list(_named(root, ["verfedgnn"]))
    rows = [f"| [`{name}`](#{name.replace(' ', '-')}) | {_sentence(command)} |" for name, command in named]
    contents = "\n".join(["| | |", "|---|---|", *rows])
    parts = [
        f"## `{name}`\n\n{command.help}\n\n{_options(command, name, context)}" for name, command in named
    ]
    every = f"## With any command\n\n`verfedgnn [OPTIONS] COMMAND ...`\n\n{_options(root, '', context)}"
    return "\n\n".join([BEGINNING, contents, every, *parts, f"## Settings\n\n{_settings()}\n"])


def _named(group: Any, path: list[str]) -> Iterator[tuple[str, Any]]:
    """Yield all commands with their full names; a group yields its commands."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _named(command, [*path, name])
        else:
            yield " ".join([*path, name]), command


def _options(command: Any, name: str, context: Any) -> str:
    """Return the usage and a table of arguments and options."""
    rows = []
    for parameter in command.params if name else command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            rows.append(
                f"| `{record[0].replace('|', '/')}` | {' '.join(record[1].split()).replace('|', '/')} |"
            )
    usage = f"`{name} {' '.join(command.collect_usage_pieces(context))}`\n\n" if name else ""
    return usage + "\n".join(["| option | |", "|---|---|", *rows])


def _settings() -> str:
    """Return a list of every setting with its explanation, range and default."""
    rows = []
    for setting in find_settings():
        default = "must be given" if setting.required else f"default {format_value(setting.default)}"
        condition = f"; only with {setting.belongs_to}" if setting.belongs_to else ""
        rows.append(f"- `{setting.path}` ({setting.range}; {default}{condition}): {setting.explanation}")
    return "\n".join(rows)


def _sentence(command: Any) -> str:
    """Return the first paragraph of a command's help on one line."""
    return " ".join((command.help or "").split("\n\n")[0].split())

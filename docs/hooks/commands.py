"""The page of all commands, made from the commands themselves whenever the site is built."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer.main
from mkdocs.structure.files import File, Files

from verfedgnn.cli.main import app
from verfedgnn.cli.train_command import settings_help

URI = "reference/commands.md"
BEGINNING = """\
# Commands

Made from the commands themselves; `verfedgnn COMMAND --help` says the same. What all of them share, such as exit codes
and stopping, is in [the terminal](../terminal.md).
"""


def on_files(files: Files, config: Any) -> Files:
    """Add the page."""
    files.append(File.generated(config, URI, content=command_reference()))
    return files


def command_reference() -> str:
    """Every command with its arguments and options, and every setting of a training."""
    root = typer.main.get_command(app)
    context = typer.Context(root, info_name="verfedgnn")
    named = list(_named(root, ["verfedgnn"]))
    rows = [f"| [`{name}`](#{name.replace(' ', '-')}) | {_sentence(command)} |" for name, command in named]
    contents = "\n".join(["| | |", "|---|---|", *rows])
    parts = [
        f"## `{name}`\n\n{command.help}\n\n{_options(command, name, context)}" for name, command in named
    ]
    every = f"## Before any command\n\n`verfedgnn [OPTIONS] COMMAND ...`\n\n{_options(root, '', context)}"
    return "\n\n".join([BEGINNING, contents, every, *parts, f"## Settings\n\n{settings_help()}\n"])


def _named(group: Any, path: list[str]) -> Iterator[tuple[str, Any]]:
    """Commands with their whole names, those of groups in place of the group."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _named(command, [*path, name])
        else:
            yield " ".join([*path, name]), command


def _options(command: Any, name: str, context: Any) -> str:
    """Usage, and a table of arguments and options."""
    rows = []
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record is not None:
            rows.append(
                f"| `{record[0].replace('|', '/')}` | {' '.join(record[1].split()).replace('|', '/')} |"
            )
    usage = f"`{name} {' '.join(command.collect_usage_pieces(context))}`\n\n" if name else ""
    return usage + "\n".join(["| option | |", "|---|---|", *rows])


def _sentence(command: Any) -> str:
    """The first paragraph of its help, on one line."""
    return " ".join((command.help or "").split("\n\n")[0].split())

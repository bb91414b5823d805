"""The page of all commands, made from the commands themselves whenever the site is built."""

from __future__ import annotations

from typing import Any

import typer.main
from mkdocs.structure.files import File, Files
from typer.cli import get_docs_for_click

from verfedgnn.cli.main import app
from verfedgnn.cli.train import settings_help

URI = "reference/commands.md"
BEGINNING = """\
Made from the commands themselves; `verfedgnn COMMAND --help` says the same. What all of them share, such as exit codes
and stopping, is in [the terminal](../terminal.md).
"""


def on_files(files: Files, config: Any) -> Files:
    """Add the page."""
    files.append(File.generated(config, URI, content=command_reference()))
    return files


def command_reference() -> str:
    """Every command with its options, and every setting of a training."""
    root = typer.main.get_command(app)
    context = typer.Context(root, info_name="verfedgnn")
    text = get_docs_for_click(obj=root, ctx=context, name="verfedgnn", title="Commands")
    return f"{text.replace('# Commands', f'# Commands{chr(10)}{chr(10)}{BEGINNING}', 1)}\n## Settings\n\n{settings_help()}\n"

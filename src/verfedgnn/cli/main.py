"""The `verfedgnn` command: its sub-commands, and one place where errors become one line and an exit code."""

from __future__ import annotations

import sys

import typer
from rich.console import Console
from rich.markup import escape

import verfedgnn
from verfedgnn.cli import data, federation
from verfedgnn.cli.attack import attack
from verfedgnn.cli.audit import audit
from verfedgnn.cli.bench import bench
from verfedgnn.cli.compare import compare
from verfedgnn.cli.coordinator import coordinator
from verfedgnn.cli.evaluate import evaluate
from verfedgnn.cli.paper import paper
from verfedgnn.cli.party import align, party
from verfedgnn.cli.recommend import recommend
from verfedgnn.cli.report import report
from verfedgnn.cli.serve import serve
from verfedgnn.cli.status import status
from verfedgnn.cli.train import settings_help, train
from verfedgnn.cli.tune import tune
from verfedgnn.errors import VerFedGNNError

app = typer.Typer(
    name="verfedgnn",
    help="Organisations that share users but not items train one graph recommender together, "
    "without showing each other who consumed what.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"verfedgnn {verfedgnn.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    """What all commands share."""


app.command(epilog=settings_help())(train)
app.command()(evaluate)
app.command()(recommend)
app.command()(serve)
app.command()(report)
app.command()(tune)
app.add_typer(data.app)
app.command(rich_help_panel="Experiments")(compare)
app.command(rich_help_panel="Experiments")(paper)
app.command(rich_help_panel="Experiments")(attack)
app.command(rich_help_panel="Experiments")(audit)
app.command(rich_help_panel="Experiments")(bench)
app.add_typer(federation.app, rich_help_panel="Across organisations")
for command in (coordinator, party, align, status):
    app.command(rich_help_panel="Across organisations")(command)


def main() -> None:
    """Run the command line; a user's mistake is one line on standard error, never a stack trace."""
    try:
        app()
    except VerFedGNNError as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"[bold red]error:[/] {_escape(str(error))}")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(4)


def _escape(text: str) -> str:
    """On one line, and nothing in it that a terminal or rich would take for an instruction; a peer may have written it."""
    return escape("".join(c if c.isprintable() else "?" for c in " ".join(text.split())))

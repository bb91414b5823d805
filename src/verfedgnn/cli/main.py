"""The `verfedgnn` command: its sub-commands, and one place where errors become one line and an exit code."""

from __future__ import annotations

import shlex
import signal
import sys
import warnings
from pathlib import Path
from typing import Annotated, TextIO

import typer
from rich.console import Console
from rich.markup import escape

from verfedgnn.cli import data_command as data
from verfedgnn.cli import federation_command as federation
from verfedgnn.cli.attack_command import attack
from verfedgnn.cli.audit_command import audit
from verfedgnn.cli.bench_command import bench
from verfedgnn.cli.broken_pipe import lasting_streams
from verfedgnn.cli.compare_command import compare
from verfedgnn.cli.coordinator_command import coordinator
from verfedgnn.cli.evaluate_command import evaluate
from verfedgnn.cli.export_command import export
from verfedgnn.cli.paper_command import paper
from verfedgnn.cli.party_command import align, party
from verfedgnn.cli.recommend_command import recommend
from verfedgnn.cli.report_command import report
from verfedgnn.cli.serve_command import serve
from verfedgnn.cli.signals import interrupt
from verfedgnn.cli.status_command import status
from verfedgnn.cli.train_command import WithSettings, train
from verfedgnn.cli.tune_command import tune
from verfedgnn.core.errors import Interrupted, PluginWarning, VerFedGNNError
from verfedgnn.core.process_memory import keep_freed_memory
from verfedgnn.core.version import installed_version
from verfedgnn.plugins import load_file

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
        typer.echo(f"verfedgnn {installed_version()}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version."
    ),
    plugin: Annotated[
        list[Path] | None,
        typer.Option(help="A Python file that registers GNNs or methods of your own; also several times."),
    ] = None,
) -> None:
    """What all commands share."""
    for file in plugin or []:
        load_file(file)


# These modules load what their commands need when they are called: `--help` and completion do not wait for torch.
app.command(cls=WithSettings)(train)
app.command()(evaluate)
app.command()(recommend)
app.command()(export)
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

_CTRL_C = 130
"""What typer makes of Ctrl-C."""


def main() -> None:
    """Run the command line; a user's mistake is one line on standard error, never a stack trace."""
    keep_freed_memory()
    before, warned = signal.signal(signal.SIGTERM, interrupt), warnings.showwarning
    warnings.showwarning = _warned
    try:
        with lasting_streams():
            code = _run()
    finally:
        warnings.showwarning = warned
        signal.signal(signal.SIGTERM, before)
    sys.exit(code)


def _run() -> int:
    """The exit code: 0 fine, 2 a mistake of the user's, 3 refused by a peer, 4 interrupted; docs/terminal.md."""
    try:
        code = app(prog_name="verfedgnn", standalone_mode=False)
        if code == _CTRL_C:
            raise Interrupted("interrupted")
        return code if isinstance(code, int) else 0
    except (Interrupted, KeyboardInterrupt) as error:
        stop = error if isinstance(error, Interrupted) else Interrupted("interrupted")
        _say(str(stop) if stop.remedy else f"{stop}; continue with `{_again()}`")
        return stop.exit_code
    except VerFedGNNError as error:
        _say(str(error))
        return error.exit_code
    except typer.Abort:
        _say("nothing was changed: the question was not answered; give --yes to leave it out")
        return Interrupted.exit_code
    except typer.TyperException as error:
        return _misused(error)


def _again() -> str:
    """The same command, but for passwords."""
    from verfedgnn.data.source_address import redact

    return shlex.join(["verfedgnn", *map(redact, sys.argv[1:])])


def _misused(error: typer.TyperException) -> int:
    """An unknown option, a missing argument and the like: one line that says where the help is."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError" and context is not None:
        typer.echo(context.get_help(), nl=False)
    else:
        path = context.command_path if context is not None else "verfedgnn"
        text = error.format_message().rstrip(".")
        _say(f"{text}{'' if text.endswith('?') else ';'} see `{path} --help`")
    return error.exit_code


def _warned(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Our own warnings are lines like errors; those of libraries stay as they are."""
    if issubclass(category, PluginWarning):
        _say(str(message), "[bold yellow]warning:[/]")
    else:
        (file or sys.stderr).write(warnings.formatwarning(message, category, filename, lineno, line))


def _say(text: str, head: str = "[bold red]error:[/]") -> None:
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"{head} {_escape(text)}")


def _escape(text: str) -> str:
    """On one line, and nothing in it that a terminal or rich would take for an instruction; a peer may have written it."""
    return escape("".join(c if c.isprintable() else "?" for c in " ".join(text.split())))

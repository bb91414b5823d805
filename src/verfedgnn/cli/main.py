"""The `verfedgnn` command: registers all commands and turns errors into one line and an exit code."""

from __future__ import annotations

import atexit
import ctypes
import gc
import shlex
import signal
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from verfedgnn.cli import data_command as data
from verfedgnn.cli import federation_command as federation
from verfedgnn.cli.command_app import CommandApp, CommandGroup, Function
from verfedgnn.cli.next_step import add_columns, show_next
from verfedgnn.cli.night_command import night, nights
from verfedgnn.cli.output import Output, lasting_streams
from verfedgnn.cli.runs_commands import diff, evaluate, forget, lift, promote, report, runs
from verfedgnn.cli.service_commands import coordinator, party, status
from verfedgnn.cli.serving_commands import confirm, recommend, serve
from verfedgnn.cli.settings_command import settings
from verfedgnn.cli.train_command import train
from verfedgnn.core.errors import Interrupted, MissingColumns, PluginWarning, RunWarning, VerFedGNNError
from verfedgnn.core.installed import installed_version
from verfedgnn.core.option_names import make_printable, on_command_line
from verfedgnn.plugins import load_file
from verfedgnn.reports.console import error_console

app = CommandApp(
    name="verfedgnn",
    cls=CommandGroup,
    help="Train one graph recommender across organisations that share users but not items, "
    "while ratings and item ids stay at home.",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"verfedgnn {installed_version()}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version."
    ),
    plugin: Annotated[
        list[Path] | None,
        typer.Option(help="Python file that registers your own GNNs or methods. Repeatable."),
    ] = None,
) -> None:
    """Load plug-ins before any command runs; messages name options as flags until it ends."""
    context.with_resource(on_command_line())
    for file in plugin or []:
        load_file(file)


_COMMANDS: dict[str, tuple[Function | typer.Typer, ...]] = {
    "Train": (data.app, train, lift, evaluate, settings),
    "Use a trained model": (recommend, serve, confirm, report, runs, diff, promote, forget, night, nights),
    "Across organisations": (federation.app, coordinator, party, status),
}
"""Commands by their panel of the help. Their modules import what they need when a command runs, so that `--help` does not wait for torch."""
for _panel, _commands in _COMMANDS.items():
    for _command in _commands:
        if isinstance(_command, typer.Typer):
            app.add_typer(_command, rich_help_panel=_panel)
        else:
            app.command(rich_help_panel=_panel)(_command)


def main() -> None:
    """Run the command line. A user's mistake prints one line on standard error, never a stack trace."""
    gc.set_threshold(10_000)  # importing torch makes a million objects, which stay
    atexit.register(gc.freeze)  # else the interpreter looks at all of them as it ends
    _keep_freed_memory()
    handler = signal.signal(signal.SIGTERM, signal.default_int_handler)  # acts like Ctrl-C
    try:
        with warnings.catch_warnings(), lasting_streams():
            warnings.showwarning = _show_warning
            code = _run()
    finally:
        signal.signal(signal.SIGTERM, handler)
    sys.exit(code)


def _keep_freed_memory() -> None:
    """Let glibc reuse freed memory instead of returning it to the kernel. Without glibc, do nothing.

    By default glibc maps each block above 32 MiB separately and unmaps it when it is freed. The kernel then
    zeroes a matrix of a million users page by page each time one is allocated: half of a round's time
    (results/scale.md). All threads share one arena, so memory freed by the thread that packs messages can be
    reused by the others.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    most = 2**31 - 1
    for option, value in ((-3, most), (-1, most), (-8, 1)):  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, M_ARENA_MAX
        mallopt(option, value)


def _run() -> int:
    """Run a command and return its exit code: 0 done, 2 user error, 3 refused by a peer, 4 interrupted, 5 not promoted (docs/terminal.md)."""
    try:
        code = app(prog_name="verfedgnn", standalone_mode=False)
        if code == 130:  # what typer returns after Ctrl-C
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except (Interrupted, KeyboardInterrupt) as error:
        again = shlex.join(["verfedgnn", *sys.argv[1:]])
        stop = error if isinstance(error, Interrupted) else Interrupted("interrupted")
        _print_line(str(stop) if stop.remedy else f"{stop}; continue with `{again}`")
        return stop.exit_code
    except VerFedGNNError as error:
        _print_line(str(error))
        if isinstance(error, MissingColumns) and error.flags:
            output = Output(quiet="--quiet" in sys.argv)
            show_next(output, [], add_columns(sys.argv[1:], error.flags))
        return error.exit_code
    except typer.Abort:
        _print_line("Aborted, nothing changed. Pass --yes to skip the prompt.")
        return Interrupted.exit_code
    except typer.TyperException as error:
        return _report_usage_error(error)


def _report_usage_error(error: typer.TyperException) -> int:
    """Print a usage error as one line that names the help, and return the exit code."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError" and context is not None:
        typer.echo(context.get_help(), nl=False)
    else:
        path = context.command_path if context is not None else "verfedgnn"
        text = error.format_message().rstrip(".").replace("Value error, ", "")
        _print_line(f"{text}{'' if text.endswith('?') else ';'} see `{path} --help`")
    return error.exit_code


def _show_warning(message: Warning | str, category: type[Warning], *place: Any, **_: Any) -> None:
    """Print our own warnings as one line and those of libraries in their usual form."""
    if issubclass(category, PluginWarning | RunWarning):
        _print_line(str(message), "[bold yellow]warning:[/]")
    else:
        filename, line_number = place[:2]
        sys.stderr.write(make_printable(warnings.formatwarning(message, category, filename, line_number)))


def _print_line(text: str, head: str = "[bold red]error:[/]") -> None:
    """Print an error or warning on standard error."""
    line = " ".join(text.split())  # a peer may have written it
    error_console().print(f"{head} {escape(line)}", soft_wrap=True)

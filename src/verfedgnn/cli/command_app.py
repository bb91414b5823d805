"""How functions become commands: options from signatures, help from docstrings, commands of other packages by entry points.

[project.entry-points."verfedgnn.commands"]
name = "module:function"    or a Typer app, for a group of commands
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, MutableMapping
from copy import copy
from dataclasses import is_dataclass
from functools import wraps
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
import typer.core
import typer.main

from verfedgnn.cli.output import Output
from verfedgnn.cli.shared_options import READING, SHARED
from verfedgnn.core.errors import ConfigError

Function = Callable[..., None]
GROUP = "verfedgnn.commands"
RESEARCH = "verfedgnn-research"
PACKAGES = {
    **dict.fromkeys(("attack", "audit", "bench", "compare", "paper"), RESEARCH),
    "flare": "verfedgnn-flare",
}
"""Packages of this repository by their commands, to say what to install."""


def _keep(context: typer.Context, parameter: typer.CallbackParam, given: bool) -> None:
    name = str(parameter.name)
    context.meta[name] = given or context.meta.get(name, False)


def _declare_output(
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Print only the result, warnings and errors.", callback=_keep)
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as one line of JSON.", callback=_keep)
    ] = False,
) -> None: ...


_declaration = typer.Typer(add_completion=False)
_declaration.command()(_declare_output)
OUTPUT: list[Any] = typer.main.get_command(_declaration).params
"""Options that the program takes anywhere on the line, as it takes --help."""
for _option in OUTPUT:
    _option.expose_value = False


class _Shared:
    """What commands and groups of commands share."""

    epilog: str | None

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, each with a kind for the help, and the options of every command."""
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            argument = parameter.param_type_name == "argument"
            kind = "" if argument else parameter.metavar or _kind(parameter.type_descriptor.annotation)
            parameter.display_type_rich = lambda ctx, kind=kind: kind
        return [*parameters, *OUTPUT]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help, with one line for the options of every command."""
        self.epilog = "`--quiet` prints only the result; `--json` prints it as one line of JSON."
        for option in OUTPUT:
            option.hidden = True
        super().format_help(ctx, formatter)  # type: ignore[misc]
        for option in OUTPUT:
            option.hidden = False


class Command(_Shared, typer.core.TyperCommand):
    """A command of the program."""


class Group(_Shared, typer.core.TyperGroup):
    """A group of commands, with the options that all of them take."""


def _kind(annotation: Any) -> str:
    """Return the kind of a parameter's values, for the help."""
    inner = get_args(annotation)
    if get_origin(annotation) is Literal:
        return "|".join(inner)
    kinds = {bool: "", Path: "FILE", int: "N", float: "NUMBER"}
    return kinds.get(inner[0] if inner else annotation, "NAME")


class CommandApp(typer.Typer):
    """A group of commands, each a function whose docstring explains its options.

    The docstring has sections of lines `name: text`. The title of a section is the panel of its options in the help; `Args` is the panel
    of all others. An option that the docstring leaves out is explained in `shared_options`.

    Of the parameters, `reading` stands for --columns, --events and --read, `output` for the options of every command, and `request`, a
    dataclass, for one option per field.
    """

    def __init__(self, **options: Any) -> None:
        look = {"no_args_is_help": True, "rich_markup_mode": "markdown", "pretty_exceptions_enable": False}
        super().__init__(**{"cls": Group, **look, **options})

    def command(self, name: str | None = None, **options: Any) -> Callable[[Function], Function]:  # type: ignore[override]
        """Register a command, as typer does."""
        register = super().command(name, cls=Command, **options)

        def add(command: Function) -> Function:
            register(_with_options(command))
            return command

        return add


def _with_options(command: Function) -> Function:
    """Return a command with the options for which its parameters stand."""
    names = {"ReadOptions": object, "Output": Output}
    request = get_type_hints(command, localns=names, include_extras=True).get("request")
    asked: Any = request if is_dataclass(request) else command
    hints = get_type_hints(asked, localns=names, include_extras=True)
    expected = inspect.signature(asked).parameters
    text, explained = _read_docstring(command.__doc__ or "")
    explained = _read_docstring(SHARED)[1] | _read_docstring(asked.__doc__ or "")[1] | explained
    options: dict[str, tuple[Any, Any]] = {}
    for name, parameter in expected.items():
        if name == "reading":
            options |= {one: (kind, None) for one, kind in READING.items()}
        elif name != "output":
            options[name] = (hints[name], parameter.default)

    @wraps(command)
    def wrapped(context: typer.Context, **given: Any) -> None:
        if "output" in expected:
            given["output"] = Output(**{option.name: context.meta[option.name] for option in OUTPUT})
        if "reading" in expected:
            from verfedgnn.data.read_options import ReadOptions

            given["reading"] = ReadOptions.from_texts(**{name: given.pop(name) for name in READING})
        command(**given) if asked is command else command(asked(**given))

    parameters = [_declare(name, *option, *explained.get(name, ("", ""))) for name, option in options.items()]
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters.insert(0, inspect.Parameter("context", keyword, annotation=typer.Context))
    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    wrapped.__doc__ = text
    return wrapped


def _declare(name: str, kind: Any, default: Any, panel: str, text: str) -> inspect.Parameter:
    """Return a parameter as typer reads it: an option, or an argument if it has no default and says nothing else."""
    if get_origin(kind) is Annotated:
        kind, given = get_args(kind)
        about = copy(given)
    else:
        about = typer.Argument() if default is inspect.Parameter.empty else typer.Option()
    if about.help is None:
        about.help, about.rich_help_panel = text, panel.replace("Args", "") or None
    if default is False and about.default is ...:
        about.param_decls = (f"--{name.replace('_', '-')}",)  # without --no-NAME
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, about]
    )


def _read_docstring(docstring: str) -> tuple[str, dict[str, tuple[str, str]]]:
    """Return the text of a docstring before its sections, and the panel and the help of each parameter."""
    text, *sections = re.split(r"^(\w+):\n(?= {4})", inspect.cleandoc(docstring), flags=re.MULTILINE)
    explained = {}
    for panel, section in zip(sections[::2], sections[1::2], strict=True):
        _, *entries = re.split(r"^ {4}(\w+): ", section, flags=re.MULTILINE)
        for name, help_text in zip(entries[::2], entries[1::2], strict=True):
            explained[name] = panel, " ".join(help_text.split())
    return text.strip(), explained


class CommandGroup(Group):
    """The commands of verfedgnn, and those of other packages, which are imported when one is called or listed."""

    own: MutableMapping[str, Any]
    """Commands that are known so far; those of packages are added when they are needed."""

    @property
    def commands(self) -> MutableMapping[str, Any]:
        """Return all commands, as help and completion list them."""
        for name, entry in sorted(_offered().items()):
            if name not in self.own:
                self.own[name] = _load(entry)
        return self.own

    @commands.setter
    def commands(self, commands: MutableMapping[str, Any]) -> None:
        self.own = commands

    def get_command(self, ctx: typer.Context, cmd_name: str) -> Any:  # type: ignore[override]
        """Return a command by name, or None if nobody offers it."""
        if cmd_name not in self.own and cmd_name in (offered := _offered()):
            self.own[cmd_name] = _load(offered[cmd_name])
        if cmd_name not in self.own and cmd_name in PACKAGES and not ctx.resilient_parsing:
            package = PACKAGES[cmd_name]
            raise ConfigError(
                f"verfedgnn {cmd_name} is in the package {package}, which is not installed; run in a checkout: pip install packages/{package}"
            )
        return self.own.get(cmd_name)


def _offered() -> dict[str, EntryPoint]:
    """Return the commands of installed packages. Reads metadata and imports nothing."""
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def _load(entry: EntryPoint) -> Any:
    """Import a command and put it in the help panel of its package."""
    package = entry.dist.name if entry.dist is not None else entry.module.partition(".")[0]
    try:
        loaded = entry.load()
    except ImportError as error:
        raise ConfigError(
            f"the command {entry.name} of the package {package} cannot be imported ({error}); reinstall {package}"
        ) from error
    if isinstance(loaded, typer.Typer):
        command: Any = typer.main.get_group(loaded)
    else:
        single = CommandApp(add_completion=False)
        single.command(entry.name)(loaded)
        command = typer.main.get_command(single)
    command.name, command.rich_help_panel = entry.name, f"Package {package}"
    return command

"""Options that several commands share, each defined and explained once."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
import typer.core
import typer.main

from verfedgnn.cli.output import Output
from verfedgnn.core.option_names import READ
from verfedgnn.plugins import GNNS

Function = Callable[..., None]
PRESETS = tuple(
    sorted(path.stem for path in (Path(__file__).parent.parent / "config" / "presets").glob("*.toml"))
)


def among(names: Sequence[str]) -> Callable[[str], list[str]]:
    """Return a completion of one of `names`, or of the last of several with commas between them."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        given = before.split(",")
        return [f"{before}{comma}{name}" for name in names if name.startswith(last) and name not in given]

    return complete


def complete_data_sets(incomplete: str) -> list[str]:
    """Complete the data sets in the folder VERFEDGNN_DATA, and synthetic; the shell completes files."""
    folder = Path(os.environ.get("VERFEDGNN_DATA") or os.devnull)
    found = sorted(entry.name for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []
    return among(["synthetic", *found])(incomplete)


def complete_setting(incomplete: str) -> list[str]:
    """Complete NAME=VALUE, by the path of a setting or its last word; a single name with its choices or its default."""
    from verfedgnn.config.tree import format_value, settings

    name, equals, _ = incomplete.partition("=")
    known = settings()
    if equals:
        paths = [path for path in known if path == name or path.endswith(f".{name}")]
    else:
        paths = [path for path in known if path.startswith(name) or path.split(".")[-1].startswith(name)]
    if len(paths) != 1:
        return [] if equals else paths
    setting = known[paths[0]]
    values = setting.choices or (() if setting.required else (format_value(setting.default),))
    return [f"{name if equals else paths[0]}={value}" for value in values]


DATA = "Data"
TRAINING = "Training"
RUN = "Run"
"""Panels of the help."""

RunFolder = Annotated[Path, typer.Argument(help="Run folder.")]
WholeRun = Annotated[
    Path, typer.Argument(help="Run folder that holds all parties, as `train --out` writes it.")
]
Data = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE",
        help="Ratings: a file, a folder or a data set such as ml-1m. Repeat as NAME=FILE for one "
        "file per party. Default: synthetic.",
        rich_help_panel=DATA,
        autocompletion=complete_data_sets,
    ),
]
Parties = Annotated[
    int | None,
    typer.Option(
        help="Number of parties among which the items of one data set are divided at random. Default: 10.",
        min=1,
        rich_help_panel=DATA,
    ),
]
By = Annotated[
    str | None,
    typer.Option(
        help="Divide items by a column, such as genre. With --parties N, the N - 1 most frequent values get a party "
        "each and the rest share one.",
        rich_help_panel=DATA,
    ),
]
Users = Annotated[
    str | None,
    typer.Option(
        help="Users who take part: any, all (those at every party), or N (those at N or more parties). Default: any.",
        rich_help_panel=DATA,
        autocompletion=among(("any", "all", "2")),
    ),
]
Preset = Annotated[
    str | None,
    typer.Option(
        help=f"Preset to start from: {', '.join(PRESETS)}, or a TOML file. Default: best.",
        rich_help_panel=TRAINING,
        autocompletion=among(PRESETS),
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        help="GNN: gcn, gat, ggnn or a plug-in.", rich_help_panel=TRAINING, autocompletion=among(GNNS)
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Change a setting. Repeatable. `verfedgnn settings` explains all of them.",
        rich_help_panel=TRAINING,
        autocompletion=complete_setting,
    ),
]
Device = Annotated[
    str,
    typer.Option(
        help="Device: cpu, cuda or cuda:N.", rich_help_panel=RUN, autocompletion=among(("cpu", "cuda"))
    ),
]
Threads = Annotated[
    int,
    typer.Option(
        help="CPU threads; 0 means all cores. More than 1 helps from about a million ratings, and on a machine without other work.",
        min=0,
        rich_help_panel=RUN,
    ),
]
Jobs = Annotated[
    int,
    typer.Option(
        help="Trainings that run at the same time; 0: as many as CPU cores or GPU memory allow.",
        min=0,
        rich_help_panel=RUN,
    ),
]


def use_threads(count: int) -> None:
    """Limit torch to `count` threads; 0 sets no limit."""
    if count:
        import torch

        torch.set_num_threads(count)


_READING: dict[str, Any] = {
    "columns": typer.Option(
        metavar="USER=COLUMN,...",
        help="Column names of your table: user=...,item=...,rating=...,time=... NAME:user=... for one of several sources.",
        rich_help_panel=DATA,
    ),
    "events": typer.Option(
        metavar="WEIGHTS",
        help="Weigh the kinds of events, as view=1,purchase=5 (5: one event is a like). Without ratings and this option, each row is a like.",
        rich_help_panel=DATA,
    ),
    "read": typer.Option(
        metavar="NAME=VALUE",
        help="Read an unusual table: missing=drop, duplicates=last (or first, mean), encoding=latin-1, delimiter=;, scale=1,5, "
        "catalogue=30000 (the items that you offer) or ids=number (16, 0016 and 16.0 are one user; lower, mail). Repeatable; NAME:scale=1,5 for one of several sources. Preset private needs scale "
        "and catalogue.",
        rich_help_panel=DATA,
        autocompletion=among(
            (
                "missing=drop",
                *(f"duplicates={way}" for way in ("first", "last", "mean")),
                *(f"{name}=" for name in READ[2:]),
            )
        ),
    ),
}
"""Options for which a parameter `reading` stands."""


def _keep(context: typer.Context, parameter: typer.CallbackParam, given: bool) -> None:
    name = str(parameter.name)
    context.meta[name] = given or context.meta.get(name, False)


def _output_options() -> list[Any]:
    """Return the options of every command."""

    def declare(
        quiet: Annotated[
            bool,
            typer.Option(
                "--quiet",
                help="Print only the result, warnings and errors.",
                callback=_keep,
                expose_value=False,
            ),
        ] = False,
        as_json: Annotated[
            bool,
            typer.Option(
                "--json", help="Print the result as one line of JSON.", callback=_keep, expose_value=False
            ),
        ] = False,
    ) -> None: ...

    app = typer.Typer(add_completion=False)
    app.command()(declare)
    return typer.main.get_command(app).params


OUTPUT: list[Any] = _output_options()
"""Options that the program takes anywhere on the line, as it takes --help."""
_ABOUT_OUTPUT = "`--quiet` prints only the result; `--json` prints it as one line of JSON."


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
        self.epilog = _ABOUT_OUTPUT
        for option in OUTPUT:
            option.hidden = True
        super().format_help(ctx, formatter)  # type: ignore[misc]
        for option in OUTPUT:
            option.hidden = False


class Command(_Shared, typer.core.TyperCommand):
    """A command of the program."""


class Group(_Shared, typer.core.TyperGroup):
    """A group of commands."""


def _kind(annotation: Any) -> str:
    """Return the kind of a parameter's values, for the help."""
    inner = get_args(annotation)
    if get_origin(annotation) is Literal:
        return "|".join(inner)
    kinds = {bool: "", Path: "FILE", int: "N", float: "NUMBER"}
    return kinds.get(inner[0] if inner else annotation, "NAME")


class CommandApp(typer.Typer):
    """A group of commands whose parameters may stand for several options.

    `reading` stands for --columns, --events and --read, `output` for those of every command, and `request`, a dataclass, for one per field.
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
    options: dict[str, tuple[Any, Any]] = {"context": (typer.Context, inspect.Parameter.empty)}
    for name, parameter in expected.items():
        if name == "reading":
            options |= {
                each: (Annotated[list[str] | None, option], None) for each, option in _READING.items()
            }
        elif name != "output":
            options[name] = (hints[name], parameter.default)

    @wraps(command)
    def wrapped(context: typer.Context, **given: Any) -> None:
        if "output" in expected:
            given["output"] = Output(**{option.name: context.meta[option.name] for option in OUTPUT})
        if "reading" in expected:
            from verfedgnn.data.read_options import ReadOptions

            given["reading"] = ReadOptions.from_texts(**{name: given.pop(name) for name in _READING})
        command(**given) if asked is command else command(asked(**given))

    wrapped.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
            for name, (kind, default) in options.items()
        ]
    )
    wrapped.__annotations__ = {name: kind for name, (kind, _) in options.items()}
    return wrapped

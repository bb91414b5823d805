"""Options that several commands share, each defined and explained once."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from verfedgnn.cli.output import Output
from verfedgnn.plugins import GNNS

Command = Callable[..., None]
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
    from verfedgnn.config import settings
    from verfedgnn.config.reference import format_value

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
OUTPUT = "Output"
"""Panels of the help."""

Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet",
        help="Print no progress and no remarks, only the result, warnings and errors.",
        rich_help_panel=OUTPUT,
    ),
]
AsJson = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print the result as one line of JSON, the only line on standard output.",
        rich_help_panel=OUTPUT,
    ),
]
RunFolder = Annotated[Path, typer.Argument(help="Run folder.")]
WholeRun = Annotated[
    Path, typer.Argument(help="Run folder that holds all parties, as `train --out` writes it.")
]
Data = Annotated[
    list[str] | None,
    typer.Option(
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


READING: dict[str, tuple[str, tuple[str, ...]]] = {
    "columns": (
        "Column names of your table: user=...,item=...,rating=...,time=... NAME:user=... for one of several sources.",
        (),
    ),
    "events": (
        "Read rows as events without ratings. Gives the weight of each kind (5: one event is a like), as view=1,purchase=5, or one number.",
        (),
    ),
    "duplicates": (
        "How to treat repeated (user, item) pairs: error, first, last or mean.",
        ("error", "first", "last", "mean"),
    ),
    "missing": (
        "How to treat rows without a user, an item or a rating: error or drop.",
        ("error", "drop"),
    ),
    "encoding": ("Text encoding of the table, such as latin-1. NAME:latin-1 for one of several sources.", ()),
    "delimiter": ("Column separator of the table.", ()),
    "scale": (
        "Lowest and highest rating, as 1,5. Default: as found in the data; preset private needs it declared.",
        (),
    ),
    "catalogue": (
        "Number of items in the catalogue, rated or not; preset private announces it. NAME:30000 for one of several sources.",
        (),
    ),
}
"""Help text and completions of each field of `ReadOptions`."""


def hides(*names: str) -> Callable[[Command], Command]:
    """Return a decorator that leaves some options of `READING` out of the help of a command."""

    def hide(command: Command) -> Command:
        command.hidden = names  # type: ignore[attr-defined]
        return command

    return hide


class CommandApp(typer.Typer):
    """A group of commands whose parameters may stand for several options.

    `reading` stands for those of `READING`, `output` for --quiet and --json, and `request`, a dataclass, for one per field.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(
            no_args_is_help=True, rich_markup_mode="markdown", pretty_exceptions_enable=False, **options
        )

    def command(self, name: str | None = None, **options: Any) -> Callable[[Command], Command]:  # type: ignore[override]
        """Register a command, as typer does."""
        register = super().command(name, **options)

        def add(command: Command) -> Command:
            register(_with_options(command))
            return command

        return add


def _with_options(command: Command) -> Command:
    """Return a command with the options for which its parameters stand."""
    hidden = getattr(command, "hidden", ())
    stands: dict[str, dict[str, tuple[Any, Any]]] = {
        "reading": {name: _reading(name, name in hidden) for name in READING}
    }
    stands["output"] = {"quiet": (Quiet, False), "as_json": (AsJson, False)}
    names = {"ReadOptions": object}
    request = get_type_hints(command, localns=names, include_extras=True).get("request")
    asked: Any = request if is_dataclass(request) else command
    hints = get_type_hints(asked, localns=names, include_extras=True)
    expected = inspect.signature(asked).parameters
    options: dict[str, tuple[Any, Any]] = {}
    for name, parameter in expected.items():
        options |= stands.get(name, {name: (hints[name], parameter.default)})

    @wraps(command)
    def wrapped(**given: Any) -> None:
        if "output" in expected:
            given["output"] = Output(quiet=given.pop("quiet"), as_json=given.pop("as_json"))
        if "reading" in expected:
            from verfedgnn.data.read_options import ReadOptions

            given["reading"] = ReadOptions.from_texts(**{name: given.pop(name) for name in READING})
        command(**given) if asked is command else command(asked(**given))

    wrapped.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
            for name, (kind, default) in options.items()
        ]
    )
    wrapped.__annotations__ = {name: kind for name, (kind, _) in options.items()}
    return wrapped


def _reading(name: str, hidden: bool) -> tuple[Any, None]:
    text, known = READING[name]
    complete = among(known) if known else None
    option = typer.Option(help=text, rich_help_panel=DATA, autocompletion=complete, hidden=hidden)
    return Annotated[list[str] | None, option], None

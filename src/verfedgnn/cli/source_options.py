"""Options for reading ratings, the same for every command that reads them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, get_type_hints

import typer

from verfedgnn.cli.completion import among
from verfedgnn.cli.shared_options import DATA

OPTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "query": (
        "SELECT statement that returns the ratings, for DuckDB, SQLite and PostgreSQL. NAME:SELECT for one of several sources.",
        (),
    ),
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


Command = Callable[..., None]


def reads_ratings(command: Command) -> Command:
    """Replace the parameter `reading` of a command by the options of `OPTIONS`."""
    return reads_ratings_hiding()(command)


def reads_ratings_hiding(*hidden: str, request: type | None = None) -> Callable[[Command], Command]:
    """Return `reads_ratings` with some options left out of the help.

    The parameters of the command are those of `request`, a dataclass, if it is given; the command takes one such object.
    """
    return lambda command: _with_options(command, hidden, request)


def _with_options(command: Command, hidden: tuple[str, ...], request: type | None) -> Command:
    @wraps(command)
    def wrapped(**given: Any) -> None:
        from verfedgnn.data.read_options import ReadOptions

        given["reading"] = ReadOptions.from_texts(**{name: given.pop(name) for name in OPTIONS})
        command(**given) if request is None else command(request(**given))

    asked: Any = request or command
    hints = get_type_hints(asked, localns={"ReadOptions": object}, include_extras=True)
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(asked).parameters.values():
        if parameter.name == "reading":
            parameters += [_parameter(name, hidden=name in hidden) for name in OPTIONS]
        else:
            parameters.append(
                parameter.replace(annotation=hints[parameter.name], kind=inspect.Parameter.KEYWORD_ONLY)
            )
    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return wrapped


def _parameter(name: str, *, hidden: bool) -> inspect.Parameter:
    text, known = OPTIONS[name]
    option = typer.Option(
        help=text, rich_help_panel=DATA, autocompletion=among(known) if known else None, hidden=hidden
    )
    annotation = Annotated[list[str] | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)

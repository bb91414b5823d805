"""The options that say how ratings are read, the same for every command that reads some."""

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
        "DuckDB, SQLite, PostgreSQL: the select that gives the table. NAME:SELECT for one of several sources.",
        (),
    ),
    "columns": (
        "Names in your table: user=...,item=...,rating=...,time=... NAME:user=... for one of several sources.",
        (),
    ),
    "events": (
        "Rows are events without ratings: what each kind is worth (5: one is a like), as view=1,purchase=5; or a number.",
        (),
    ),
    "duplicates": (
        "Repeated (user, item) pairs: error, first, last or mean.",
        ("error", "first", "last", "mean"),
    ),
    "missing": (
        "Rows without a user, an item or a rating: error, or drop to leave them out.",
        ("error", "drop"),
    ),
    "encoding": ("Text encoding of the table, such as latin-1. NAME:latin-1 for one of several.", ()),
    "delimiter": ("Column separator of the table.", ()),
    "scale": ("Lowest and highest rating, as 1,5; unset: as found.", ()),
}
"""The fields of `ReadOptions`: a sentence for the help, and what a shell completes."""


def reads_ratings(command: Callable[..., None]) -> Callable[..., None]:
    """A command with a parameter `reading`, a `ReadOptions`, that takes the options of `OPTIONS` in its place."""

    @wraps(command)
    def wrapped(**given: Any) -> None:
        from verfedgnn.data.read_options import ReadOptions

        reading = ReadOptions.from_texts(**{name: given.pop(name) for name in OPTIONS})
        command(**given, reading=reading)

    hints = get_type_hints(command, localns={"ReadOptions": object}, include_extras=True)
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        if parameter.name == "reading":
            parameters += [_parameter(name) for name in OPTIONS]
        else:
            parameters.append(
                parameter.replace(annotation=hints[parameter.name], kind=inspect.Parameter.KEYWORD_ONLY)
            )
    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return wrapped


def _parameter(name: str) -> inspect.Parameter:
    text, known = OPTIONS[name]
    option = typer.Option(help=text, rich_help_panel=DATA, autocompletion=among(known) if known else None)
    annotation = Annotated[list[str] | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)

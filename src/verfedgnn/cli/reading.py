"""The options that say how ratings are read, the same for every command that reads some."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from verfedgnn.cli.complete import among
from verfedgnn.cli.options import DATA


def _option(text: str, *known: str) -> Any:
    return typer.Option(help=text, rich_help_panel=DATA, autocompletion=among(known) if known else None)


Query = Annotated[
    list[str] | None,
    _option("DuckDB, SQLite, PostgreSQL: the select that gives the table. NAME:SELECT for one of several sources."),
]
Columns = Annotated[
    list[str] | None,
    _option("Names in your table: user=...,item=...,rating=...,time=... NAME:user=... for one of several sources."),
]
Events = Annotated[
    list[str] | None,
    _option("Rows are events without ratings: what each kind is worth (5: one is a like), as view=1,purchase=5; or a number."),
]
Duplicates = Annotated[
    list[str] | None, _option("Repeated (user, item) pairs: error, first, last or mean.", "error", "first", "last", "mean")
]
Encoding = Annotated[list[str] | None, _option("Text encoding of the table, such as latin-1. NAME:latin-1 for one of several.")]
Delimiter = Annotated[list[str] | None, _option("Column separator of the table.")]
Scale = Annotated[list[str] | None, _option("Lowest and highest rating, as 1,5; unset: as found.")]

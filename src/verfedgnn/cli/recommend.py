"""`verfedgnn recommend`: what a run would recommend to a user."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from verfedgnn.run import Run


def recommend(
    run: Annotated[Path, typer.Argument(help="The run folder.")],
    user: Annotated[str, typer.Option(help="The user's id, as in the data.")],
    top: Annotated[int, typer.Option(help="How many items.", min=1)] = 10,
    party: Annotated[str | None, typer.Option(help="Only this party's catalogue.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list on one line.")] = False,
) -> None:
    """Recommend items a user has not rated yet."""
    found = Run.load(run).recommend(user, top, party=party)
    if as_json:
        typer.echo(json.dumps([asdict(item) for item in found]))
        return
    table = Table("", "item", "title", "party", "predicted", title=f"For user {escape(user)}", title_justify="left")
    for place, item in enumerate(found, 1):
        table.add_row(str(place), escape(item.item), escape(item.title), escape(item.party), f"{item.score:.2f}")
    Console().print(table)

"""`verfedgnn recommend`: what a run would recommend to a user."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from verfedgnn.cli.options import AsJson, Quiet, RunFolder
from verfedgnn.cli.output import Output


def recommend(
    run: RunFolder,
    user: Annotated[str, typer.Option(help="The user's id, as in the data.")],
    top: Annotated[int, typer.Option(help="How many items.", min=1)] = 10,
    party: Annotated[str | None, typer.Option(help="Only this party's catalogue.")] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Recommend items a user has not rated yet."""
    from verfedgnn.run import Run

    found = Run.load(run).recommend(user, top, party=party)
    table = Table("", "item", "title", "party", "predicted", title=f"For user {escape(user)}", title_justify="left")
    for place, item in enumerate(found, 1):
        table.add_row(str(place), escape(item.item), escape(item.title), escape(item.party), f"{item.score:.2f}")
    output = Output(quiet=quiet, as_json=as_json)
    output.result([asdict(item) for item in found], table)
    if not found:
        output.remark("nothing to recommend: this user has rated every item")

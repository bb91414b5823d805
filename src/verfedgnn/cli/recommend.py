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

from verfedgnn.errors import ConfigError, RunError
from verfedgnn.run import Run
from verfedgnn.serving.catalogue import Catalogue
from verfedgnn.serving.table import write_table


def recommend(
    run: Annotated[Path, typer.Argument(help="The run folder.")],
    user: Annotated[str | None, typer.Option(help="The user's id, as in the data.")] = None,
    top: Annotated[int, typer.Option(help="How many items.", min=1)] = 10,
    party: Annotated[str | None, typer.Option(help="Only this party's catalogue.")] = None,
    everybody: Annotated[bool, typer.Option("--all", help="For every user; with --out.")] = False,
    out: Annotated[Path | None, typer.Option(help="The Parquet file to write with --all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list on one line.")] = False,
) -> None:
    """Recommend items a user has not rated yet."""
    if everybody != (out is not None) or everybody == (user is not None):
        raise ConfigError("say for whom: --user ID, or --all --out FILE.parquet for everybody")
    if out is not None:
        _write(run, out, top, party, as_json)
        return
    assert user is not None
    found = Run.load(run).recommend(user, top, party=party)
    if as_json:
        typer.echo(json.dumps([asdict(item) for item in found]))
        return
    table = Table("", "item", "title", "party", "predicted", title=f"For user {escape(user)}", title_justify="left")
    for place, item in enumerate(found, 1):
        table.add_row(str(place), escape(item.item), escape(item.title), escape(item.party), f"{item.score:.2f}")
    Console().print(table)


def _write(run: Path, out: Path, top: int, party: str | None, as_json: bool) -> None:
    if out.exists():
        raise RunError(f"{out} exists already; choose another --out")
    catalogue = Catalogue(Run.load(run), run.resolve().name, party)
    rows = write_table(catalogue, out, top)
    if as_json:
        typer.echo(json.dumps({"file": str(out), "rows": rows}))
    else:
        Console(highlight=False, soft_wrap=True).print(f"written: {out}, {rows:,} rows", markup=False)

"""`verfedgnn evaluate`: a run's figures, computed anew from its model and data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from verfedgnn.cli.show import activity_table, lift_table, party_table, run_table
from verfedgnn.run import Run


def evaluate(
    run: Annotated[Path, typer.Argument(help="The run folder.")],
    top: Annotated[int, typer.Option(help="K of Recall@K, NDCG@K and HitRate@K.", min=1)] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures on one line.")] = False,
) -> None:
    """Judge a run's model on its test part: RMSE, MAE and ranking, per party and overall."""
    loaded = Run.load(run)
    figures = loaded.metrics | loaded.evaluate(top)
    if as_json:
        typer.echo(json.dumps(figures))
        return
    console = Console()
    console.print(run_table(figures))
    console.print(party_table(figures))
    if "lift" in figures:
        console.print(lift_table(figures["lift"]))
        console.print(activity_table(figures["lift"]))

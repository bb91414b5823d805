"""`verfedgnn recommend`: what a run would recommend to a user."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from verfedgnn.cli.output import Output
from verfedgnn.cli.shared_options import AsJson, Quiet, RunFolder
from verfedgnn.core.errors import ConfigError, RunError


def recommend(
    run: RunFolder,
    user: Annotated[str | None, typer.Option(help="The user's id, as in the data.")] = None,
    top: Annotated[int, typer.Option(help="How many items.", min=1)] = 10,
    party: Annotated[str | None, typer.Option(help="Only this party's catalogue.")] = None,
    everybody: Annotated[bool, typer.Option("--all", help="For every user; with --out.")] = False,
    out: Annotated[Path | None, typer.Option(help="The Parquet file to write with --all.")] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Recommend items a user has not rated yet."""
    from verfedgnn.runs.run import Run

    output = Output(quiet=quiet, as_json=as_json)
    if everybody != (out is not None) or everybody == (user is not None):
        raise ConfigError("say for whom: --user ID, or --all --out FILE.parquet for everybody")
    if out is not None:
        _write(run, out, top, party, output)
        return
    assert user is not None
    found = Run.load(run).recommend(user, top, party=party)
    table = Table(
        "", "item", "title", "party", "predicted", title=f"For user {escape(user)}", title_justify="left"
    )
    for place, item in enumerate(found, 1):
        table.add_row(
            str(place), escape(item.item), escape(item.title), escape(item.party), f"{item.score:.2f}"
        )
    output.result([asdict(item) for item in found], table)
    if not found:
        output.remark("nothing to recommend: this user has rated every item")


def _write(run: Path, out: Path, top: int, party: str | None, output: Output) -> None:
    from verfedgnn.runs.run import Run
    from verfedgnn.serving.catalogue import Catalogue
    from verfedgnn.serving.recommendation_table import write_table

    if out.suffix.lower() not in (".parquet", ".pq"):
        raise RunError(
            f"what is written is Parquet, and {out} does not end so; name it {out.with_suffix('.parquet').name}"
        )
    if out.exists():
        raise RunError(f"{out} exists already; choose another --out")
    if not out.parent.is_dir():
        raise RunError(
            f"{out.parent} is not a folder, so {out.name} cannot be written there; make it, or choose another --out"
        )
    catalogue = Catalogue(Run.load(run), run.resolve().name, party)
    with output.busy("scoring"):
        rows = write_table(catalogue, out, top)
    output.result({"file": out, "rows": rows}, f"written: {out}, {rows:,} rows")

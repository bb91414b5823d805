"""`verfedgnn recommend`: recommend items to one user, or to all users as a table."""

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
    user: Annotated[str | None, typer.Option(help="Id of the user, as in the data.")] = None,
    top: Annotated[int, typer.Option(help="Number of items per user.", min=1)] = 10,
    party: Annotated[
        str | None, typer.Option(help="Recommend only this party's items; all by default.")
    ] = None,
    everybody: Annotated[bool, typer.Option("--all", help="Recommend to every user; needs --out.")] = False,
    out: Annotated[Path | None, typer.Option(help="Parquet file to write with --all.")] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Recommend items that a user has not rated yet."""
    from verfedgnn.runs.run import Run

    output = Output(quiet=quiet, as_json=as_json)
    if everybody != (out is not None) or everybody == (user is not None):
        raise ConfigError("choose the users: --user ID for one, or --all --out FILE.parquet for all")
    if out is not None:
        _write_all(run, out, top, party, output)
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
        output.remark("no recommendations: this user has rated every item")


def _write_all(run: Path, out: Path, top: int, party: str | None, output: Output) -> None:
    from verfedgnn.runs.run import Run
    from verfedgnn.serving.catalogue import Catalogue
    from verfedgnn.serving.recommendation_table import write_table

    if out.suffix.lower() not in (".parquet", ".pq"):
        raise RunError(
            f"--out {out} is not a Parquet file name; use for example {out.with_suffix('.parquet').name}"
        )
    if out.exists():
        raise RunError(f"{out} already exists; choose another --out")
    if not out.parent.is_dir():
        raise RunError(
            f"cannot write {out.name}: the folder {out.parent} does not exist; create it or choose another --out"
        )
    catalogue = Catalogue(Run.load(run), run.resolve().name, party)
    with output.busy("scoring"):
        rows = write_table(catalogue, out, top)
    output.result({"file": out, "rows": rows}, f"written: {out}, {rows:,} rows")

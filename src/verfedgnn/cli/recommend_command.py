"""`verfedgnn recommend`: recommend items to one user, or to all users as a table."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from verfedgnn.cli.next_step import show_next
from verfedgnn.cli.output import Output
from verfedgnn.cli.shared_options import AsJson, Quiet, RunFolder
from verfedgnn.core.errors import ConfigError, RunError

if TYPE_CHECKING:
    from verfedgnn.runs.run import Run


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
    """Recommend items that a user has not rated yet, in the order of the run's lists, with predicted ratings."""
    from verfedgnn.runs.run import Run

    output = Output(quiet=quiet, as_json=as_json)
    if everybody != (out is not None) or everybody == (user is not None):
        raise ConfigError("choose the users: --user ID for one, or --all --out FILE.parquet for all")
    if out is not None:
        _write_all(run, out, top, party, output)
        return
    assert user is not None
    loaded = Run.load(run)
    found = loaded.recommend(user, top, party=party)
    shares = loaded.ranker.config.training.ranks
    ratings = not loaded.config.training.ranks
    headings = [
        "",
        "item",
        "title",
        "party",
        *(["share"] if shares else []),
        *(["rating"] if ratings else []),
    ]
    table = Table(*headings, title=f"For user {escape(user)}", title_justify="left")
    for place, item in enumerate(found, 1):
        cells = [str(place), escape(item.item), escape(item.title), escape(item.party)]
        if shares:
            cells.append(f"{100 * item.score:.2f} %")
        if item.rating is not None:
            cells.append(f"{item.rating:.2f}")
        table.add_row(*cells)
    output.result([asdict(item) for item in found], table)
    if not found:
        output.remark("no recommendations: this user has rated every item")
    _show_next(loaded, run, party, output)


def _show_next(run: Run, folder: Path, party: str | None, output: Output) -> None:
    """Say where the lists lose to the most popular items, and how to serve them."""
    from verfedgnn.reports.phrases import warn_of_lists

    rows = [row for row in run.metrics["parties"] if party in (None, row["name"])]
    warning = warn_of_lists(run.metrics | {"parties": rows})
    sentences = (
        [warning] if warning is not None else ["The lists are at least as good as the most popular items."]
    )
    show_next(output, sentences, ["serve", str(folder), *([] if party is None else ["--party", party])])


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
    loaded = Run.load(run)
    catalogue = Catalogue(loaded, run.resolve().name, party)
    with output.busy("scoring"):
        rows = write_table(catalogue, out, top)
    output.result({"file": out, "rows": rows}, f"written: {out}, {rows:,} rows")
    _show_next(loaded, run, party, output)

"""`verfedgnn data`: check tables of ratings, or generate some."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from verfedgnn.cli.command_app import CommandApp
from verfedgnn.cli.next_step import add_columns, fresh_path, show_next
from verfedgnn.cli.output import STANDARD, Output
from verfedgnn.cli.shared_options import Count
from verfedgnn.cli.train_command import TrainRequest
from verfedgnn.core.errors import DataError
from verfedgnn.reports.console import SafeConsole

if TYPE_CHECKING:
    from verfedgnn.data.read_options import ReadOptions


app = CommandApp(name="data", help="Check tables of ratings, or generate some.")


@app.command()
def check(*, data: list[str], reading: ReadOptions, output: Output = STANDARD) -> None:
    """List the problems of ratings with their line numbers, and show their distribution and the overlap of several sources.

    The exit code is 2 if the ratings cannot be used.

    Args:
        data: A file, a folder or a name. Several: one source per party, as NAME=FILE.
    """
    from verfedgnn.data.data_check import fitting_parties
    from verfedgnn.data.parties import sources_of
    from verfedgnn.estimator.checked_data import check_sources

    sources, _ = sources_of(data)
    with output.busy("reading the data"):
        checked = check_sources(sources, reading.for_each(list(sources)))
    if output.as_json:
        output.result(checked.to_dict())
    else:
        checked.show(SafeConsole(highlight=False))
    flags = [flag for source in checked.sources for flag in source.columns]
    again = ["data", "check", *data, *reading.to_arguments()]
    if flags:
        show_next(output, [checked.conclusion], add_columns(again, flags))
    elif spelled := re.search(r"--read ids=[\w+]+", checked.conclusion):
        show_next(output, [checked.conclusion], [*again, *spelled[0].split()])
    elif checked.doubtful or not checked.usable:
        show_next(output, [checked.conclusion], again, "once the data are corrected")
    if not checked.usable:
        raise typer.Exit(2)
    if not checked.doubtful:
        parties = fitting_parties(checked.sources)
        request = TrainRequest(data=data, reading=reading, parties=parties, out=fresh_path("runs/first"))
        show_next(output, [checked.conclusion], request.to_words())


@app.command()
def synth(
    out: Annotated[Path, typer.Option(metavar="FOLDER")],
    overlap: Annotated[float, typer.Option(min=0, max=1)] = 0.3,
    parties: Count = 3,
    users: int = 1000,
    items: int = 200,
    ratings: int | None = None,
    likes: bool = False,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    overwrite: bool = False,
    output: Output = STANDARD,
) -> None:
    """Generate tables of ratings for parties whose users overlap in part.

    Args:
        out: The folder to write, with one Parquet file per party.
        overlap: Share of each party's users who are at every party.
        parties: Number of parties.
        users: Number of users of each party.
        items: Number of items of each party.
        ratings: Number of ratings of each party. Default: 20 per user.
        likes: Write what users chose, without ratings.
        seed: Seed of everything random.
        overwrite: Replace files that exist.
    """
    from verfedgnn.data.synthetic import synthetic_tables, write_tables

    with output.busy(f"generating {parties} tables"):
        counts = {"users": users, "items": items, "ratings": 20 * users if ratings is None else ratings}
        tables = synthetic_tables(parties, overlap, **counts, seed=seed)
        try:
            present = set(out.iterdir()) if out.is_dir() else {out} if out.exists() else set()
            if present - {out / f"{table.name}.parquet" for table in tables} or (present and not overwrite):
                raise DataError(
                    f"{out} exists already: choose another --out, or replace its tables with --overwrite"
                )
            out.mkdir(parents=True, exist_ok=True)
            files = write_tables(tables, out, likes=likes)
        except OSError as error:
            raise DataError(
                f"cannot write {out}: {error.strerror or error}; choose another --out, or free some disk space"
            ) from None
    made = {
        "folder": out,
        "files": files,
        "parties": parties,
        "users_per_party": tables[0].n_users,
        "shared_users": round(overlap * tables[0].n_users),
        "ratings": sum(len(table) for table in tables),
    }
    share = f"{made['shared_users']:,} of the {made['users_per_party']:,} users of each are at all of them"
    counted = f"{made['ratings']:,} {'likes' if likes else 'ratings'}"
    output.result(made, f"{out}: {parties} parties with {counted}; {share}")
    sentence = "The tables are synthetic; check them as you would check your own."
    show_next(output, [sentence], ["data", "check", str(out)])

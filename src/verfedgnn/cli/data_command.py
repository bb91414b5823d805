"""`verfedgnn data`: check tables of ratings, or generate some."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from verfedgnn.cli.next_step import add_columns, fresh_path, show_next
from verfedgnn.cli.output import STANDARD, Output
from verfedgnn.cli.shared_options import CommandApp
from verfedgnn.cli.train_command import TrainRequest
from verfedgnn.core.errors import DataError
from verfedgnn.core.option_names import reading_table
from verfedgnn.reports.console import SafeConsole

if TYPE_CHECKING:
    from verfedgnn.data.read_options import ReadOptions


app = CommandApp(
    name="data",
    help="Check tables of ratings, or generate some.",
)


@app.command()
def check(
    *,
    data: Annotated[
        list[str],
        typer.Argument(help="A file, a folder or a name. Several: one source per party, as NAME=FILE."),
    ],
    reading: ReadOptions,
    output: Output = STANDARD,
) -> None:
    """List the problems of ratings with their line numbers, and show their distribution and the overlap of several sources.

    The exit code is 2 if the ratings cannot be used.
    """
    from verfedgnn.data.data_check import check_source, fitting_parties
    from verfedgnn.data.parties import sources_of
    from verfedgnn.estimator.checked_data import DataCheck

    sources, _ = sources_of(data)
    options = reading.for_each(list(sources))
    with output.busy("reading the data"):
        found = []
        for name, source in sources.items():
            with reading_table(name if len(sources) > 1 else None):
                found.append(check_source(name, source, **options[name]))
    checked = DataCheck(found)
    if output.as_json:
        output.result(checked.to_dict())
    else:
        checked.show(SafeConsole(highlight=False))
    flags = [flag for each in found for flag in each.columns]
    again = ["data", "check", *data, *reading.to_arguments()]
    if flags:
        show_next(output, [checked.conclusion], add_columns(again, flags))
    elif checked.doubtful or not checked.usable:
        show_next(output, [checked.conclusion], again, "once the data are corrected")
    if not checked.usable:
        raise typer.Exit(2)
    if checked.doubtful:
        return
    request = TrainRequest(
        data=data, reading=reading, parties=fitting_parties(found), out=fresh_path("runs/first")
    )
    show_next(output, [checked.conclusion], request.to_words())


@app.command()
def synth(
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="The folder to write, with one Parquet file per party.")
    ],
    overlap: Annotated[
        float, typer.Option(help="Share of each party's users who are at every party.", min=0, max=1)
    ] = 0.3,
    parties: Annotated[int, typer.Option(help="Number of parties.", min=1)] = 3,
    users: Annotated[int, typer.Option(help="Number of users of each party.")] = 1000,
    items: Annotated[int, typer.Option(help="Number of items of each party.")] = 200,
    ratings: Annotated[
        int | None, typer.Option(help="Number of ratings of each party. Default: 20 per user.")
    ] = None,
    likes: Annotated[bool, typer.Option("--likes", help="Write what users chose, without ratings.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of everything random.", min=0)] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that exist.")] = False,
    output: Output = STANDARD,
) -> None:
    """Generate tables of ratings for parties whose users overlap in part."""
    from verfedgnn.data.synthetic import synthetic_tables, write_tables

    with output.busy(f"generating {parties} tables"):
        amount = 20 * users if ratings is None else ratings
        tables = synthetic_tables(parties, overlap, users=users, items=items, ratings=amount, seed=seed)
        try:
            known = [out / f"{table.name}.parquet" for table in tables]
            others = sorted(set(out.iterdir()) - set(known)) if out.is_dir() else []
            if out.exists() and (not out.is_dir() or others or (any(out.iterdir()) and not overwrite)):
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
    output.result(
        made, f"{out}: {parties} parties with {made['ratings']:,} {'likes' if likes else 'ratings'}; {share}"
    )
    sentence = "The tables are synthetic; check them as you would check your own."
    show_next(output, [sentence], ["data", "check", str(out)])

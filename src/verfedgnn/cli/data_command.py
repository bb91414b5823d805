"""`verfedgnn data`: tables of ratings, made and looked at without training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from verfedgnn.cli.completion import SHAPES, among
from verfedgnn.cli.output import Output
from verfedgnn.cli.shared_options import AsJson, Quiet
from verfedgnn.cli.source_options import reads_ratings
from verfedgnn.core.errors import DataError

if TYPE_CHECKING:
    from verfedgnn.data.read_options import ReadOptions


app = typer.Typer(
    name="data",
    help="Look at tables of ratings, or make some.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


@app.command()
@reads_ratings
def check(
    *,
    data: Annotated[
        list[str],
        typer.Argument(
            help="A file, a folder, postgresql://... or a name; several, NAME=FILE: one source per party."
        ),
    ],
    reading: ReadOptions,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Say what is wrong with ratings, with line numbers, and show how they are spread; exit code 2 if they cannot be used."""
    from verfedgnn.cli.check_view import as_json as to_json
    from verfedgnn.cli.check_view import show_checked, show_common
    from verfedgnn.data.data_check import check_source, in_common
    from verfedgnn.data.parties import sources_of

    output = Output(quiet=quiet, as_json=as_json)
    sources, _ = sources_of(data)
    options = reading.for_each(list(sources))
    with output.busy("reading the data"):
        found = [check_source(name, source, **options[name]) for name, source in sources.items()]
    common = in_common(found) if len(found) > 1 else None
    if as_json:
        output.result(to_json(found, common))
    else:
        console = Console(highlight=False)
        for each in found:
            show_checked(console, each)
        if common is not None:
            show_common(console, common, found)
    if not all(each.usable for each in found) or (common is not None and not common.usable):
        raise typer.Exit(2)


@app.command()
def synth(
    out: Annotated[Path, typer.Option(help="The Parquet file to write.")],
    like: Annotated[
        str,
        typer.Option(
            help=f"The data set whose shape it has: {', '.join(SHAPES)}.", autocompletion=among(SHAPES)
        ),
    ] = "yelp",
    users: Annotated[int | None, typer.Option(help="Users; unset: as there.")] = None,
    items: Annotated[int | None, typer.Option(help="Items; unset: as there.")] = None,
    ratings: Annotated[int | None, typer.Option(help="Ratings; unset: as there.")] = None,
    scale_down: Annotated[float, typer.Option(help="Divide the counts that are unset by this.", min=1)] = 1,
    seed: Annotated[int, typer.Option(help="Seed of everything random.", min=0)] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it exists.")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Generate ratings in the shape of a large data set: its counts, long tails and columns; tastes are shared by all items."""
    from verfedgnn.data.synthetic_shapes import LIKE, write_ratings

    output = Output(quiet=quiet, as_json=as_json)
    if like not in LIKE:
        raise DataError(
            f"there is no shape '{like}': use --like {' or '.join(LIKE)}, with --users, --items and --ratings"
        )
    if out.exists() and not overwrite:
        raise DataError(f"{out} exists already: choose another --out, or replace it with --overwrite")
    there = LIKE[like]
    shape = replace(
        there,
        users=round(there.users / scale_down) if users is None else users,
        items=round(there.items / scale_down) if items is None else items,
        ratings=round(there.ratings / scale_down) if ratings is None else ratings,
    )
    if not out.parent.is_dir():
        raise DataError(
            f"{out.parent} is not a folder, so {out.name} cannot be written there; make it, or choose another --out"
        )
    part = out.with_name(f".{out.name}.part")
    try:
        with output.busy(f"generating {shape.ratings:,} ratings"):
            write_ratings(shape, part, seed=seed)
        part.replace(out)
    except OSError as error:
        raise DataError(
            f"cannot write {out}: {error.strerror or error}; choose another --out, or make room"
        ) from None
    finally:
        part.unlink(missing_ok=True)
    made = {"file": out, "users": shape.users, "items": shape.items, "ratings": shape.ratings}
    output.result(made, f"{out}: {shape.ratings:,} ratings by {shape.users:,} users on {shape.items:,} items")
    output.remark(f"next: verfedgnn train --data {out}")

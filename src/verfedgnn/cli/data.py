"""`verfedgnn data`: tables of ratings, made and looked at without training."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from verfedgnn.cli.picture import as_json as to_json
from verfedgnn.cli.picture import show_checked, show_common
from verfedgnn.cli.reading import Columns, Delimiter, Duplicates, Encoding, Events, Query, Scale
from verfedgnn.data.check import check_source, in_common
from verfedgnn.data.parties import sources_of
from verfedgnn.data.reading import Reading
from verfedgnn.data.shapes import LIKE, write_ratings
from verfedgnn.errors import DataError

app = typer.Typer(
    name="data",
    help="Look at tables of ratings, or make some.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


@app.command()
def check(
    data: Annotated[
        list[str], typer.Argument(help="A file, a folder, postgresql://... or a name; several, NAME=FILE: one source per party.")
    ],
    query: Query = None,
    columns: Columns = None,
    events: Events = None,
    duplicates: Duplicates = None,
    encoding: Encoding = None,
    delimiter: Delimiter = None,
    scale: Scale = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was found on one line of JSON.")] = False,
) -> None:
    """Say what is wrong with ratings, with line numbers, and show how they are spread; exit code 2 if they cannot be used."""
    sources, _ = sources_of(data)
    reading = Reading.of(
        query=query,
        columns=columns,
        events=events,
        duplicates=duplicates,
        encoding=encoding,
        delimiter=delimiter,
        scale=scale,
    )
    options = reading.for_each(list(sources))
    found = [check_source(name, source, **options[name]) for name, source in sources.items()]
    common = in_common(found) if len(found) > 1 else None
    if as_json:
        typer.echo(json.dumps(to_json(found, common)))
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
    like: Annotated[str, typer.Option(help=f"The data set whose shape it has: {', '.join(LIKE)}.")] = "yelp",
    users: Annotated[int | None, typer.Option(help="Users; unset: as there.")] = None,
    items: Annotated[int | None, typer.Option(help="Items; unset: as there.")] = None,
    ratings: Annotated[int | None, typer.Option(help="Ratings; unset: as there.")] = None,
    scale_down: Annotated[float, typer.Option(help="Divide the counts that are unset by this.", min=1)] = 1,
    seed: Annotated[int, typer.Option(help="Seed of everything random.", min=0)] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it exists.")] = False,
) -> None:
    """Generate ratings in the shape of a large data set: its counts, long tails and columns; tastes are shared by all items."""
    if like not in LIKE:
        raise DataError(f"there is no shape '{like}': use --like {' or '.join(LIKE)}, with --users, --items and --ratings")
    if out.exists() and not overwrite:
        raise DataError(f"{out} exists already: choose another --out, or replace it with --overwrite")
    there = LIKE[like]
    shape = replace(
        there,
        users=round(there.users / scale_down) if users is None else users,
        items=round(there.items / scale_down) if items is None else items,
        ratings=round(there.ratings / scale_down) if ratings is None else ratings,
    )
    part = out.with_name(f".{out.name}.part")
    try:
        write_ratings(shape, part, seed=seed)
        part.replace(out)
    except OSError as error:
        raise DataError(f"cannot write {out}: {error.strerror or error}; choose another --out, or make room") from None
    finally:
        part.unlink(missing_ok=True)
    text = f"{out}: {shape.ratings:,} ratings by {shape.users:,} users on {shape.items:,} items"
    Console().print(f"{text}; next: verfedgnn train --data {out}", highlight=False, markup=False, soft_wrap=True)

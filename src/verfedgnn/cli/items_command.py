"""`verfedgnn items`: items that come after a training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from verfedgnn.cli.next_step import show_next
from verfedgnn.cli.output import Output
from verfedgnn.cli.shared_options import AsJson, Quiet, RunFolder
from verfedgnn.cli.source_options import reads_ratings_hiding
from verfedgnn.core.errors import ConfigError

if TYPE_CHECKING:
    from verfedgnn.data.read_options import ReadOptions

app = typer.Typer(name="items", help="Add items that come after a training.", no_args_is_help=True)


@app.callback()
def root() -> None:
    """Add items that come after a training."""


@app.command()
@reads_ratings_hiding("query", "events", "encoding", "delimiter", "scale", "catalogue")
def add(
    run: RunFolder,
    *,
    party: Annotated[
        str | None, typer.Option(help="Party that offers the items; needed if the run has several.")
    ] = None,
    ratings: Annotated[Path | None, typer.Option(help="First ratings of the new items.")] = None,
    items: Annotated[
        Path | None, typer.Option(help="Table with a row per new item: its id, title and further columns.")
    ] = None,
    reading: ReadOptions,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Give new items a vector from their first ratings, so that they are recommended before the next training.

    It takes milliseconds an item and sends nothing to anybody. Repeat the command with further ratings of the same items. A server
    that serves the run notices the items within seconds.
    """
    from verfedgnn.data.item_table import read_item_table
    from verfedgnn.data.table_sources import read_table
    from verfedgnn.runs.run import Run
    from verfedgnn.upkeep.new_items import NewItems, make_items

    if ratings is None and items is None:
        raise ConfigError("nothing to add; give --ratings FILE, --items FILE or both")
    loaded = Run.load(run, added=False)
    names = [each.name for each in loaded.parties]
    if party is None and len(names) > 1:
        raise ConfigError(f"the run has several parties; choose one with --party: {', '.join(names)}")
    new = NewItems(run, loaded, party or names[0])
    options = reading.for_each(["ratings"])["ratings"]
    first = None if ratings is None else read_table(ratings, **options)
    report = new.add(make_items(first, None if items is None else read_item_table(items)))
    output = Output(quiet=quiet, as_json=as_json)
    table = Table(
        "item", "title", "ratings", title=f"Added to {escape(party or names[0])}", title_justify="left"
    )
    for item in report.items[:20]:
        table.add_row(escape(item.item), escape(item.title), str(len(item.ratings)))
    result = {
        "items": [
            {"item": item.item, "title": item.title, "ratings": len(item.ratings)} for item in report.items
        ],
        "unknown_users": report.unknown_users,
    }
    output.result(result, table)
    if len(report.items) > 20:
        output.remark(f"and {len(report.items) - 20:,} more")
    if report.unknown_users:
        output.remark(
            f"left out {report.unknown_users:,} ratings of users who were not in training; they take part in the next one"
        )
    sentence = (
        "The items are recommended from now on; the next training gives them a vector from all their ratings."
    )
    show_next(output, [sentence], ["serve", str(run)])

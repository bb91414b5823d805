"""`verfedgnn items` and `verfedgnn forget`: items that come after a training, users and items that go."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from verfedgnn.cli.next_step import show_next
from verfedgnn.cli.output import STANDARD, Output
from verfedgnn.cli.shared_options import CommandApp, RunFolder, hides
from verfedgnn.cli.tables import make_table
from verfedgnn.core.errors import ConfigError

if TYPE_CHECKING:
    from verfedgnn.data.read_options import ReadOptions
    from verfedgnn.upkeep.new_items import AddedReport, NewItems

PartyOption = Annotated[
    str | None, typer.Option(help="Party that offers the items; needed if several could be meant.")
]
SHOWN = 20
"""Most items that are listed."""

app = CommandApp(name="items", help="Add items that come after a training.")


@app.command()
@hides("events", "encoding", "delimiter", "scale", "catalogue")
def add(
    run: RunFolder,
    *,
    party: PartyOption = None,
    ratings: Annotated[Path | None, typer.Option(help="First ratings of the new items.")] = None,
    items: Annotated[
        Path | None, typer.Option(help="Table with a row per new item: its id, title and further columns.")
    ] = None,
    reading: ReadOptions,
    output: Output = STANDARD,
) -> None:
    """Give new items a vector from their first ratings, so that they are recommended before the next training.

    It takes milliseconds an item and sends nothing to anybody. Repeat the command with further ratings of the same items. A server
    that serves the run notices the items within seconds.
    """
    from verfedgnn.data.rating_reader import read_table
    from verfedgnn.data.table_sources import read_item_texts
    from verfedgnn.upkeep.new_items import make_items

    if ratings is None and items is None:
        raise ConfigError("nothing to add; give --ratings FILE, --items FILE or both")
    new = open_items(run, party)
    options = reading.for_each(["ratings"])["ratings"]
    first = None if ratings is None else read_table(ratings, **options)
    report = new.add(make_items(first, {} if items is None else read_item_texts(items)))
    _show(report, run, new.party, output)


def open_items(run: Path, party: str | None) -> NewItems:
    """Return the new items of a party; its name is needed if the run has several."""
    from verfedgnn.runs.run import Run
    from verfedgnn.upkeep.new_items import NewItems

    loaded = Run.load(run, added=False)
    names = [each.name for each in loaded.parties]
    if party is None and len(names) > 1:
        raise ConfigError(f"the run has several parties; choose one with --party: {', '.join(names)}")
    return NewItems(run, loaded, party or names[0])


def _show(report: AddedReport, run: Path, party: str, output: Output) -> None:
    items = [{"item": item.item, "title": item.title, "ratings": len(item.ratings)} for item in report.items]
    rows = [[str(value) for value in row.values()] for row in items[:SHOWN]]
    table = make_table(["item", "title", "ratings"], rows, f"Added to {party}")
    output.result({"items": items, "unknown_users": report.unknown_users}, table)
    if len(report.items) > SHOWN:
        output.remark(f"and {len(report.items) - SHOWN:,} more")
    if report.unknown_users:
        output.remark(
            f"left out {report.unknown_users:,} ratings of users who were not in training; they take part in the next one"
        )
    sentence = (
        "The items are recommended from now on; the next training gives them a vector from all their ratings."
    )
    show_next(output, [sentence], ["serve", str(run)])


def forget(
    run: RunFolder,
    user: Annotated[
        list[str] | None, typer.Option(help="Id of the user, as in the data. Repeatable.")
    ] = None,
    user_file: Annotated[Path | None, typer.Option(help="Text file with one id of a user per line.")] = None,
    item: Annotated[
        list[str] | None, typer.Option(help="Id of the item, as in the data. Repeatable.")
    ] = None,
    item_file: Annotated[Path | None, typer.Option(help="Text file with one id of an item per line.")] = None,
    party: PartyOption = None,
    output: Output = STANDARD,
) -> None:
    """Remove users or items and their ratings from a run folder, and repair its model without them.

    A record, forget.json, says what was done and what remains, with a keyed hash instead of the id. If the command is interrupted, the
    same command finishes it. Remove them from your own data, too: the next training reads it again.
    """
    from verfedgnn.upkeep.forget import finish_forgetting, forget_items, forget_users

    users = [*(user or []), *_read_ids(user_file)]
    items = [*(item or []), *_read_ids(item_file)]
    if users and items:
        raise ConfigError("give users or items, not both; run the command once for each")
    record: dict[str, Any] | None
    if items:
        record = forget_items(run, items, party)
    else:
        record = forget_users(run, users) if users else finish_forgetting(run)
    if record is None:
        raise ConfigError("nothing to forget; give --user ID, --item ID, or a file of ids")
    ratings = sum(record["ratings"].values())
    again = sum(record["items_estimated_again"].values())
    repaired = (
        f"estimated {again:,} items again" if record["users"] else f"removed {len(record['items']):,} items"
    )
    output.result(record, f"removed {ratings:,} ratings; {repaired}")
    for text in record["remains"]:
        output.remark(f"remains: {text}")


def _read_ids(file: Path | None) -> list[str]:
    if file is None:
        return []
    try:
        return [line.strip() for line in file.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read ({error}); give a text file with one id per line") from None

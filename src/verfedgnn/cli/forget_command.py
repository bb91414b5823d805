"""`verfedgnn forget`: remove users or items from a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from verfedgnn.cli.output import Output
from verfedgnn.cli.shared_options import AsJson, Quiet, RunFolder
from verfedgnn.core.errors import ConfigError


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
    party: Annotated[
        str | None, typer.Option(help="Party that offers the items; needed if several have these ids.")
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Remove users or items and their ratings from a run folder, and repair its model without them.

    A record, forget.json, says what was done and what remains, with a keyed hash instead of the id. If the command is interrupted, the
    same command finishes it. Remove them from your own data, too: the next training reads it again.
    """
    from verfedgnn.upkeep.forget import finish_forgetting, forget_items, forget_users

    users = [*(user or []), *_read_ids(user_file)]
    items = [*(item or []), *_read_ids(item_file)]
    output = Output(quiet=quiet, as_json=as_json)
    if users and items:
        raise ConfigError("give users or items, not both; run the command once for each")
    if items:
        record = forget_items(run, items, party)
    elif users:
        record = forget_users(run, users)
    else:
        finished = finish_forgetting(run)
        if finished is None:
            raise ConfigError("nothing to forget; give --user ID, --item ID, or a file of ids")
        record = finished
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

"""`verfedgnn forget`: remove users from a run."""

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
    file: Annotated[Path | None, typer.Option(help="Text file with one id of a user per line.")] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Remove users and their ratings from a run folder, and repair its model without them.

    A record, forget.json, says what was done and what remains, with a keyed hash instead of the id. If the command is interrupted, the
    same command finishes it. Remove the users from your own data, too: the next training reads it again.
    """
    from verfedgnn.upkeep.forget import finish_forgetting, forget_users

    ids = [*(user or []), *(_read_ids(file) if file is not None else [])]
    output = Output(quiet=quiet, as_json=as_json)
    if not ids:
        finished = finish_forgetting(run)
        if finished is None:
            raise ConfigError("nothing to forget; give --user ID or --file IDS.txt")
        record = finished
    else:
        record = forget_users(run, ids)
    ratings = sum(record["ratings"].values())
    items = sum(record["items_estimated_again"].values())
    output.result(record, f"removed {ratings:,} ratings; estimated {items:,} items again")
    for text in record["remains"]:
        output.remark(f"remains: {text}")


def _read_ids(file: Path) -> list[str]:
    try:
        return [line.strip() for line in file.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read ({error}); give a text file with one id per line") from None

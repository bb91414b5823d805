"""`verfedgnn status`: show the status of a running coordinator or party."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from verfedgnn.cli.next_step import show_next
from verfedgnn.cli.output import Output
from verfedgnn.cli.shared_options import AsJson, Quiet
from verfedgnn.core.errors import RunError
from verfedgnn.federation.status_text import FACTS, format_heard, format_value, presence

_STALE_SECONDS = 30


def status(
    where: Annotated[
        str, typer.Argument(help="A run folder, its parent folder, or http://HOST:PORT of a --status page.")
    ],
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Show the rounds, validation error, parties, bytes and remaining time of a coordinator or party, and who waits for whom."""
    output = Output(quiet=quiet, as_json=as_json)
    found = _fetch(where) if where.startswith(("http://", "https://")) else _read(Path(where))
    table = Table("", "", show_header=False, box=None)
    for label in ("federation", "role", "training"):
        table.add_row(label, format_value(found, label))
    for label, key in FACTS:
        table.add_row(label, format_value(found, key))
    parties = Table("party", "", "heard", "MB up", "MB down", "refused")
    for name, about in found.get("parties", {}).items():
        parties.add_row(
            escape(name),
            presence(about),
            format_heard(found, about),
            f"{about['up'] / 1e6:,.1f}",
            f"{about['down'] / 1e6:,.1f}",
            str(about.get("refused", 0)),
        )
    output.result(found, table, parties)
    age = time.time() - found.get("updated", 0)
    if age > _STALE_SECONDS and found.get("state") != "finished":
        sentence = f"This status is {age:,.0f} s old: the process is not running, or hangs. Start it again; it resumes."
    else:
        sentence = (
            "The training is finished." if found.get("state") == "finished" else "The process is running."
        )
    folder = Path(where)
    served = found.get("state") == "finished" and found.get("role") == "party" and folder.is_dir()
    show_next(output, [sentence], ["serve", where] if served else ["status", where])


def _read(folder: Path) -> dict[str, Any]:
    for place in (folder / "status.json", folder / "run" / "status.json"):
        if place.is_file():
            return dict(json.loads(place.read_text("utf-8")))
    raise RunError(
        f"there is no status in {folder}; pass the run folder of a coordinator or party that has been started"
    )


def _fetch(url: str) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(url.rstrip("/") + "/status.json", timeout=5) as answer:
            return dict(json.loads(answer.read(1 << 20)))
    except (urllib.error.URLError, ValueError, OSError) as error:
        raise RunError(
            f"no status at {url} ({getattr(error, 'reason', error)}); start the member with --status"
        ) from None

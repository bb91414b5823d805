"""The history of the nights of a member: a line for each, in the folder that holds their runs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from verfedgnn.core.errors import Interrupted, NotPromoted, RunError
from verfedgnn.core.files import check_file_name, parsing

BEST = "best-promoted.json"
"""File in the folder of a promoted run: the best run promoted up to it, as a path from that folder, by metric."""
HISTORY = "nights.jsonl"
"""File in a folder of nights with a line for each night."""
Word = Literal["promoted", "kept", "trained", "nothing new", "failed", "stopped", "begun", "given up"]
EXITS: dict[Word, int] = {
    "promoted": 0,
    "trained": 0,
    "nothing new": 6,
    "kept": NotPromoted.exit_code,
    "stopped": Interrupted.exit_code,
    "failed": 1,
    "begun": Interrupted.exit_code,
    "given up": 7,
}
"""The exit code of each result; a night that is only begun is at work, or was killed."""
DONE: tuple[Word, ...] = ("promoted", "kept", "trained", "nothing new", "given up")
"""Results of nights that are over."""


@dataclass(frozen=True)
class Night:
    """One line of the history."""

    night: str
    result: Word
    reason: str
    """Why the run was kept or the night failed; "" otherwise."""
    started: str
    """Time of the first start in UTC."""
    seconds: float
    data: str
    """Hash of the files that were trained on."""

    def __post_init__(self) -> None:
        """Raise `ValueError` or `TypeError` for a line from elsewhere: the folder of a night may be removed."""
        check_file_name(self.night)
        self.due(24 * 366)  # not at the end of time
        if self.result not in EXITS or not isinstance(self.reason, str) or not 0 <= self.seconds < 1e9:
            raise ValueError("a line is not one of a night")

    def due(self, hours: float) -> datetime:
        """Return the time at which the night is given up if it is not over by then."""
        return datetime.fromisoformat(self.started).astimezone(UTC) + timedelta(hours=hours)


def read_nights(folder: Path) -> list[Night]:
    """Return the history of a folder of nights, oldest first; a night that was tried again has its last result.

    A last line without an end was torn by a crash or a full disk, and does not count.
    """
    file = folder / HISTORY
    with parsing(str(file), "move it away to begin a new history"):
        if file.is_symlink():
            raise ValueError("it is a link")
        whole = file.read_bytes().rpartition(b"\n")[0].decode() if file.is_file() else ""
        nights = [Night(**json.loads(line)) for line in whole.splitlines()]
    return list({each.night: each for each in nights}.values())


def read_best(folder: Path) -> dict[str, Path]:
    """Return the best run, by metric, of those promoted up to the one in `folder`: that run itself if its folder names none."""
    file = folder / BEST
    with parsing(str(file), "restore it, or remove it to compare with the served run only"):
        named = json.loads(file.read_text("utf-8")) if file.is_file() else {}
        best = {metric: (folder / named.get(metric, ".")).resolve() for metric in ("rmse", "ndcg@20")}
    gone = next((path for path in best.values() if not path.is_dir()), None)
    if gone is not None:
        raise RunError(
            f"{gone} is the best run that was promoted, and it is gone; without it, losses of single nights would add up. "
            "Put it back, or switch the link by hand"
        )
    return best

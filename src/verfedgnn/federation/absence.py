"""Parties that stay away: the time for which a training has waited for them, and the operator's request to finish without them."""

from __future__ import annotations

import time
from pathlib import Path

from verfedgnn.core.errors import RunError
from verfedgnn.core.files import write_bytes, writing
from verfedgnn.runs.run_layout import LISTS

_REQUEST = "finish.request"
"""File in the coordinator's run folder that asks it to finish."""


class AbsenceClock:
    """The time for which a training has lacked parties. With a `deadline` of 0 seconds it is never over."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.since: float | None = None
        """Time at which the training began to wait; None while it does not wait."""

    def start(self) -> None:
        """Begin to wait, unless the training waits already."""
        if self.since is None:
            self.since = time.monotonic()

    def stop(self) -> None:
        """Note that enough parties are here."""
        self.since = None

    @property
    def is_over(self) -> bool:
        """Whether the training has waited for the agreed time."""
        return (
            bool(self.deadline) and self.since is not None and time.monotonic() >= self.since + self.deadline
        )


def request_finish(run: Path) -> None:
    """Ask the coordinator of a run folder to finish; raise `RunError` if there is no training to finish."""
    stages = [folder for folder in (run, run / LISTS) if (folder / "config.toml").is_file()]
    if not stages:
        raise RunError(f"{run} is not the run folder of a coordinator; pass the folder with --out")
    if all((folder / "metrics.json").is_file() for folder in stages):
        raise RunError(f"the training in {run} has already finished")
    if not (run / "history.jsonl").is_file():
        raise RunError(
            f"{run} has no validated model to finish with; stop the coordinator if you want to give the training up"
        )
    with writing(run):
        write_bytes(run / _REQUEST, b"")


def has_request(run: Path) -> bool:
    """Return whether an operator asked to finish."""
    return (run / _REQUEST).exists()


def remove_request(run: Path) -> None:
    """Remove a request to finish."""
    with writing(run):
        (run / _REQUEST).unlink(missing_ok=True)

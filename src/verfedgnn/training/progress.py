"""Progress reports of a running training, and the functions that receive them or stop it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """The state of a training after a round."""

    label: str
    """Name of the training, such as `federation`, `lists` or `film alone`."""
    round: int
    rounds: int
    valid: dict[str, float] | None
    """Validation figures by name, if this round had a validation."""
    best: dict[str, float]
    """The best validation figures so far, by name."""
    bytes: int
    """Bytes of all messages so far."""


Watcher = Callable[[Progress], None]
"""A function that is called after every round."""

Stop = Callable[[], bool]
"""A function that returns True once the training should stop."""


def never() -> bool:
    """Return False: never stop early."""
    return False

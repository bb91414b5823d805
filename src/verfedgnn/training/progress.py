"""Progress reports of a running training, the functions that receive them or stop it, and how to go on after a stop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from verfedgnn.core.option_names import option, resume_words


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


def resume_hint(folder: Path | None) -> str:
    """Return a hint on how to resume an interrupted training."""
    if folder is None:
        return f"nothing is kept; pass {option('out')} to be able to resume"
    return f"resume with {resume_words(folder)}"

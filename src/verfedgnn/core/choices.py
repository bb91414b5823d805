"""What validation parts chose, so that a training on all ratings, which has no validation part, repeats it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

Option = TypeVar("Option")


class Choices:
    """The choices of one party for one model of ratings or lists, by name.

    The judged training makes and records them. `repeat` returns choices that are only read.
    """

    def __init__(self) -> None:
        self.recorded: dict[str, Any] = {}
        self.repeats = False

    def repeat(self) -> Choices:
        """Return the same choices for a training that repeats them."""
        made = Choices()
        made.recorded = self.recorded
        made.repeats = True
        return made

    def choose(self, name: str, options: Sequence[Option], error: Callable[[Option], float]) -> Option:
        """Return the recorded option; if none is, the one with the least error on the validation part."""
        return self.make(name, lambda: min(options, key=error))

    def make(self, name: str, choose: Callable[[], Option]) -> Option:
        """Return the recorded option; if none is, record what `choose` returns."""
        if not self.repeats:
            self.recorded[name] = choose()
        chosen: Option = self.recorded[name]
        return chosen

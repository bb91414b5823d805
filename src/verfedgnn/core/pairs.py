"""Rated pairs of users and items as tensors, what a party brings into the protocol, and what it chose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor

Option = TypeVar("Option")


@dataclass(frozen=True)
class Pairs:
    """Rated pairs of one party: row numbers of users and items, and ratings, all on one device."""

    user: Tensor
    item: Tensor
    rating: Tensor

    def __len__(self) -> int:
        return len(self.rating)

    def take(self, index: Tensor | slice) -> Pairs:
        """Return the pairs at `index`."""
        return Pairs(self.user[index], self.item[index], self.rating[index])


@dataclass(frozen=True)
class PartyInput:
    """A party's own data: its name, its sizes, its rating scale, and its training and validation pairs."""

    name: str
    users: int
    items: int
    scale: tuple[float, float]
    train: Pairs
    valid: Pairs
    catalogue: int | None = None
    """Declared number of items, with or without ratings; None if none was declared."""


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

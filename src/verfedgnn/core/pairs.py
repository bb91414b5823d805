"""Rated pairs of users and items as tensors, what a party brings into the protocol, its rating scale, and what it chose."""

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


def typical_rating(scale: tuple[float, float]) -> float:
    """Return the middle of a rating scale, near which initial predictions should lie.

    For a scale centred at or below 0, return half of its largest absolute value.
    """
    low, high = scale
    middle = (low + high) / 2
    return middle if middle > 0 else max(abs(low), abs(high), 1e-6) / 2


def upper_quarter(scale: tuple[float, float]) -> float:
    """Return the rating from which an item counts as liked: 4 on a scale of 1-5, 7.75 on 1-10, that is 8 in whole stars (App. G)."""
    low, high = scale
    return low + 0.75 * (high - low)


def scale_unit(scale: tuple[float, float]) -> float:
    """Return a quarter of the width of a rating scale: one star on a scale of 1-5. Return 1 for a scale without width."""
    low, high = scale
    return (high - low) / 4 if high > low else 1.0


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

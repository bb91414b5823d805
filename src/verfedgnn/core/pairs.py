"""Rated pairs of users and items as tensors, and the data that a party brings into the protocol."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


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

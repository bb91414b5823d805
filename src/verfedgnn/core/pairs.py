"""Rated pairs of users and items as tensors, and the data that a party brings into the protocol."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
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
    withheld: Tensor | None = None
    """Whether each user's ratings stay out of the first rounds (N,), so that the party learns how to serve newcomers; None for
    nobody."""

    def without_withheld(self) -> PartyInput:
        """Return the data of the first rounds, without the training ratings of withheld users."""
        if self.withheld is None:
            return self
        return replace(self, train=self.train.take(~self.withheld[self.train.user.long()]))

    def take_withheld(self) -> Pairs:
        """Return the training and validation ratings of the withheld users."""
        pairs = Pairs(
            torch.cat([self.train.user, self.valid.user]),
            torch.cat([self.train.item, self.valid.item]),
            torch.cat([self.train.rating, self.valid.rating]),
        )
        return pairs.take(slice(0, 0) if self.withheld is None else self.withheld[pairs.user.long()])

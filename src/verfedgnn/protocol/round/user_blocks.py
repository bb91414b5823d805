"""Blocks of users that take turns, one block a round (the paper's future work, Sec. 7).

Users are cut into `training.user_blocks` contiguous blocks, each made of whole blocks of the projection. A round trains on the
ratings of one block's users and sends gradients and neighbourhoods of that block only. A pass is over when every block had its
turn; each pass has its own random order. The order follows from the seed, so no message carries it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.core.errors import ConfigError
from verfedgnn.core.random_streams import SharedStream, shared_generator
from verfedgnn.gnn.model import Model
from verfedgnn.privacy.projection import block_rows, cut_blocks


@dataclass(frozen=True)
class UserBlock:
    """A contiguous block of users that one round works on."""

    index: int
    users: slice
    """Rows of its users among all users."""
    rows: slice
    """Rows of its projected neighbourhoods; without a projection, the same as `users`."""
    model: Model
    """The model with the users of this block only."""
    covers_all: bool
    """Whether the block holds all users."""

    def select_flat(self, model: Model, flat: Tensor) -> Tensor:
        """Return the block's users and the shared weights of flat public parameters (or gradients) of all users."""
        return flat if self.covers_all else self.model.flat(self.select(model, flat))

    def select(self, model: Model, flat: Tensor) -> dict[str, Tensor]:
        """Return the block's users and the shared weights of flat public parameters, by name, as views."""
        return model.map_public_users(flat, lambda view: view[self.users])


class UserBlocks:
    """All blocks of users and the order in which they take turns.

    `sizes` are the numbers of users of the blocks where a worker holds some users of each (`user_shards`).
    """

    def __init__(self, config: Config, model: Model, sizes: Sequence[int] | None = None) -> None:
        self.config = config
        self.model = model
        self.count = config.training.user_blocks
        self.sizes = sizes

    @cached_property
    def all_users(self) -> UserBlock:
        """One block with all users, independent of turns."""
        if self.count == 1:
            return self.blocks[0]
        rows = slice(0, self.blocks[-1].rows.stop)
        return UserBlock(-1, slice(0, self.model.users), rows, self.model, True)

    @cached_property
    def blocks(self) -> list[UserBlock]:
        """All blocks, in the order of their rows."""
        users = self.model.users
        count = self.count
        exchange = self.config.exchange
        if self.sizes is not None:
            edges = np.concatenate([[0], np.cumsum(self.sizes)]).tolist()
            bounds = list(pairwise(edges))
            sizes = list(self.sizes)
        elif exchange.mode == "projected":
            bounds = cut_blocks(users, exchange.block)
            sizes = [block_rows(stop - start, exchange.ratio) for start, stop in bounds]
        else:
            bounds = [(users * i // count, users * (i + 1) // count) for i in range(count)]
            sizes = [stop - start for start, stop in bounds]
        if count > min(users, len(bounds)):
            raise ConfigError(
                f"training.user_blocks = {count} is more than the {len(bounds)} block(s) that the projection makes of "
                f"{users:,} users; lower it, or set exchange.block to at most {max(2, users // count)}"
            )
        edges = np.concatenate([[0], np.cumsum(sizes)]).tolist()
        found = []
        for i in range(count):
            first = len(bounds) * i // count
            last = len(bounds) * (i + 1) // count
            members = slice(bounds[first][0], bounds[last - 1][1])
            model = self.model if count == 1 else Model(self.config.model, members.stop - members.start)
            found.append(UserBlock(i, members, slice(edges[first], edges[last]), model, count == 1))
        return found

    def in_round(self, round: int) -> UserBlock:
        """Return the block whose turn it is in a round."""
        if self.count == 1:
            return self.blocks[0]
        done, turn = divmod(round - 1, self.count)
        return self.blocks[int(self._order(done)[turn])]

    def previous_turn(self, round: int) -> int:
        """Return the last round before `round` with the same block; 0 or less if there is none."""
        if self.count == 1:
            return round - 1
        done = (round - 1) // self.count
        if done == 0:
            return 0
        place = int(np.flatnonzero(self._order(done - 1) == self.in_round(round).index)[0])
        return (done - 1) * self.count + place + 1

    def _order(self, done: int) -> NDArray[np.int64]:
        return _order(self.config.seed, done, self.count)


@lru_cache(maxsize=16)
def _order(seed: int, done: int, count: int) -> NDArray[np.int64]:
    """Draw the order of the blocks in the pass that follows `done` passes; cached, since every round asks several times."""
    return shared_generator(seed, SharedStream.BLOCK_ORDER, done).permutation(count)


def completed_passes(config: Config, round: int) -> int:
    """Return how many passes over all blocks were complete before a round."""
    return (round - 1) // config.training.user_blocks


def computes_single_blocks(config: Config) -> bool:
    """Return whether a round computes its own block only; propagation always needs the whole graph."""
    return config.training.user_blocks > 1 and config.model.form != "propagation"

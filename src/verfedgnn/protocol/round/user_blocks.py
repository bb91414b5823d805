"""Which users a round is about: all of them, or one part after the other (the paper's future work, Sec. 7).

Users are cut into `training.user_blocks` parts of consecutive rows, a part being whole blocks of the projection. A round trains
on ratings of one part's users, and sends gradients and neighbourhoods of that part only; once all parts had their turn, in an
order drawn anew, a pass is over. Who is where is public.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.core.errors import ConfigError
from verfedgnn.gnn.model import Model
from verfedgnn.privacy.projection import block_rows, cut_blocks


@dataclass(frozen=True)
class Part:
    """Some users."""

    index: int
    users: slice
    """Their rows."""
    rows: slice
    """Rows of their projected neighbourhoods; of unprojected ones their own."""
    model: Model
    """The model with these users only."""
    whole: bool
    """Whether they are all."""

    def cut(self, model: Model, flat: Tensor) -> Tensor:
        """Of flat public parameters (or gradients) of all users, those of this part and the shared weights."""
        return flat if self.whole else self.model.flat(self.of(model, flat))

    def of(self, model: Model, flat: Tensor) -> dict[str, Tensor]:
        """The same by name, as views."""
        return {
            name: view[self.users] if name in model.per_user else view
            for name, view in model.views(flat).items()
        }


class Rotation:
    """The parts, and whose turn it is."""

    def __init__(self, config: Config, model: Model) -> None:
        self.config, self.count, self.model = config, config.training.user_blocks, model

    @cached_property
    def everybody(self) -> Part:
        """All users, whoever's turn it is."""
        if self.count == 1:
            return self.parts[0]
        return Part(-1, slice(0, self.model.users), slice(0, self.parts[-1].rows.stop), self.model, True)

    @cached_property
    def parts(self) -> list[Part]:
        """All parts, in the order of rows."""
        users, exchange, count = self.model.users, self.config.exchange, self.count
        if exchange.mode == "projected":
            bounds = cut_blocks(users, exchange.block)
            sizes = [block_rows(stop - start, exchange.ratio) for start, stop in bounds]
        else:
            bounds = [(users * i // count, users * (i + 1) // count) for i in range(count)]
            sizes = [stop - start for start, stop in bounds]
        if count > min(users, len(bounds)):
            raise ConfigError(
                f"training.user_blocks = {count} cuts {users:,} users into more parts than there are blocks of the projection "
                f"({len(bounds)}); lower it, or set exchange.block to at most {max(2, users // count)}"
            )
        edges = np.concatenate([[0], np.cumsum(sizes)]).tolist()
        found = []
        for i in range(count):
            first, last = len(bounds) * i // count, len(bounds) * (i + 1) // count
            members = slice(bounds[first][0], bounds[last - 1][1])
            model = self.model if count == 1 else Model(self.config.model, members.stop - members.start)
            found.append(Part(i, members, slice(edges[first], edges[last]), model, count == 1))
        return found

    def of(self, round: int) -> Part:
        """Whose turn it is in a round."""
        if self.count == 1:
            return self.parts[0]
        done, turn = divmod(round - 1, self.count)
        return self.parts[int(self._order(done)[turn])]

    def before(self, round: int) -> int:
        """The round in which it was the same part's turn before; 0 or less: none."""
        if self.count == 1:
            return round - 1
        done = (round - 1) // self.count
        place = int(np.flatnonzero(self._order(done - 1) == self.of(round).index)[0]) if done else -self.count
        return (done - 1) * self.count + place + 1

    def _order(self, done: int) -> NDArray[np.int64]:
        return _order(self.config.seed, done, self.count)


@lru_cache(maxsize=16)
def _order(seed: int, done: int, count: int) -> NDArray[np.int64]:
    """The order of the parts in a pass; it is asked for many times a round."""
    return np.random.default_rng([seed, 10, done]).permutation(count)


def passes(config: Config, round: int) -> int:
    """How many passes over all parts were over before a round."""
    return (round - 1) // config.training.user_blocks


def by_parts(config: Config) -> bool:
    """Whether a round is computed for its users alone; propagation needs the whole graph, whoever a round is about."""
    return config.training.user_blocks > 1 and config.model.form != "propagation"

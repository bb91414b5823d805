"""How the users of a party or a coordinator are divided among its workers: which rows a worker holds, and which parts of messages.

Each worker holds a range of whole groups of users (`user_groups`) of every block, and all shared weights. In a flat array of public
parameters its part is one piece for each block and parameter that has a row per user, and the weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.core.errors import ConfigError
from verfedgnn.core.worker_group import WorkerGroup
from verfedgnn.gnn.model import Model
from verfedgnn.privacy.masking import GRADIENT
from verfedgnn.protocol.round.user_blocks import UserBlock, UserBlocks
from verfedgnn.protocol.round.user_groups import GROUP
from verfedgnn.protocol.wire.messages import Finish, RoundReply, RoundStart, Welcome

Array = NDArray[Any]
Divided = TypeVar("Divided", Welcome, RoundStart, RoundReply, Finish)


def check_party(config: Config) -> None:
    """Raise `ConfigError` if the ratings of a party's users cannot be divided among workers."""
    reasons = {
        "training.batch": config.training.batch > 0,
        "model.residual": config.model.residual,
        "exchange.mode = projected": config.exchange.mode == "projected",
        "model.form = solved": config.model.form == "solved",
    }
    found = [name for name, refused in reasons.items() if refused]
    if found:
        raise ConfigError(
            f"--workers cannot divide a training with {' and '.join(found)}; run the party in one process, without --workers"
        )


def check_users(blocks: UserBlocks, workers: int) -> None:
    """Raise `ConfigError` if there are too few users for that many workers."""
    fewest = min(block.users.stop - block.users.start for block in blocks.blocks)
    if fewest < workers * GROUP:
        of_block = " of a block" if blocks.count > 1 else ""
        raise ConfigError(
            f"{fewest:,} users{of_block} are too few for {workers} workers, which hold at least {GROUP} each; use fewer --workers"
        )


class FlatPart:
    """The part of a flat array of a model's public parameters with some `rows` of its users, and all weights."""

    def __init__(self, whole: Model, rows: Sequence[slice]) -> None:
        self.pieces: list[slice] = []
        """Where the part is in the flat array, in its own order."""
        start = 0
        for name, shape in whole.shapes.items():
            size = math.prod(shape)
            if name in whole.per_user:
                columns = size // whole.users
                self.pieces += [
                    slice(start + each.start * columns, start + each.stop * columns) for each in rows
                ]
            else:
                self.pieces.append(slice(start, start + size))
            start += size
        self.size = sum(piece.stop - piece.start for piece in self.pieces)

    def take(self, flat: Array) -> Array:
        """Return the part of a flat array."""
        return np.concatenate([flat[piece] for piece in self.pieces])

    def put(self, part: Array, flat: Array) -> None:
        """Copy the part into a flat array."""
        start = 0
        for piece in self.pieces:
            size = piece.stop - piece.start
            flat[piece] = part[start : start + size]
            start += size


@dataclass(frozen=True)
class UserShard:
    """The users of one worker."""

    all_blocks: UserBlocks
    """The blocks of all users."""
    workers: WorkerGroup
    rank: int
    """The worker that holds these users."""

    @property
    def whole(self) -> Model:
        """The model of all users."""
        return self.all_blocks.model

    @cached_property
    def ranges(self) -> list[slice]:
        """Rows of its users among all users, one range in each block."""
        found = []
        for block in self.all_blocks.blocks:
            own = self._cut(block.users.stop - block.users.start)
            found.append(slice(block.users.start + own.start, block.users.start + own.stop))
        return found

    def _cut(self, count: int) -> slice:
        """Return its part of `count` rows that are divided in whole groups."""
        groups = -(-count // GROUP)
        first, last = (groups * i // self.workers.size * GROUP for i in (self.rank, self.rank + 1))
        return slice(first, min(last, count))

    @cached_property
    def users(self) -> slice | Tensor:
        """Rows of its users among all users, ascending."""
        if len(self.ranges) == 1:
            return self.ranges[0]
        return torch.cat([torch.arange(each.start, each.stop) for each in self.ranges])

    @cached_property
    def model(self) -> Model:
        """The model of its users."""
        return Model(self.whole.config, sum(each.stop - each.start for each in self.ranges))

    @cached_property
    def blocks(self) -> UserBlocks:
        """The blocks of its users."""
        sizes = [each.stop - each.start for each in self.ranges]
        return UserBlocks(self.all_blocks.config, self.model, sizes)

    @cached_property
    def all_workers(self) -> list[UserShard]:
        """The users of every worker."""
        return [UserShard(self.all_blocks, self.workers, rank) for rank in range(self.workers.size)]

    @cached_property
    def flat(self) -> FlatPart:
        """Its part of a flat array of all users."""
        return FlatPart(self.whole, self.ranges)

    @cached_property
    def _of_blocks(self) -> list[FlatPart]:
        sizes = [block.users.stop - block.users.start for block in self.all_blocks.blocks]
        return [
            FlatPart(block.model, [self._cut(size)])
            for block, size in zip(self.all_blocks.blocks, sizes, strict=True)
        ]

    def flat_in_round(self, round: int) -> FlatPart:
        """Return its part of a flat array of the users of a round."""
        return self._of_blocks[self.all_blocks.in_round(round).index]

    def rows_of(self, block: UserBlock) -> slice:
        """Return its rows among the neighbourhoods of a block."""
        return self._cut(block.rows.stop - block.rows.start)

    def places(self, use: int, round: int, shape: Sequence[int]) -> list[slice]:
        """Return where its gradient, or its neighbourhoods of a `shape` (K, own q, C), are in the flat array of a round's users."""
        if use == GRADIENT:
            return self.flat_in_round(round).pieces
        layers, _, columns = shape
        block = self.all_blocks.in_round(round)
        count = block.rows.stop - block.rows.start
        own = self.rows_of(block)
        return [
            slice((layer * count + own.start) * columns, (layer * count + own.stop) * columns)
            for layer in range(layers)
        ]

    # -- messages ----------------------------------------------------------------------------------------

    def take(self, message: Divided) -> Divided:
        """Return the part of a message that is about these users."""
        found: dict[str, Array | None] = {
            name: self.flat.take(values)
            for name in ("parameters", "accumulator", "average")
            if (values := getattr(message, name, None)) is not None
        }
        if isinstance(message, RoundStart):
            if message.updates is not None:
                found["updates"] = self._take_updates(message.updates, updated_rounds(message))
            if message.starts is not None:
                found["starts"] = self._take_starts(message.starts, message.start_rounds)
        if isinstance(message, RoundReply) and message.gradient is not None:
            found["gradient"] = self.flat_in_round(message.round).take(message.gradient)
        if isinstance(message, RoundStart | RoundReply) and message.neighbourhoods is not None:
            rows = self.rows_of(self.all_blocks.in_round(message.round))
            found["neighbourhoods"] = np.ascontiguousarray(message.neighbourhoods[:, rows])
        return message.model_copy(update=found)

    def _take_updates(self, updates: Array, rounds: Sequence[int]) -> Array:
        sizes = [self.all_blocks.in_round(round).model.size for round in rounds]
        each = np.split(updates, np.cumsum(sizes)[:-1])
        return np.concatenate(
            [self.flat_in_round(r).take(values) for r, values in zip(rounds, each, strict=True)]
        )

    def _take_starts(self, starts: Array, rounds: Sequence[int]) -> Array:
        sizes = [self.all_blocks.in_round(round).model.users for round in rounds]
        each = np.split(starts, np.cumsum(sizes)[:-1])
        return np.concatenate([values[self._cut(len(values))] for values in each])

    def join_flat(self, parts: Sequence[Array]) -> Array:
        """Return a flat array of all users from the parts of all workers; the first worker's weights are taken."""
        return _join([shard.flat for shard in self.all_workers], parts, self.whole.size)

    def join_rows(self, parts: Sequence[Array]) -> Array:
        """Return an array with a row per user from the parts of all workers."""
        whole = np.empty((self.whole.users, *parts[0].shape[1:]), parts[0].dtype)
        for shard, part in zip(self.all_workers, parts, strict=True):
            whole[shard.users] = part
        return whole

    def join_updates(self, parts: Sequence[Array], rounds: Sequence[int]) -> Array:
        """Return the updates of some rounds from the parts of all workers."""
        found = []
        starts = [0] * len(parts)
        for round in rounds:
            flats = [shard.flat_in_round(round) for shard in self.all_workers]
            ends = [start + flat.size for start, flat in zip(starts, flats, strict=True)]
            each = [part[start:end] for part, start, end in zip(parts, starts, ends, strict=True)]
            found.append(_join(flats, each, self.all_blocks.in_round(round).model.size))
            starts = ends
        return found[0] if len(found) == 1 else np.concatenate(found)

    def join_starts(self, parts: Sequence[Array], rounds: Sequence[int]) -> Array:
        """Return the first biases of the users of some rounds from the parts of all workers."""
        found = []
        starts = [0] * len(parts)
        for round in rounds:
            users = self.all_blocks.in_round(round).model.users
            for rank, shard in enumerate(self.all_workers):
                own = shard._cut(users)
                end = starts[rank] + own.stop - own.start
                found.append(parts[rank][starts[rank] : end])
                starts[rank] = end
        return np.concatenate(found)

    def join_replies(self, replies: Sequence[RoundReply]) -> RoundReply:
        """Return the party's reply from the replies of all workers."""
        first = replies[0]
        found: dict[str, Any] = {}
        if first.gradient is not None:
            gradients = [reply.gradient for reply in replies if reply.gradient is not None]
            found["gradient"] = self.join_updates(gradients, [first.round])
        if first.neighbourhoods is not None:
            parts = [reply.neighbourhoods for reply in replies if reply.neighbourhoods is not None]
            found["neighbourhoods"] = np.concatenate(parts, 1)
        if first.error is not None:
            found["error"] = sum(reply.error or 0.0 for reply in replies)
            found["count"] = sum(reply.count or 0 for reply in replies)
        return first.model_copy(update=found)


def updated_rounds(message: RoundStart) -> list[int]:
    """Return the rounds whose updates a message brings."""
    rounds = enumerate(message.update_parties, message.updates_from)
    return [round for round, parties in rounds if parties]


def _join(flats: Sequence[FlatPart], parts: Sequence[Array], size: int) -> Array:
    whole = np.empty(size, parts[0].dtype)
    for flat, part in reversed(list(zip(flats, parts, strict=True))):
        flat.put(part, whole)
    return whole

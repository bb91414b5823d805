"""How the users of a party or a coordinator are divided among its workers: which rows a worker holds, and which parts of messages.

Each worker holds a range of whole groups of users (`user_groups`) and all shared weights. In a flat array of public parameters its
part is one piece for each parameter that has a row per user, and the weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from verfedgnn.config import Config
from verfedgnn.core.errors import ConfigError
from verfedgnn.core.worker_group import WorkerGroup
from verfedgnn.gnn.model import Model
from verfedgnn.protocol.round.user_groups import GROUP
from verfedgnn.protocol.wire.messages import Finish, RoundReply, RoundStart, Welcome

Array = NDArray[Any]
Divided = TypeVar("Divided", Welcome, RoundStart, RoundReply, Finish)


def check_shards(config: Config, users: int, workers: int) -> None:
    """Raise `ConfigError` if the users of a training cannot be divided among workers."""
    reasons = {
        "training.batch": config.training.batch > 0,
        "training.user_blocks": config.training.user_blocks > 1,
        "model.generator": config.model.generator,
        "model.residual": config.model.residual,
        "exchange.mode = projected": config.exchange.mode == "projected",
        "gradients.mechanism = skellam": config.gradients.mechanism == "skellam",
    }
    found = [name for name, refused in reasons.items() if refused]
    if found:
        raise ConfigError(
            f"--workers cannot divide a training with {' and '.join(found)}; run the party in one process, without --workers"
        )
    if users < workers * GROUP:
        raise ConfigError(
            f"{users:,} users are too few for {workers} workers, which hold at least {GROUP} each; use fewer --workers"
        )


@dataclass(frozen=True)
class UserShard:
    """The users of one worker."""

    whole: Model
    """The model of all users."""
    workers: WorkerGroup
    rank: int
    """The worker that holds these users."""

    @property
    def users(self) -> slice:
        """Rows of its users among all users."""
        groups = -(-self.whole.users // GROUP)
        first, last = (groups * i // self.workers.size * GROUP for i in (self.rank, self.rank + 1))
        return slice(first, min(last, self.whole.users))

    @cached_property
    def model(self) -> Model:
        """The model of its users."""
        return Model(self.whole.config, self.users.stop - self.users.start)

    def of_worker(self, rank: int) -> UserShard:
        """Return the users of another worker."""
        return UserShard(self.whole, self.workers, rank)

    @cached_property
    def pieces(self) -> list[slice]:
        """Where its parameters are in a flat array of all public parameters, in the order of its own flat array."""
        found = []
        start = 0
        for name, shape in self.whole.shapes.items():
            size = math.prod(shape)
            if name in self.whole.per_user:
                columns = size // self.whole.users
                found.append(slice(start + self.users.start * columns, start + self.users.stop * columns))
            else:
                found.append(slice(start, start + size))
            start += size
        return found

    def pieces_of_rows(self, shape: Sequence[int]) -> list[slice]:
        """Return where its rows (K, own q, C) are in a flat array of all users' neighbourhoods."""
        layers, _, columns = shape
        starts = [(layer * self.whole.users + self.users.start) * columns for layer in range(layers)]
        return [slice(start, start + (self.users.stop - self.users.start) * columns) for start in starts]

    # -- messages ----------------------------------------------------------------------------------------

    def take(self, message: Divided) -> Divided:
        """Return the part of a message that is about these users."""
        found: dict[str, Array | None] = {
            name: self.take_flat(values)
            for name in ("parameters", "accumulator", "average", "updates", "gradient")
            if (values := getattr(message, name, None)) is not None
        }
        if isinstance(message, RoundStart) and message.starts is not None:
            found["starts"] = message.starts.reshape(-1, self.whole.users)[:, self.users].reshape(-1)
        if isinstance(message, RoundStart | RoundReply) and message.neighbourhoods is not None:
            found["neighbourhoods"] = np.ascontiguousarray(message.neighbourhoods[:, self.users])
        return message.model_copy(update=found)

    def take_flat(self, values: Array) -> Array:
        """Return the part of one or more flat arrays that follow each other."""
        whole = values.reshape(-1, self.whole.size)
        return np.concatenate([row[piece] for row in whole for piece in self.pieces])

    def join_flat(self, parts: Sequence[Array]) -> Array:
        """Return what `take_flat` was given from the parts of all workers; the first worker's weights are taken."""
        count = len(parts[0]) // self.of_worker(0).model.size
        whole = np.empty((count, self.whole.size), parts[0].dtype)
        for rank, part in reversed(list(enumerate(parts))):
            rows = part.reshape(count, -1)
            start = 0
            for piece in self.of_worker(rank).pieces:
                size = piece.stop - piece.start
                whole[:, piece] = rows[:, start : start + size]
                start += size
        return whole.reshape(-1)

    def join_arrays(self, parts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
        """Return arrays of a RoundStart from the parts of all workers."""
        found = {}
        for name in parts[0]:
            each = [part[name] for part in parts]
            if name == "neighbourhoods":
                found[name] = np.concatenate(each, 1)
            elif name == "starts":
                counts = [self.of_worker(rank).model.users for rank in range(len(parts))]
                rows = [part.reshape(-1, count) for part, count in zip(each, counts, strict=True)]
                found[name] = np.concatenate(rows, 1).reshape(-1)
            else:
                found[name] = self.join_flat(each)
        return found

    def join_replies(self, replies: Sequence[RoundReply]) -> RoundReply:
        """Return the party's reply from the replies of all workers."""
        first = replies[0]
        found: dict[str, Any] = {}
        if first.gradient is not None:
            found["gradient"] = self.join_flat([r.gradient for r in replies if r.gradient is not None])
        if first.neighbourhoods is not None:
            parts = [reply.neighbourhoods for reply in replies if reply.neighbourhoods is not None]
            found["neighbourhoods"] = np.concatenate(parts, 1)
        if first.error is not None:
            found["error"] = sum(reply.error or 0.0 for reply in replies)
            found["count"] = sum(reply.count or 0 for reply in replies)
        return first.model_copy(update=found)

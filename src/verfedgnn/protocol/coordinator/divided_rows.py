"""A coordinator's users, divided among workers: the first worker lets the others do what it does itself, each with its own users.

first worker   DividedRows: a call, the parts of its arrays -> own part, and the others' answers joined
other worker   obey: the same call of its own `PublicRows`
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.core.worker_group import WorkerGroup
from verfedgnn.gnn.model import Model
from verfedgnn.privacy.masking import MaskStream
from verfedgnn.protocol.checkpoint_state import CheckpointState
from verfedgnn.protocol.coordinator.public_rows import News, PublicRows
from verfedgnn.protocol.coordinator.update_log import Update
from verfedgnn.protocol.round.aggregation import SumError
from verfedgnn.protocol.round.replica import Replica
from verfedgnn.protocol.round.user_blocks import UserBlocks
from verfedgnn.protocol.round.user_groups import hash_arrays
from verfedgnn.protocol.round.user_shards import UserShard, check_users
from verfedgnn.protocol.round.worker_orders import (
    Order,
    Ordered,
    begin_to_divide,
    receive_arrays,
    send_arrays,
    share_streams,
    tell_all,
)
from verfedgnn.protocol.wire.messages import RoundReply, RoundStart

BEGIN = "begin"
"""The call that makes the rows of a worker."""


class RowWorkers:
    """The workers of a coordinator in one training, which has a `name` that they know. The first worker holds this."""

    def __init__(self, group: WorkerGroup, config: Config, name: str, device: str = "cpu") -> None:
        self.group = group
        self.config = config
        self.name = name
        self.device = device

    def divide(self, whole: Replica) -> DividedRows:
        """Divide the replica of all users."""
        rows = self.resume(whole.model, whole.items, whole.ratings)
        rows.load(whole)
        return rows

    def resume(self, model: Model, items: Sequence[int], ratings: int) -> DividedRows:
        """Return rows that are still empty, for a checkpoint to be restored."""
        check_users(UserBlocks(self.config, model), self.group.size)
        about: dict[str, Any] = {"users": model.users, "items": list(items), "ratings": ratings}
        tell_all(self.group, Order.ROWS, training=self.name, call=BEGIN, values=about)
        replica = _empty_replica(self.config, self.group, **about, device=self.device)
        return DividedRows(replica, len(items), self.name)


class DividedRows(PublicRows):
    """The rows of the first worker, and those of all users towards the coordinator."""

    def __init__(self, replica: Replica, parties: int, name: str) -> None:
        super().__init__(replica, parties)
        assert replica.shard is not None
        self.shard = replica.shard
        self.name = name
        """The training, as the other workers know it."""
        self._state_digest = (-1, "")
        """A round, and the hash of the whole state after it."""
        self._public: Tensor | None = None
        self._copies: WeakValueDictionary[str, NDArray[Any]] = WeakValueDictionary()
        """Arrays of the last full copy, as long as a message holds them."""
        self._copied = -1
        """The round after which the last full copy was made."""

    def _tell(self, call: str, message: RoundStart | None = None, **values: Any) -> None:
        """Let the other workers do the same."""
        about = {"training": self.name, "call": call, "values": values}
        tell_all(self.shard.workers, Order.ROWS, message, **about)

    def _collect(
        self, own: dict[str, NDArray[Any]], updates: Sequence[Update] = ()
    ) -> dict[str, NDArray[Any]]:
        """Join this worker's arrays with those that the others send; `updates` are those of which they hold the sums."""
        shard = self.shard
        others = [receive_arrays(shard.workers, rank) for rank in range(1, shard.workers.size)]
        parts = {name: [own[name], *(each[name] for each in others)] for name in own}
        found = {}
        for name, each in parts.items():
            if name == "updates":
                found[name] = shard.join_updates(each, [update.round for update in updates if update.parties])
            elif name == "starts":
                rounds = [update.round for update in updates if update.start is not None]
                found[name] = shard.join_starts(each, rounds)
            elif name == "neighbourhoods":
                found[name] = np.concatenate(each, 1)
            else:
                found[name] = shard.join_flat(each)
        return found

    def load(self, whole: Replica) -> None:
        """Take over the replica of all users."""
        self._tell("load", round=whole.round)
        workers = self.shard.workers
        for name, values in whole.arrays().items():
            for rank in range(1, workers.size):
                part = self.shard.all_workers[rank].flat.take(values)
                send_arrays(workers, rank, {name: part})
            self.replica.load({name: self.shard.flat.take(values)}, whole.round)
        self.keep_best()
        self._state_digest = (whole.round, whole.state_digest())

    def open_trip(self) -> None:
        """Forget the replies to the trip before."""
        self._tell("open_trip")
        super().open_trip()

    def take_reply(self, index: int, reply: RoundReply) -> RoundReply:
        """Keep a party's reply, each worker the part of its users; return this worker's part."""
        about = {"training": self.name, "call": "take_reply", "values": {"index": index}}
        return super().take_reply(index, begin_to_divide(self.shard, Order.ROWS, reply, **about))

    def mask_context(self, start: RoundStart) -> bytes:
        """Hash what the active parties of a trip must have received alike."""
        plain = start.model_copy(update=dict.fromkeys(RoundStart.arrays))
        self._tell("mask_context", plain)
        return super().mask_context(plain)

    def add_up(self, round: int, trip: int, streams: Sequence[MaskStream]) -> None:
        """Add up the replies and remove the masks from their sums."""
        self._tell("add_up", round=round, trip=trip)
        super().add_up(round, trip, share_streams(self.shard.workers, streams))

    def keep_best(self) -> None:
        """Keep the parameters that were validated in this trip as the best ones."""
        self._tell("keep_best")
        super().keep_best()
        self._public = None

    def step(self, round: int, parties: list[int], *, from_means: bool) -> None:
        """Take the public step with the sums of the trip."""
        self._tell("step", round=round, parties=parties, from_means=from_means)
        super().step(round, parties, from_means=from_means)

    def skip(self, round: int) -> None:
        """Go on to an abandoned round, which has no update."""
        self._tell("skip", round=round)
        super().skip(round)

    def digest(self) -> str:
        """Return the hash of the parameters and their average."""
        self._tell("digest")
        return super().digest()

    def state_digest(self) -> str:
        """Return the hash of the whole state of all users."""
        round = self.replica.round
        if self._state_digest[0] != round:
            copy = self.full_copy()
            self._state_digest = (round, hash_arrays(copy.values()).hex())
        return self._state_digest[1]

    def fetch(self, news: News) -> dict[str, NDArray[Any]]:
        """Return the arrays of a RoundStart, of all users."""
        copy = self._share_copy() if news.full_copy else {}
        if not (news.rounds or news.block is not None):
            return copy
        wanted = news._replace(full_copy=False)
        self._tell("fetch", news=wanted)
        return copy | self._collect(super().fetch(wanted), self.log.of_rounds(news.rounds))

    def _share_copy(self) -> dict[str, NDArray[Any]]:
        """Return a full copy that nobody can write; all messages of one round share it."""
        names = list(self.replica.arrays())
        found = {name: copy for name in names if (copy := self._copies.get(name)) is not None}
        if self._copied != self.replica.round or len(found) < len(names):
            news = News([], None, full_copy=True)
            self._tell("fetch", news=news)
            found = self._collect(super().fetch(news))
            for copy in found.values():
                copy.flags.writeable = False
            self._copies = WeakValueDictionary(found)
            self._copied = self.replica.round
        return found

    @property
    def public(self) -> Tensor:
        """The parameters of the best validation, of all users."""
        if self._public is None:
            self._tell("public")
            joined = self._collect({"best": self.best.cpu().numpy()})["best"]
            self._public = torch.from_numpy(joined)
        return self._public

    def restore(self, state: CheckpointState, round: int) -> None:
        """Read this worker's part of a checkpoint; the others read theirs."""
        super().restore(state, round)
        self._public = None


def begin(config: Config, workers: WorkerGroup, values: dict[str, Any], device: str) -> PublicRows:
    """Return the rows of a worker other than the first, still empty."""
    return PublicRows(_empty_replica(config, workers, device=device, **values), len(values["items"]))


def obey(rows: PublicRows, workers: WorkerGroup, ordered: Ordered) -> None:
    """Do with the rows of this worker what the first one does with its own, and answer if there is something to answer."""
    call: str = ordered.values["call"]
    values: dict[str, Any] = ordered.values["values"]
    message = ordered.message
    if isinstance(message, RoundReply):
        rows.take_reply(values["index"], message)
    elif isinstance(message, RoundStart):
        rows.mask_context(message)
    elif call == "load":
        for _ in rows.replica.arrays():
            rows.replica.load(receive_arrays(workers, 0), values["round"])
    elif call == "add_up":
        with suppress(SumError):  # the first worker raises it
            rows.add_up(**values, streams=share_streams(workers, None))
    elif call == "fetch":
        send_arrays(workers, 0, rows.fetch(News(*values["news"])))
    elif call == "public":
        send_arrays(workers, 0, {"best": rows.best.cpu().numpy()})
    else:
        getattr(rows, call)(**values)


def _empty_replica(
    config: Config,
    workers: WorkerGroup,
    users: int,
    items: Sequence[int],
    ratings: int,
    device: str = "cpu",
) -> Replica:
    """Return the replica of a worker's users without their parameters."""
    shard = UserShard(UserBlocks(config, Model(config.model, users)), workers, workers.rank)
    parameters, accumulator = torch.zeros((2, shard.model.size), device=device)
    return Replica(config, shard.model, items, ratings, parameters, accumulator, 0, shard)

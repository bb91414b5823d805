"""What a coordinator holds of its users: the replica, the replies of the open trip, the last sums and updates, the best parameters.

One process holds all users. Of several workers each holds its own (`divided_rows`), and all of them run this code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.privacy.masking import GRADIENT, NEIGHBOURHOOD, MaskStream, remove_masks
from verfedgnn.protocol.checkpoint_state import CheckpointState, to_tensor
from verfedgnn.protocol.coordinator.update_log import Update, UpdateLog
from verfedgnn.protocol.round.aggregation import (
    SumError,
    Unmasking,
    sum_gradients,
    sum_neighbourhoods,
    update_type,
)
from verfedgnn.protocol.round.mask_context import mask_context, sum_digest
from verfedgnn.protocol.round.replica import Replica, parameters_digest
from verfedgnn.protocol.round.solved_round import compute_update
from verfedgnn.protocol.round.user_starts import user_starts
from verfedgnn.protocol.wire.messages import RoundReply, RoundStart


@dataclass(frozen=True)
class NeighbourhoodSum:
    """A sum of neighbourhoods that the coordinator hands out."""

    parties: list[int]
    """Indices of the parties in the sum."""
    trip: tuple[int, int]
    """Round and trip in which they sent their neighbourhoods."""
    total: NDArray[np.integer[Any]]


class News(NamedTuple):
    """Which arrays a RoundStart brings."""

    rounds: list[int]
    """Rounds of the updates."""
    block: int | None
    """The block whose summed neighbourhoods it brings; None for none."""
    full_copy: bool = False


class PublicRows:
    """The rows of some users and all shared weights, in one training of `parties` parties."""

    def __init__(self, replica: Replica, parties: int) -> None:
        self.replica = replica
        self.config = replica.config
        self.parties = parties
        self.best = replica.parameters.clone()
        """Parameters of the best validation."""
        self.log = UpdateLog(self.config.training.user_blocks)
        self.sums: dict[int, NeighbourhoodSum] = {}
        """The last sum of neighbourhoods of each block of users."""
        self._replies: dict[int, RoundReply] = {}
        """Replies to the open trip, by party."""
        self._summed: NDArray[Any] | None = None
        """The summed gradients of the trip that is being closed."""

    # -- one trip ----------------------------------------------------------------------------------------

    def open_trip(self) -> None:
        """Forget the replies to the trip before."""
        self._replies = {}

    def take_reply(self, index: int, reply: RoundReply) -> RoundReply:
        """Keep a party's reply until the trip is closed, and return what the coordinator keeps of it."""
        self._replies[index] = reply
        return reply

    def mask_context(self, start: RoundStart) -> bytes:
        """Hash what the active parties of a trip must have received alike; `start` is what one of them was asked."""
        last = self.sums.get(self.replica.blocks.in_round(start.round).index)
        digest = ""
        if last is not None:
            digest = sum_digest(last.parties, last.trip, last.total, self.replica.workers)
        updates = self.log.last
        last_update = (updates[0].round, updates[0].total) if updates else None
        return mask_context(start, self.replica, last_update, digest)

    def add_up(self, round: int, trip: int, streams: Sequence[MaskStream]) -> None:
        """Add up the replies and remove the masks of `streams` from their sums. Raise `SumError` if they do not add up."""
        replies = sorted(self._replies.items())
        gradients = [reply.gradient for _, reply in replies if reply.gradient is not None]
        shared = [(i, reply.neighbourhoods) for i, reply in replies if reply.neighbourhoods is not None]
        if gradients:
            self._summed = self._sum_gradients(gradients, self._unmasking(GRADIENT, round, streams))
        if shared:
            unmask = self._unmasking(NEIGHBOURHOOD, round, streams)
            total = sum_neighbourhoods([values for _, values in shared], self.config, unmask)
            block = self.replica.blocks.in_round(round).index
            self.sums[block] = NeighbourhoodSum([i for i, _ in shared], (round, trip), total)

    def _sum_gradients(self, gradients: Sequence[NDArray[Any]], unmask: Unmasking) -> NDArray[Any]:
        """Add up gradients; if some worker cannot, none can."""
        problem = None
        try:
            total = sum_gradients(gradients, self.config, self.parties, unmask)
        except SumError as error:
            problem = error
        workers = self.replica.workers
        if workers is not None and int(workers.sum(torch.tensor([problem is not None]).int())):
            problem = problem or SumError("the masked values of this trip do not add up at another worker")
        if problem is not None:
            raise problem
        return total

    def _unmasking(self, use: int, round: int, streams: Sequence[MaskStream]) -> Unmasking:
        shard = self.replica.shard

        def unmask(total: NDArray[Any]) -> NDArray[Any]:
            if not streams:
                return total
            places = None
            if shard is not None:
                places = shard.places(use, round, total.shape)
            return remove_masks(total, streams, use, places)

        return unmask

    def keep_best(self) -> None:
        """Keep the parameters that were validated in this trip as the best ones."""
        self.best.copy_(self.replica.served)

    def step(self, round: int, parties: list[int], *, from_means: bool) -> None:
        """Take the public step with the sums of the trip; `from_means` says whether users' biases start at their means."""
        shared = self.sums.get(self.replica.blocks.in_round(round).index)
        start = None
        if from_means and shared is not None:
            start = user_starts(shared.total, self.config, self.parties)
        summed = self._summed
        assert summed is not None, "some party trains in every round"
        self._summed = None
        if self.replica.model.solved is not None:
            summed = compute_update(
                self.replica.model,
                self.replica.parameters,
                self.replica.accumulator,
                torch.from_numpy(summed).to(self.best.device),
                ratings=self.replica.ratings,
                items=sum(self.replica.items),
            )
        self.replica.apply(torch.from_numpy(summed).to(self.best.device), parties, round, start)
        self.log.add(Update(round, parties, summed, start))

    def skip(self, round: int) -> None:
        """Go on to an abandoned round, which has no update."""
        self.replica.skip(round)
        self.log.add(Update(round, [], np.zeros(0, update_type(self.config, self.parties))))

    # -- what leaves -------------------------------------------------------------------------------------

    def digest(self) -> str:
        """Return the hash of the parameters and their average."""
        return self.replica.digest()

    def state_digest(self) -> str:
        """Return the hash of the replica's whole state."""
        return self.replica.state_digest()

    def full_copy(self) -> dict[str, NDArray[Any]]:
        """Return the state of the replica of all users; nobody can write it."""
        return self.fetch(News([], None, full_copy=True))

    def fetch(self, news: News) -> dict[str, NDArray[Any]]:
        """Return the arrays of a RoundStart."""
        found: dict[str, NDArray[Any]] = dict(self.replica.full_copy()) if news.full_copy else {}
        updates = self.log.of_rounds(news.rounds)
        totals = [update.total for update in updates if update.parties]
        starts = [update.start for update in updates if update.start is not None]
        if totals:
            found["updates"] = np.concatenate(totals)
        if starts:
            found["starts"] = np.concatenate(starts)
        if news.block is not None:
            found["neighbourhoods"] = self.sums[news.block].total
        return found

    @property
    def public(self) -> Tensor:
        """The parameters of the best validation, of all users."""
        return self.best

    @property
    def public_digest(self) -> str:
        """The hash of these parameters."""
        return parameters_digest(self.public)

    # -- checkpoints -------------------------------------------------------------------------------------

    def put(self, state: CheckpointState) -> None:
        """Store everything in a checkpoint."""
        state.put_arrays(self.replica.arrays())
        state.put_arrays({"best": self.best.cpu().numpy()})
        known = self.sums.items()
        state.values["neighbourhoods"] = [[block, each.parties, *each.trip] for block, each in known]
        state.put_arrays({f"neighbourhoods.{block}": each.total for block, each in known})
        self.log.put(state)

    def restore(self, state: CheckpointState, round: int) -> None:
        """Read what `put` stored after `round`."""
        self.replica.load(state.arrays, round)
        self.best = to_tensor(state.arrays["best"], self.best.device)
        self.log.restore(state)
        for block, parties, of_round, trip in state.values["neighbourhoods"]:
            total = state.arrays[f"neighbourhoods.{block}"]
            self.sums[block] = NeighbourhoodSum(parties, (of_round, trip), total)

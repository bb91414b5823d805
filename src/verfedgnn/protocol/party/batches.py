"""The ratings that a party trains on in a round."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from verfedgnn.core.pairs import Pairs
from verfedgnn.core.random_streams import PartyStream
from verfedgnn.protocol.party.party_setup import PartySetup
from verfedgnn.protocol.round.loss import Batch
from verfedgnn.protocol.round.replica import Replica
from verfedgnn.protocol.round.user_blocks import UserBlock, completed_passes, computes_single_blocks


def choose_reads(drawn: NDArray[np.float32], share: float, reads: int) -> NDArray[np.bool_]:
    """Return which ratings each of `reads` reads includes (reads, E), from a uniform number for each rating (E,).

    A read takes the ratings whose number is below `share`. Before the next read, all numbers move on by 1/reads, and start again at 0
    beyond 1. So every rating is read about equally often, and the average over the reads has less noise than over independent ones.
    """
    moved = [(drawn + np.float32(read / reads)) % 1 for read in range(reads)]
    return np.stack(moved) < share


class Batches:
    """A party's batches, shuffled with its own randomness."""

    def __init__(self, setup: PartySetup) -> None:
        self.setup = setup
        self._shuffled: dict[int, tuple[int, Batch]] = {}
        """By block of users: the epoch, and all ratings of the block in that epoch's order."""

    def in_round(self, round: int, replica: Replica) -> Batch:
        """Return the party's batch of a round: a slice of this epoch's shuffle of the ratings of the round's users."""
        config = self.setup.config
        block = replica.blocks.in_round(round)
        per_epoch = replica.passes_per_epoch
        epoch, slot = divmod(completed_passes(config, round), per_epoch)
        shuffle = epoch if per_epoch > 1 else 0
        if block.index not in self._shuffled or self._shuffled[block.index][0] != shuffle:
            batch = self._all_ratings(block, epoch if per_epoch > 1 else None, replica)
            self._shuffled[block.index] = (shuffle, batch)
        batch = self._shuffled[block.index][1]
        if per_epoch > 1:
            start = slot * len(batch.pairs) // per_epoch
            stop = (slot + 1) * len(batch.pairs) // per_epoch
            pairs = batch.pairs.take(slice(start, stop))
            batch = Batch(pairs, batch.users, batch.items, 1 / replica.rounds_per_epoch)
        wanted = config.training.negatives
        items = self.setup.data.items
        if config.training.ranks and 0 < wanted < items:
            rng = self.setup.randomness.generator(PartyStream.RANKING_CANDIDATES, round)
            candidates = torch.from_numpy(rng.choice(items, wanted, replace=False))
            batch = replace(batch, candidates=candidates.to(batch.pairs.user.device))
        if config.model.raters:
            rng = self.setup.randomness.generator(PartyStream.READ_RATINGS, round)
            before, every = self.setup.targets_before
            drawn = rng.random(every, np.float32)[before : before + len(batch.pairs)]
            read = torch.from_numpy(choose_reads(drawn, config.training.read, config.training.reads))
            batch = replace(batch, read=read.to(batch.pairs.rating))
        return batch

    def _all_ratings(self, block: UserBlock, epoch: int | None, replica: Replica) -> Batch:
        """Return all training ratings of a block's users, shuffled if there is an epoch to shuffle for."""
        pairs = self.setup.targets.train
        users = self.setup.data.users
        if not block.covers_all:
            inside = (pairs.user >= block.users.start) & (pairs.user < block.users.stop)
            pairs = pairs.take(torch.nonzero(inside).squeeze(1))
        if epoch is not None:
            position = [epoch] if block.covers_all else [epoch, block.index]
            rng = self.setup.randomness.generator(PartyStream.SHUFFLE, *position)
            pairs = pairs.take(torch.from_numpy(rng.permutation(len(pairs))).to(pairs.user.device))
        if computes_single_blocks(self.setup.config):
            pairs = Pairs(pairs.user - block.users.start, pairs.item, pairs.rating)
            users = block.model.users
        edges = replica.passes_per_epoch == 1 and self._trains_on_edges
        return Batch(pairs, users, self.setup.data.items, 1 / replica.rounds_per_epoch, edges=edges)

    @property
    def _trains_on_edges(self) -> bool:
        """Whether the training ratings are exactly the edges of the graph, in the same order."""
        model = self.setup.config.model
        return model.form != "propagation" and model.threshold == "all" and not self.setup.targets.ranks

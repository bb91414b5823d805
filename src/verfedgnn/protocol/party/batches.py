"""Which of its ratings a party trains on in a round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from verfedgnn.config import Config
from verfedgnn.core.pairs import Pairs
from verfedgnn.protocol.party.targets import Targets
from verfedgnn.protocol.round.loss import Batch
from verfedgnn.protocol.round.replica import Replica
from verfedgnn.protocol.round.user_blocks import Part, by_parts, passes


class Batches:
    """A party's batches, drawn with its own randomness `rng` (purpose, ...)."""

    def __init__(
        self,
        targets: Targets,
        config: Config,
        users: int,
        items: int,
        rng: Callable[..., np.random.Generator],
    ) -> None:
        self.targets, self.config, self.users, self.items, self.rng = targets, config, users, items, rng
        self._shuffled: dict[int, tuple[int, Batch]] = {}
        """By part of the users: the epoch, and all its ratings in that epoch's order."""

    def of(self, round: int, replica: Replica) -> Batch:
        """The share of a round: a slice of this epoch's own shuffle of its users' ratings."""
        part, per_epoch = replica.rotation.of(round), replica.passes_per_epoch
        epoch, slot = divmod(passes(self.config, round), per_epoch)
        shuffle = epoch if per_epoch > 1 else 0
        if part.index not in self._shuffled or self._shuffled[part.index][0] != shuffle:
            self._shuffled[part.index] = (
                shuffle,
                self._ratings(part, epoch if per_epoch > 1 else None, replica),
            )
        batch = self._shuffled[part.index][1]
        if per_epoch > 1:
            start, stop = slot * len(batch.pairs) // per_epoch, (slot + 1) * len(batch.pairs) // per_epoch
            pairs = batch.pairs.take(slice(start, stop))
            batch = Batch(pairs, batch.users, batch.items, 1 / replica.rounds_per_epoch)
        wanted = self.config.training.negatives
        if self.config.training.ranks and 0 < wanted < self.items:
            drawn = self.rng(4, round).choice(self.items, wanted, replace=False)
            batch = replace(batch, candidates=torch.from_numpy(drawn).to(batch.pairs.user.device))
        return batch

    def _ratings(self, part: Part, epoch: int | None, replica: Replica) -> Batch:
        """All training ratings of some users, shuffled for an epoch if there is one."""
        pairs, users = self.targets.train, self.users
        if not part.whole:
            inside = (pairs.user >= part.users.start) & (pairs.user < part.users.stop)
            pairs = pairs.take(torch.nonzero(inside).squeeze(1))
        if epoch is not None:
            about = [1, epoch, *([] if part.whole else [part.index])]
            pairs = pairs.take(
                torch.from_numpy(self.rng(*about).permutation(len(pairs))).to(pairs.user.device)
            )
        if by_parts(self.config):
            pairs, users = Pairs(pairs.user - part.users.start, pairs.item, pairs.rating), part.model.users
        edges = replica.passes_per_epoch == 1 and self._rates_edges
        return Batch(pairs, users, self.items, 1 / replica.rounds_per_epoch, edges=edges)

    @property
    def _rates_edges(self) -> bool:
        """Whether every training rating is an edge of the graph, in its order."""
        every = self.config.model.form != "propagation" and self.config.model.threshold == "all"
        return every and not self.targets.ranks

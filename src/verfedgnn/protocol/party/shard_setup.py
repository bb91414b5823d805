"""What one worker knows about its party: the ratings of its own users, and figures over all of the party's ratings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from verfedgnn.core.graph import Graph, restrict_graph
from verfedgnn.core.pairs import Pairs, PartyInput
from verfedgnn.core.rating_means import Means
from verfedgnn.protocol.party.party_setup import PartySetup
from verfedgnn.protocol.round.user_shards import UserShard


@dataclass(frozen=True)
class ShardSetup(PartySetup):
    """The setup of a worker. Means and degrees are those of the whole party."""

    whole: PartySetup
    shard: UserShard

    @classmethod
    def divide(cls, whole: PartySetup, shard: UserShard) -> ShardSetup:
        """Return the setup of the users of `shard`."""
        data = whole.data
        withheld = None if data.withheld is None else data.withheld[shard.users]
        own = replace(
            data,
            users=shard.model.users,
            train=take_users(data.train, shard),
            valid=take_users(data.valid, shard),
            withheld=withheld,
        )
        targets = replace(whole.targets, data=own, train=take_users(whole.targets.train, shard))
        return cls(
            own,
            whole.config,
            whole.randomness,
            whole.device,
            whole.policy,
            shard.model,
            targets,
            whole,
            shard,
        )

    def with_data(self, data: PartyInput) -> ShardSetup:
        """Return the same setup with other ratings of the whole party."""
        return ShardSetup.divide(self.whole.with_data(data), self.shard)

    @property
    def all_data(self) -> PartyInput:
        """The ratings of the whole party."""
        return self.whole.data

    @property
    def means(self) -> Means:
        """The means over all ratings of the party."""
        return self.whole.means

    @cached_property
    def user_means(self) -> Tensor:
        """As for the whole party, of the worker's users."""
        return self.whole.user_means[self.shard.users]

    @property
    def noise_place(self) -> tuple[int, ...]:
        """The worker among all, so that no two workers draw the same noise."""
        return (self.shard.rank, self.shard.workers.size)

    @cached_property
    def targets_before(self) -> tuple[int, int]:
        """How many training pairs other workers have: before this worker's, and in all with this worker's. For one block of users."""
        user = self.whole.targets.train.user
        return int((user < self.shard.ranges[0].start).sum()), len(user)

    def make_graph(self, all_items: int) -> Graph:
        """Build the graph of the worker's users. Items have the degrees of the whole party."""
        graph = restrict_graph(self.whole.make_graph(all_items), self.shard.users)
        return replace(graph, workers=self.shard.workers)


def take_users(pairs: Pairs, shard: UserShard) -> Pairs:
    """Return the pairs of a worker's users, who are numbered from 0."""
    number = torch.full((shard.whole.users,), -1, dtype=pairs.user.dtype, device=pairs.user.device)
    number[shard.users] = torch.arange(shard.model.users, dtype=number.dtype, device=number.device)
    found = pairs.take(torch.nonzero(number[pairs.user.long()] >= 0).squeeze(1))
    return Pairs(number[found.user.long()], found.item, found.rating)

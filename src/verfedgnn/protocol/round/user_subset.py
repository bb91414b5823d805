"""The users that a party computes a round for, with their part of the graph, the projection and the parameters.

A user without a training rating at a party has no neighbourhood and no gradient there: both are 0. Where most users are like that,
a party leaves them out and sends zeros for them. Only a validation needs h_u of every user. Users without ratings change no item,
so they are validated last, in groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.core.graph import Graph, restrict_graph
from verfedgnn.core.pairs import Pairs
from verfedgnn.gnn.model import Model
from verfedgnn.privacy.projection import IdentityProjection, Projection
from verfedgnn.protocol.round.forward_backward import PassInputs
from verfedgnn.protocol.round.loss import Batch
from verfedgnn.protocol.round.user_blocks import UserBlock

FEW = 0.5
"""Share of a block's users below which it pays to compute only the users with ratings."""


@dataclass(frozen=True)
class UserSubset:
    """Users of one block, with everything that a forward and backward pass needs to know about them."""

    block: UserBlock
    model: Model
    """The model with the users of this subset only."""
    graph: Graph
    projection: Projection | IdentityProjection | None
    rows: Tensor | None = None
    """Rows of these users within the block, ascending; None for all users of the block."""

    @classmethod
    def of_block(
        cls, block: UserBlock, graph: Graph, projection: Projection | IdentityProjection | None
    ) -> UserSubset:
        """Select all users of a block from the graph and the projection of all users."""
        if block.covers_all:
            return cls(block, block.model, graph, projection)
        own = None if projection is None else projection.part(block.users, block.rows)
        return cls(block, block.model, restrict_graph(graph, block.users), own)

    def with_ratings(self, rating_users: Tensor, config: Config) -> UserSubset:
        """Select the users with training ratings, if they are few and the others' values are known to be 0.

        `rating_users` holds the user of each training rating. Noise is added for every user, and a generator learns from every
        user; then the subset stays as it is.
        """
        users = self.block.users
        inside = (rating_users >= users.start) & (rating_users < users.stop)
        rows = torch.unique(rating_users[inside].long() - users.start)
        noised = config.gradients.mechanism in ("laplace", "skellam")
        few = 0 < len(rows) < FEW * self.model.users
        return self.select(rows) if few and not noised and not config.model.generator else self

    def select(self, rows: Tensor) -> UserSubset:
        """Select some rows of a subset that holds its whole block."""
        projection = None if self.projection is None else self.projection.among(rows)
        model = Model(self.model.config, len(rows))
        return UserSubset(self.block, model, restrict_graph(self.graph, rows), projection, rows)

    def remainder(self, chosen: UserSubset) -> Iterator[UserSubset]:
        """Yield the users of the block that `chosen` leaves out, in groups of the size of `chosen`."""
        if chosen.rows is not None:
            left = torch.ones(self.model.users, dtype=torch.bool, device=chosen.rows.device)
            left.index_fill_(0, chosen.rows, False)
            for rows in torch.split(torch.nonzero(left).squeeze(1), len(chosen.rows)):
                group = self.select(rows)
                # These users change no item, so other workers need not take part.
                yield replace(group, graph=replace(group.graph, workers=None))

    def within(self, block: UserBlock) -> tuple[UserBlock, UserSubset]:
        """Select the users of this subset that are in `block`; also return where they are within this subset."""
        if self.rows is None:
            return block, replace(self, block=block, model=block.model)
        bounds = torch.tensor([block.users.start, block.users.stop], device=self.rows.device)
        first, last = torch.searchsorted(self.rows, bounds).tolist()
        model = Model(self.model.config, last - first)
        rows = self.rows[first:last] - block.users.start
        inside = replace(self, block=block, model=model, rows=rows)
        return UserBlock(block.index, slice(first, last), block.rows, model, False), inside

    @property
    def covers_all(self) -> bool:
        """Whether the subset holds all users."""
        return self.block.covers_all and self.rows is None

    def select_parameters(self, model: Model, flat: Tensor) -> Tensor:
        """Return these users and the shared weights of flat public parameters of all users."""
        flat = self.block.select_flat(model, flat)
        rows = self.rows
        if rows is None:
            return flat
        return self.model.flat(self.block.model.map_public_users(flat, lambda view: view[rows]))

    def narrow(self, inputs: PassInputs) -> PassInputs:
        """Restrict a party's inputs for the whole block to the users of this subset."""
        rows = self.rows
        if rows is None:
            return inputs
        return replace(
            inputs,
            private=self.model.map_private_users(inputs.private, lambda value: value[rows]),
            batch=None if inputs.batch is None else _renumber(inputs.batch, rows),
            pull=None if inputs.pull is None else inputs.pull[rows],
        )

    def expand_private(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Expand private gradients of these users to all users of the block, with 0 for the others."""
        return self.model.map_private_users(gradients, self._expand)

    def expand_public(self, flat: Tensor) -> Tensor:
        """Expand a flat public gradient of these users to all users of the block, with 0 for the others."""
        return self.block.model.flat(self.model.map_public_users(flat, self._expand))

    def _expand(self, values: Tensor) -> Tensor:
        if self.rows is None:
            return values
        return values.new_zeros(self.block.model.users, values.shape[1]).index_copy_(0, self.rows, values)


SubsetLookup = Callable[[UserBlock, bool], UserSubset]
"""Returns the subset of a block; the second argument asks for users with training ratings only."""


def _renumber(batch: Batch, rows: Tensor) -> Batch:
    """Number the users of a batch by their place among `rows`."""
    pairs = Pairs(torch.searchsorted(rows, batch.pairs.user), batch.pairs.item, batch.pairs.rating)
    return replace(batch, pairs=pairs, users=len(rows))

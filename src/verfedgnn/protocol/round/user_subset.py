"""The users a party computes for, and what is theirs: all users, those of a part, or of these only the ones it has ratings of.

A user without a training rating at a party has a neighbourhood of 0 there and a gradient of 0, whatever the others send. Where
most are like that, a party leaves them out; what it sends is the same, 0 for them. Only a validation needs everybody's h_u; since
they move no item, they may come after those with ratings, some at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.core.graph import Graph, restrict_graph
from verfedgnn.core.pairs import Pairs
from verfedgnn.gnn.model import Model
from verfedgnn.privacy.projection import IdentityProjection, Projection
from verfedgnn.protocol.round.forward_backward import Work
from verfedgnn.protocol.round.loss import Batch
from verfedgnn.protocol.round.user_blocks import Part

FEW = 0.5
"""Share of a part's users below which it pays to compute them alone."""


@dataclass(frozen=True)
class Scope:
    """Some users and what a computation needs of them."""

    part: Part
    model: Model
    graph: Graph
    projection: Projection | IdentityProjection | None
    rows: Tensor | None = None
    """Which of the part's users, in order; None: all of them."""

    @classmethod
    def of(cls, part: Part, graph: Graph, projection: Projection | IdentityProjection | None) -> Scope:
        """All users of a part, from the graph and the projection of all there are."""
        if part.whole:
            return cls(part, part.model, graph, projection)
        cut = None if projection is None else projection.part(part.users, part.rows)
        return cls(part, part.model, restrict_graph(graph, part.users), cut)

    def rated(self, user: Tensor, config: Config) -> Scope:
        """Those with ratings alone (`user` has the user of each rating), if they are few and nothing but 0 is due for the others.

        Noise is due for everybody, and a generator learns from everybody.
        """
        users = self.part.users
        rows = torch.unique(user[(user >= users.start) & (user < users.stop)].long() - users.start)
        noised = config.gradients.mechanism in ("laplace", "skellam")
        few = 0 < len(rows) < FEW * self.model.users
        return self.among(rows) if few and not noised and not config.model.generator else self

    def among(self, rows: Tensor) -> Scope:
        """Some users of the part, all of whom these are."""
        projection = None if self.projection is None else self.projection.among(rows)
        return Scope(
            self.part, Model(self.model.config, len(rows)), restrict_graph(self.graph, rows), projection, rows
        )

    def rest(self, some: Scope) -> Iterator[Scope]:
        """All users of the part whom `some` leave out, as many at a time as these are."""
        if some.rows is not None:
            left = torch.ones(self.model.users, dtype=torch.bool, device=some.rows.device).index_fill_(
                0, some.rows, False
            )
            yield from map(self.among, torch.split(torch.nonzero(left).squeeze(1), len(some.rows)))

    def turn(self, part: Part) -> tuple[Part, Scope]:
        """Those of these users who are in a part: where they are among these, and the scope they are."""
        if self.rows is None:
            return part, replace(self, part=part, model=part.model)
        users = part.users
        first, last = torch.searchsorted(
            self.rows, torch.tensor([users.start, users.stop], device=self.rows.device)
        ).tolist()
        model = Model(self.model.config, last - first)
        inside = replace(self, part=part, model=model, rows=self.rows[first:last] - users.start)
        return Part(part.index, slice(first, last), part.rows, model, False), inside

    @property
    def everybody(self) -> bool:
        """Whether these are all users there are."""
        return self.part.whole and self.rows is None

    def cut(self, model: Model, flat: Tensor) -> Tensor:
        """Of flat public parameters of all users, those of these users and the shared weights."""
        flat = self.part.cut(model, flat)
        if self.rows is None:
            return flat
        views = self.part.model.views(flat)
        return self.model.flat(
            {name: view[self.rows] if name in model.per_user else view for name, view in views.items()}
        )

    def narrow(self, work: Work) -> Work:
        """What a party brings for the users of the part, for these."""
        if self.rows is None:
            return work
        private = {
            name: value[self.rows] if name.startswith("own_") else value
            for name, value in work.private.items()
        }
        pull = None if work.pull is None else work.pull[self.rows]
        return replace(work, private=private, batch=self._renumbered(work.batch), pull=pull)

    def _renumbered(self, batch: Batch | None) -> Batch | None:
        if batch is None or self.rows is None:
            return batch
        pairs = batch.pairs
        return replace(
            batch,
            pairs=Pairs(torch.searchsorted(self.rows, pairs.user), pairs.item, pairs.rating),
            users=len(self.rows),
        )

    def widen(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Private gradients of these users as those of all users of the part."""
        return {
            name: self._among_all(value) if name.startswith("own_") else value
            for name, value in gradients.items()
        }

    def spread(self, flat: Tensor) -> Tensor:
        """A flat public gradient of these users as that of all users of the part."""
        views = self.model.views(flat)
        return self.part.model.flat(
            {
                name: self._among_all(view) if name in self.model.per_user else view
                for name, view in views.items()
            }
        )

    def _among_all(self, values: Tensor) -> Tensor:
        if self.rows is None:
            return values
        return values.new_zeros(self.part.model.users, values.shape[1]).index_copy_(0, self.rows, values)

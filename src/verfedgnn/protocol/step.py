"""The arithmetic of one round at a party: reconstruct, propagate, loss, gradients, project (Algorithm 1, client side).

It is written for a stack of parties. A party in its own process is a stack of one; on one machine all active parties go
through together, which is the same mathematics with fewer and larger products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from verfedgnn.gnn.model import Model
from verfedgnn.graph import Graph, pad_items
from verfedgnn.privacy.projection import Identity, Projection


@dataclass(frozen=True)
class Pairs:
    """Rated pairs of one party as rows of its users and items, all on one device."""

    user: Tensor
    item: Tensor
    rating: Tensor

    def __len__(self) -> int:
        return len(self.rating)

    def take(self, index: Tensor | slice) -> Pairs:
        """The pairs at `index`."""
        return Pairs(self.user[index], self.item[index], self.rating[index])


@dataclass(frozen=True)
class Work:
    """What one party brings into the computation."""

    items: Tensor
    """Its private item embeddings e_v^0 (M_p, D)."""
    others: Tensor | None
    """Estimated sum of the others' projected neighbourhoods (K, q, C); none known: None."""
    batch: Pairs | None
    """Training pairs, when gradients are wanted."""
    valid: Pairs | None
    """Validation pairs, when an evaluation is wanted."""
    exchange: bool
    """Whether neighbourhoods are wanted."""


@dataclass(frozen=True)
class Outcome:
    """What one party gets out of it."""

    neighbourhoods: Tensor | None
    """Own projected neighbourhoods (K, q, C)."""
    public_gradient: Tensor | None
    """Gradient of the squared error for all public parameters, flat."""
    item_gradient: Tensor | None
    """Gradient of the squared error for the item embeddings (M_p, D)."""
    squared_error: float | None
    """Over the validation pairs."""
    users: Tensor | None
    """h_u (N, D), with an evaluation."""
    items: Tensor | None
    """h_v (M_p, D), with an evaluation."""


def compute(
    model: Model, graph: Graph, public: Tensor, projection: Projection | Identity | None, works: Sequence[Work]
) -> list[Outcome]:
    """One forward and, where asked, backward pass of a stack of parties over the flat public parameters."""
    train = [work.batch is not None for work in works]
    parameters = {name: v.expand(len(works), *v.shape) for name, v in model.views(public).items()}
    items = pad_items([work.items for work in works], graph.items)
    leaves = [leaf.detach().requires_grad_(any(train)) for leaf in (*parameters.values(), items)]
    others = _reconstruct(graph, projection, works)

    with torch.set_grad_enabled(any(train)):
        out = model.propagate(dict(zip(parameters, leaves[:-1], strict=True)), leaves[-1], graph, others)
    gradients: list[Tensor] = []
    if any(train):
        user, item, rating = _flatten([work.batch for work in works], graph)
        loss = (out.predict(user, item) - rating).square().sum()
        gradients = list(torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True))
        public_gradients = torch.cat([g.flatten(1) for g in gradients[:-1]], 1)

    projected = _project(graph, projection, works, out.neighbourhoods)
    outcomes = []
    for p, work in enumerate(works):
        size = len(work.items)
        evaluated = work.valid is not None
        users, own_items = out.users[p].detach(), out.items[p, :size].detach()
        outcomes.append(
            Outcome(
                neighbourhoods=projected[p] if projected is not None and work.exchange else None,
                public_gradient=public_gradients[p] if train[p] else None,
                item_gradient=gradients[-1][p, :size] if train[p] else None,
                squared_error=squared_error(users, own_items, work.valid) if work.valid is not None else None,
                users=users if evaluated else None,
                items=own_items if evaluated else None,
            )
        )
    return outcomes


def squared_error(users: Tensor, items: Tensor, pairs: Pairs) -> float:
    """Sum of (h_u . h_v - r)^2 over pairs, accumulated in double precision."""
    predicted = (users[pairs.user] * items[pairs.item]).sum(-1)
    return float((predicted - pairs.rating).double().square().sum())


def _flatten(batches: Sequence[Pairs | None], graph: Graph) -> tuple[Tensor, Tensor, Tensor]:
    """All batches as rows of the stacked users and items."""
    present = [(p, batch) for p, batch in enumerate(batches) if batch is not None]
    return (
        torch.cat([batch.user + p * graph.users for p, batch in present]),
        torch.cat([batch.item + p * graph.items for p, batch in present]),
        torch.cat([batch.rating for _, batch in present]),
    )


def _reconstruct(graph: Graph, projection: Projection | Identity | None, works: Sequence[Work]) -> list[Tensor] | None:
    """X^ = Phi^T Y of everybody's others as one product: K tensors (S, N, C)."""
    known = [work.others for work in works if work.others is not None]
    if projection is None or not known:
        return None
    zero = torch.zeros_like(known[0])
    stacked = torch.stack([zero if work.others is None else work.others for work in works])  # (S, K, q, C)
    parties, layers, rows, columns = stacked.shape
    x = projection.reconstruct(stacked.permute(2, 0, 1, 3).reshape(rows, -1))
    return list(x.view(graph.users, parties, layers, columns).permute(2, 1, 0, 3).unbind(0))


def _project(
    graph: Graph, projection: Projection | Identity | None, works: Sequence[Work], neighbourhoods: Sequence[Tensor]
) -> Tensor | None:
    """Y = Phi X of everybody's own as one product: (S, K, q, C)."""
    if projection is None or not any(work.exchange for work in works):
        return None
    x = torch.stack(list(neighbourhoods), 1)  # (S, K, N, C)
    parties, layers, users, columns = x.shape
    y = projection.project(x.permute(2, 0, 1, 3).reshape(users, -1))
    return y.view(-1, parties, layers, columns).permute(1, 2, 0, 3)

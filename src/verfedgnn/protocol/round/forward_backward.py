"""The arithmetic of one round at a party: reconstruct, propagate, loss, gradients, project (Algorithm 1, client side).

It is written for a stack of parties. A party in its own process is a stack of one; on one machine all active parties go
through together, which is the same mathematics with fewer and larger products.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from verfedgnn.config.sections import TrainingConfig
from verfedgnn.core.graph import Graph, pad_items
from verfedgnn.gnn.model import Model
from verfedgnn.privacy.projection import IdentityProjection, Projection
from verfedgnn.protocol.round.loss import Batch, data_loss, penalty


@dataclass(frozen=True)
class Work:
    """What one party brings into the computation."""

    private: Mapping[str, Tensor]
    """Its private parameters (`Model.private_shapes`)."""
    others: Tensor | None
    """Estimated sum of the others' projected neighbourhoods (K, q, C); none known: None."""
    batch: Batch | None = None
    """Training pairs, when gradients are wanted."""
    evaluate: bool = False
    """Whether h_u and h_v are wanted."""
    exchange: bool = False
    """Whether neighbourhoods are wanted."""
    pull: Tensor | None = None
    """Gradient of the others' losses with respect to neighbourhoods (N, C), for a backward exchange."""


@dataclass(frozen=True)
class Outcome:
    """What one party gets out of it."""

    neighbourhoods: Tensor | None
    """Own projected neighbourhoods (K, q, C)."""
    public_gradient: Tensor | None
    """Gradient of the party's loss for all public parameters, flat."""
    finite: bool
    """Whether that gradient is one: training that diverges ends in infinities."""
    private_gradients: dict[str, Tensor] | None
    """The same for its private ones; of messages, of the others' losses too if there is a pull."""
    users: Tensor | None
    """h_u (N, D), with an evaluation; with biases (N, D + 2)."""
    items: Tensor | None
    """h_v (M_p, D), with an evaluation; with biases (M_p, D + 2)."""


def compute(
    model: Model,
    graph: Graph,
    public: Tensor,
    projection: Projection | IdentityProjection | None,
    works: Sequence[Work],
    training: TrainingConfig,
) -> list[Outcome]:
    """One forward and, where asked, backward pass of a stack of parties over the flat public parameters."""
    train = [work.batch is not None for work in works]
    parameters = {name: v.expand(len(works), *v.shape) for name, v in model.views(public).items()}
    own = {name: _stack(name, works, graph) for name in works[0].private}
    leaves = {name: leaf.detach().requires_grad_(any(train)) for name, leaf in (parameters | own).items()}
    others = _reconstruct(graph, projection, works)

    with torch.set_grad_enabled(any(train)):
        out = model.propagate(leaves, leaves, graph, others)
    gradients: dict[str, Tensor] = {}
    finite = [True] * len(works)
    if any(train):
        batches = [work.batch for work in works]
        loss = data_loss(out, batches, graph, training) + penalty(leaves, batches, graph, training)
        loss = loss if out.penalty is None else loss + out.penalty
        pull = _pull(works)
        gradients = _gradients(loss, leaves, retain=pull is not None)
        if pull is not None:
            told = _gradients((out.neighbourhoods[0] * pull).sum(), {name: leaves[name] for name in own})
            gradients |= {name: gradients[name] + told[name] for name in own}
        public_gradients = torch.cat([gradients[name].flatten(1) for name in parameters], 1)
        finite = public_gradients.sum(1).isfinite().tolist()

    projected = _project(graph, projection, works, [x.detach() for x in out.neighbourhoods])
    outcomes = []
    for p, work in enumerate(works):
        size = len(work.private["items"])
        outcomes.append(
            Outcome(
                neighbourhoods=projected[p] if projected is not None and work.exchange else None,
                public_gradient=public_gradients[p] if train[p] else None,
                finite=finite[p],
                private_gradients={name: gradients[name][p, : len(v)] for name, v in work.private.items()}
                if train[p]
                else None,
                users=out.users[p].detach() if work.evaluate else None,
                items=out.items[p, :size].detach() if work.evaluate else None,
            )
        )
    return outcomes


def _gradients(loss: Tensor, leaves: Mapping[str, Tensor], retain: bool = False) -> dict[str, Tensor]:
    found = torch.autograd.grad(
        loss, list(leaves.values()), allow_unused=True, materialize_grads=True, retain_graph=retain
    )
    return dict(zip(leaves, found, strict=True))


def _stack(name: str, works: Sequence[Work], graph: Graph) -> Tensor:
    """A private parameter of all parties: users as they are, items padded."""
    rows = [work.private[name] for work in works]
    return torch.stack(rows) if name.startswith("own_") else pad_items(rows, graph.items)


def _pull(works: Sequence[Work]) -> Tensor | None:
    known = [work.pull for work in works if work.pull is not None]
    if not known:
        return None
    zero = torch.zeros_like(known[0])
    return torch.stack([zero if work.pull is None else work.pull for work in works])


def _reconstruct(
    graph: Graph, projection: Projection | IdentityProjection | None, works: Sequence[Work]
) -> list[Tensor] | None:
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
    graph: Graph,
    projection: Projection | IdentityProjection | None,
    works: Sequence[Work],
    neighbourhoods: Sequence[Tensor],
) -> Tensor | None:
    """Y = Phi X of everybody's own as one product: (S, K, q, C)."""
    if projection is None or not any(work.exchange for work in works):
        return None
    x = torch.stack(list(neighbourhoods), 1)  # (S, K, N, C)
    parties, layers, users, columns = x.shape
    y = projection.project(x.permute(2, 0, 1, 3).reshape(users, -1))
    return y.view(-1, parties, layers, columns).permute(1, 2, 0, 3)

r"""The forward and backward pass of one round: reconstruct, propagate, loss, gradients, project (Algorithm 1, client side).

.. math::
    L_p = \sum_{(u, v)} (h_u \cdot h_v - r_{uv})^2 + \lambda |e_v|^2 + \lambda_b b_v^2

The regularisers of public parameters are part of the public step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from verfedgnn.config.sections import TrainingConfig
from verfedgnn.core.graph import Graph
from verfedgnn.core.pairs import Pairs
from verfedgnn.gnn.model import Model, Propagation
from verfedgnn.privacy.projection import NO_EXCHANGE, Exchange


@dataclass(frozen=True)
class Batch:
    """Training pairs of one party in one round."""

    pairs: Pairs
    share: float = 1.0
    """Share of the party's training pairs that the batch holds."""
    edges: bool = False
    """Whether the pairs are exactly the edges of the party's graph, ordered by user and then item."""


@dataclass(frozen=True)
class PassResult:
    """The results of a forward and backward pass."""

    users: Tensor
    """h_u (N, D); with biases (N, D + 2)."""
    items: Tensor
    """h_v (M_p, D); with biases (M_p, D + 2)."""
    neighbourhoods: Tensor | None
    """Projected neighbourhoods of the party's own items (K, q, C); None without an exchange."""
    public_gradient: Tensor
    """Flat gradient of the party's loss with respect to all public parameters; empty without a batch."""
    private_gradients: dict[str, Tensor]
    """Gradients of the party's loss with respect to its private parameters; empty without a batch."""


def compute(
    model: Model,
    graph: Graph,
    public: Tensor,
    private: Mapping[str, Tensor],
    training: TrainingConfig,
    *,
    exchange: Exchange = NO_EXCHANGE,
    others: Tensor | None = None,
    batch: Batch | None = None,
) -> PassResult:
    """Run one forward and, with a `batch`, backward pass.

    `public` are all public parameters, flat, and `private` the party's own by name. `others` is the estimated sum of the other
    parties' projected neighbourhoods (K, q, C); None if none is known.
    """
    train = batch is not None
    given = model.views(public) | dict(private)
    leaves = {name: value.detach().requires_grad_(train) for name, value in given.items()}
    received = exchange.receive(others)
    with torch.set_grad_enabled(train):
        out = model.propagate(leaves, leaves, graph, received)
    gradients: dict[str, Tensor] = {}
    if batch is not None:
        loss = data_loss(out, batch, graph, training) + penalty(leaves, batch, training)
        slopes = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
        gradients = dict(zip(leaves, slopes, strict=True))
    return PassResult(
        users=out.users.detach(),
        items=out.items.detach(),
        neighbourhoods=exchange.send(out.neighbourhoods),
        public_gradient=model.flat(gradients) if train else torch.zeros(0),
        private_gradients={name: gradients[name] for name in private} if train else {},
    )


def data_loss(out: Propagation, batch: Batch, graph: Graph, training: TrainingConfig) -> Tensor:
    """Return the squared error of a batch, summed; beyond a clip c, 2 c |e| - c^2, whose slope is that of the clipped error."""
    pairs = batch.pairs
    predicted = graph.products(out.users, out.items) if batch.edges else out.predict(pairs.user, pairs.item)
    error = predicted - pairs.rating
    if training.error_clip is None:
        return error.square().sum()
    zero = torch.zeros_like(error)
    return 2 * torch.nn.functional.huber_loss(error, zero, reduction="sum", delta=training.error_clip)


def penalty(leaves: Mapping[str, Tensor], batch: Batch, training: TrainingConfig) -> Tensor:
    """Return the regulariser of private parameters per row, which a model with biases has."""
    total = leaves["users"].new_zeros(())
    if "item_bias" in leaves:
        for name, weight in {"items": training.l2, "item_bias": training.l2_bias}.items():
            total = total + weight * (batch.share * leaves[name].square()).sum()
    return total

"""The forward and backward pass of one round: reconstruct, propagate, loss, gradients, project (Algorithm 1, client side).

The code computes a stack of parties. A party in its own process is a stack of one. On one machine all active parties are computed
together: the same mathematics with fewer and larger products.
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
class PassInputs:
    """One party's inputs to a forward and backward pass."""

    private: Mapping[str, Tensor]
    """Private parameters by name (`Model.private_shapes`)."""
    others: Tensor | None
    """Estimated sum of the other parties' projected neighbourhoods (K, q, C); None if none is known."""
    batch: Batch | None = None
    """Training pairs; None if no gradients are needed."""
    evaluate: bool = False
    """Whether to return h_u and h_v."""
    exchange: bool = False
    """Whether to return neighbourhoods."""
    pull: Tensor | None = None
    """Gradient of the other parties' losses with respect to this party's neighbourhoods (N, C), for a backward exchange."""


@dataclass(frozen=True)
class PassResult:
    """One party's results of a forward and backward pass."""

    neighbourhoods: Tensor | None
    """Projected neighbourhoods of the party's own items (K, q, C)."""
    public_gradient: Tensor | None
    """Flat gradient of the party's loss with respect to all public parameters."""
    finite: bool
    """Whether the public gradient is finite; it is not once training has diverged."""
    private_gradients: dict[str, Tensor] | None
    """Gradients of the party's loss with respect to its private parameters, plus those of the others' losses through a pull."""
    users: Tensor | None
    """h_u (N, D) if evaluated; with biases (N, D + 2), and with a second model (N, D + H + 4)."""
    items: Tensor | None
    """h_v (M_p, D) if evaluated; with biases (M_p, D + 2), and with a second model (M_p, D + H + 4)."""


def compute(
    model: Model,
    graph: Graph,
    public: Tensor,
    projection: Projection | IdentityProjection | None,
    inputs: Sequence[PassInputs],
    training: TrainingConfig,
) -> list[PassResult]:
    """Run one forward and, if any party trains, backward pass of a stack of parties over the flat public parameters."""
    train = [party.batch is not None for party in inputs]
    parameters = {name: v.expand(len(inputs), *v.shape) for name, v in model.views(public).items()}
    own = {name: _stack(name, inputs, graph, model) for name in inputs[0].private}
    leaves = {name: leaf.detach().requires_grad_(any(train)) for name, leaf in (parameters | own).items()}
    others = _reconstruct(graph, projection, inputs)

    with torch.set_grad_enabled(any(train)):
        out = model.propagate(leaves, leaves, graph, others, _read_weights(inputs, graph, training))
    gradients: dict[str, Tensor] = {}
    finite = [True] * len(inputs)
    if any(train):
        batches = [party.batch for party in inputs]
        loss = data_loss(out, batches, graph, training) + penalty(leaves, batches, graph, training)
        loss = loss if out.penalty is None else loss + out.penalty
        pull = _stack_pulls(inputs)
        gradients = _gradients(loss, leaves, retain=pull is not None)
        if pull is not None:
            pulled = _gradients((out.neighbourhoods[0] * pull).sum(), {name: leaves[name] for name in own})
            gradients |= {name: gradients[name] + pulled[name] for name in own}
        gradients |= _sum_over_workers(gradients, model, graph)
        public_gradients = torch.cat([gradients[name].flatten(1) for name in parameters], 1)
        finite = public_gradients.sum(1).isfinite().tolist()
        if graph.workers is not None:  # all workers stop together
            finite = [bool(graph.workers.sum(torch.tensor([not finite[0]], dtype=torch.int64)) == 0)]

    projected = _project(projection, inputs, [x.detach() for x in out.neighbourhoods])
    users, items = out.served
    results = []
    for p, party in enumerate(inputs):
        own_items = len(party.private["items"])
        private = (
            {name: gradients[name][p, : len(v)] for name, v in party.private.items()} if train[p] else None
        )
        results.append(
            PassResult(
                neighbourhoods=projected[p] if projected is not None and party.exchange else None,
                public_gradient=public_gradients[p] if train[p] else None,
                finite=finite[p],
                private_gradients=private,
                users=users[p].detach() if party.evaluate else None,
                items=items[p, :own_items].detach() if party.evaluate else None,
            )
        )
    return results


def _gradients(loss: Tensor, leaves: Mapping[str, Tensor], retain: bool = False) -> dict[str, Tensor]:
    found = torch.autograd.grad(
        loss, list(leaves.values()), allow_unused=True, materialize_grads=True, retain_graph=retain
    )
    return dict(zip(leaves, found, strict=True))


def _sum_over_workers(gradients: Mapping[str, Tensor], model: Model, graph: Graph) -> dict[str, Tensor]:
    """Return the gradients of weights and items, summed over the workers that share the users; empty without workers."""
    if graph.workers is None:
        return {}
    rows_of_users = {*model.per_user, *model.private_per_user}
    shared = {name: gradient for name, gradient in gradients.items() if name not in rows_of_users}
    total = graph.workers.sum(torch.cat([gradient.flatten() for gradient in shared.values()]))
    parts = torch.split(total, [gradient.numel() for gradient in shared.values()])
    return {name: part.view_as(shared[name]) for name, part in zip(shared, parts, strict=True)}


def _stack(name: str, inputs: Sequence[PassInputs], graph: Graph, model: Model) -> Tensor:
    """Stack one private parameter of all parties; rows per item are padded to the same number."""
    rows = [party.private[name] for party in inputs]
    return torch.stack(rows) if name in model.private_per_user else pad_items(rows, graph.items)


def _read_weights(inputs: Sequence[PassInputs], graph: Graph, training: TrainingConfig) -> Tensor | None:
    """Return the weights of the edges in each read of the second model (reads, E): 0, or 1 over the share that is read."""
    if all(party.batch is None or party.batch.read is None for party in inputs):
        return None
    bounds = graph.by_user[0][:: graph.users].tolist()
    weights = []
    for party, first, last in zip(inputs, bounds, bounds[1:], strict=False):
        if party.batch is None or party.batch.read is None:
            weights.append(graph.item_degree.new_ones(training.reads, last - first))
        else:
            weights.append(party.batch.read / training.read)
    return torch.cat(weights, 1)


def _stack_pulls(inputs: Sequence[PassInputs]) -> Tensor | None:
    known = [party.pull for party in inputs if party.pull is not None]
    if not known:
        return None
    zero = torch.zeros_like(known[0])
    return torch.stack([zero if party.pull is None else party.pull for party in inputs])


def _reconstruct(
    graph: Graph, projection: Projection | IdentityProjection | None, inputs: Sequence[PassInputs]
) -> list[Tensor] | None:
    """Compute X^ = Phi^T Y of all parties' others as one product; return K tensors (S, N, C)."""
    known = [party.others for party in inputs if party.others is not None]
    if projection is None or not known:
        return None
    zero = torch.zeros_like(known[0])
    stacked = torch.stack(
        [zero if party.others is None else party.others for party in inputs]
    )  # (S, K, q, C)
    parties, layers, rows, columns = stacked.shape
    x = projection.reconstruct(stacked.permute(2, 0, 1, 3).reshape(rows, -1))
    return list(x.view(graph.users, parties, layers, columns).permute(2, 1, 0, 3).unbind(0))


def _project(
    projection: Projection | IdentityProjection | None,
    inputs: Sequence[PassInputs],
    neighbourhoods: Sequence[Tensor],
) -> Tensor | None:
    """Compute Y = Phi X of all parties' own neighbourhoods as one product (S, K, q, C)."""
    if projection is None or not any(party.exchange for party in inputs):
        return None
    x = torch.stack(list(neighbourhoods), 1)  # (S, K, N, C)
    parties, layers, users, columns = x.shape
    y = projection.project(x.permute(2, 0, 1, 3).reshape(users, -1))
    return y.view(-1, parties, layers, columns).permute(1, 2, 0, 3)

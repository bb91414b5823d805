"""References for the time of a round: its bare products as a lower bound, a straightforward version as an
upper one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from verfedgnn.core.graph import stack_graphs
from verfedgnn.privacy.projection import Projection
from verfedgnn.protocol.party.party import Party


def bare_products(parties: Sequence[Party]) -> Callable[[], None]:
    """Return a function that computes all products of one stacked round on prepared operands.

    These are neighbour sums and their transposes, W forward and backward, Phi and its transpose. Nothing is
    rescaled, activated, quantized, encoded or stepped.
    """
    graph = stack_graphs([party.graph for party in parties])
    by_user, by_item = graph.adjacency
    model = parties[0].config.model
    count = len(parties)
    dim = model.dim
    layers = model.layers
    users = torch.rand(count * graph.users, dim)
    items = torch.rand(count * graph.items, dim)
    user_stack = users.view(count, -1, dim)
    item_stack = items.view(count, -1, dim)
    w = torch.rand(count, dim, dim)
    projection = parties[0].projection
    assert isinstance(projection, Projection)
    x = torch.rand(graph.users, count * layers * dim)
    y = projection.project(x)

    def run() -> None:
        for _ in range(layers):
            by_user @ items  # forward: users from items, items from users, and W for both
            by_item @ users
            torch.bmm(user_stack, w)
            torch.bmm(item_stack, w)
            by_item @ users  # backward: the transposed sums, and the gradients of W and the operands
            by_user @ items
            for stack in (user_stack, item_stack):
                torch.bmm(stack.mT, stack)
                torch.bmm(stack, w.mT)
        projection.project(x)
        projection.reconstruct(y)

    return run


def straightforward(parties: Sequence[Party]) -> Callable[[], None]:
    """Return a function that runs one round as a reader of the paper would first write it.

    Each party has a dense adjacency matrix. Phi is a matrix that is applied for every pair of parties, one
    party after the other.
    """
    model = parties[0].model
    projection = parties[0].projection
    assert isinstance(projection, Projection)
    phi = projection.project(torch.eye(projection.users))
    dim = model.config.dim
    layers = model.config.layers
    adjacency = [party.graph.adjacency[0].to_dense() for party in parties]
    sent = [[torch.zeros(model.users, dim) for _ in range(layers)] for _ in parties]

    def run() -> None:
        public = parties[0].replica.parameters
        fresh = []
        for index, party in enumerate(parties):
            flat = public.clone().requires_grad_()
            items = party.progress.private.parameters["items"].clone().requires_grad_()
            others = []
            for k in range(layers):
                whole = torch.zeros(model.users, dim)
                for p in range(len(parties)):
                    if p != index:
                        whole += phi.T @ (phi @ sent[p][k])
                others.append(whole)
            prediction, own = _dense_gcn(
                model.views(flat), items, adjacency[index], others, party.graph.ratio.item()
            )
            batch = party.batch(1).pairs
            error = prediction[batch.user.long(), batch.item.long()] - batch.rating
            torch.autograd.grad(error.square().sum(), [flat, items])
            fresh.append(own)
        sent[:] = fresh

    return run


def _dense_gcn(
    views: dict[str, Tensor], items: Tensor, adjacency: Tensor, others: list[Tensor], ratio: float
) -> tuple[Tensor, list[Tensor]]:
    """Compute GCN with a dense normalised adjacency; return all predictions of the party and its
    neighbourhoods.
    """
    by_user = (ratio * adjacency.sum(1)).clamp(min=1).rsqrt()
    by_item = adjacency.sum(0).clamp(min=1).rsqrt()
    normal = by_user[:, None] * adjacency * by_item[None, :]
    users = views["users"]
    mix = views["mix"]
    h_users = mix[0] * users
    h_items = mix[0] * items
    own = []
    for k in range(len(others)):
        neighbours = normal @ items
        own.append(neighbours.detach())
        weights = views["w"][k].T
        users, items = (
            torch.sigmoid((users + neighbours + others[k]) @ weights),
            torch.sigmoid((items + normal.T @ users) @ weights),
        )
        h_users = h_users + mix[k + 1] * users
        h_items = h_items + mix[k + 1] * items
    return h_users @ h_items.T, own

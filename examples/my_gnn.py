"""An example of a custom GNN: GraphSAGE's mean aggregator (Hamilton et al., 2017) in both forms of the model.

verfedgnn --plugin examples/my_gnn.py train --preset best --model sage
verfedgnn --plugin examples/my_gnn.py compare --methods verfedgnn,best --models gcn,sage
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

import verfedgnn as vf
from verfedgnn.core.graph import Graph
from verfedgnn.gnn.operator import Neighbourhood, Operator, Others, inverse


@vf.register
class Sage(Operator):
    """e' = act(A e + B mean of the neighbours) for users and items, with K layers; for preset paper."""

    name = "sage"

    def weights(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shapes of A and B for each layer, both public."""
        return {"self": (self.layers, self.dim, self.dim), "near": (self.layers, self.dim, self.dim)}

    def layer(
        self,
        k: int,
        weights: Mapping[str, Tensor],
        users: Tensor,
        items: Tensor,
        graph: Graph,
        others: Others,
    ) -> tuple[Neighbourhood, Tensor, Tensor]:
        """Aggregate items into users (S, N, D), here and through `others`, and users into items (S, M, D)."""
        a = weights["self"][:, k].mT
        b = weights["near"][:, k].mT
        near = self.gather(graph.sum_items(items), graph.user_degree, others, graph, inverse)
        fans = graph.sum_users(users) / graph.item_degree
        return near, self.activation(users @ a + near.total @ b), self.activation(items @ a + fans @ b)


@vf.register
class MessageSage(Operator):
    """h_u = e_u + B mean of the messages; for presets best and ranking."""

    name = "sage"
    form = "messages"

    def weights(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of B, which is public."""
        return {"near": (self.dim, self.dim)}

    def initial(self, name: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
        """Start training from the plain mean."""
        return np.eye(self.dim, dtype=np.float32)

    def layer(
        self,
        k: int,
        weights: Mapping[str, Tensor],
        users: Tensor,
        items: Tensor,
        graph: Graph,
        others: Others,
    ) -> tuple[Neighbourhood, Tensor, Tensor]:
        """Aggregate messages into users; `items` are messages here and stay unchanged."""
        near = self.gather(graph.sum_items(items), graph.user_degree, others, graph, inverse)
        return near, users + torch.bmm(near.total, weights["near"].mT), items

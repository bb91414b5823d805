"""An example of a custom GNN: GraphSAGE's mean aggregator (Hamilton et al., 2017).

verfedgnn --plugin examples/my_gnn.py train --preset paper --model sage
verfedgnn --plugin examples/my_gnn.py compare --methods verfedgnn --models gcn,sage
"""

from collections.abc import Mapping

import torch
from torch import Tensor

import verfedgnn as vf
from verfedgnn.core.graph import Graph
from verfedgnn.gnn.operator import Neighbourhood, Operator, inverse


@vf.register
class Sage(Operator):
    """e' = sigmoid(A e + B mean of the neighbours) for users and items, with K layers."""

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
        others: Tensor | None,
    ) -> tuple[Neighbourhood, Tensor, Tensor]:
        """Aggregate items into users (N, D), here and through `others`, and users into items (M, D)."""
        a = weights["self"][k].T
        b = weights["near"][k].T
        near = self.gather(graph.sum_items(items), graph.user_degree, others, graph, inverse)
        fans = graph.sum_users(users) / graph.item_degree
        return near, torch.sigmoid(users @ a + near.total @ b), torch.sigmoid(items @ a + fans @ b)

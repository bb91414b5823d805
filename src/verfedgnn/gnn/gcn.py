"""Graph convolution (Sec. 3.2, 4.3, App. A.1)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from verfedgnn.core.graph import Graph
from verfedgnn.gnn.operator import Neighbourhood, Operator, Weights, inverse_sqrt


class GCN(Operator):
    r"""Sums of neighbours, each divided by the root of both degrees.

    .. math::
        E_p(n_u^k) &= \sum_{v \in N_p(u)} e_v^k / \sqrt{E_p(N_u) N_v},
        \qquad E_p(N_u) = \tfrac{\sum_i M_i}{M_p} N_u^p \\
        e_u^{k+1} &= \sigma(W^k (e_u^k + \textstyle\sum_p E_p(n_u^k))) \\
        n_v^k &= \sum_{u \in N(v)} e_u^k / \sqrt{E_c(N_u) N_v},
        \qquad e_v^{k+1} = \sigma(W^k (e_v^k + n_v^k))

    Weights: `w` (K, D, D).
    """

    name = "gcn"

    def weights(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of W^k of all layers."""
        return {"w": (self.layers, self.dim, self.dim)}

    def layer(
        self, k: int, weights: Weights, users: Tensor, items: Tensor, graph: Graph, others: Tensor | None
    ) -> tuple[Neighbourhood, Tensor, Tensor]:
        """Compute layer k as in the equations of the class."""
        w = weights["w"][k].T
        by_item = graph.item_degree.rsqrt()
        own = graph.sum_items(items * by_item)
        neighbourhood = self.gather(own, graph.user_degree, others, graph, inverse_sqrt)
        from_users = graph.sum_users(users * neighbourhood.scale) * by_item
        next_users = torch.sigmoid((users + neighbourhood.total) @ w)
        next_items = torch.sigmoid((items + from_users) @ w)
        return neighbourhood, next_users, next_items

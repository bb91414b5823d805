"""Graph attention (Sec. 3.2, 4.3, App. A.2; the parenthesis of E_p(b_uv) as corrected in docs/paper-notes.md)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from verfedgnn.core.graph import Graph
from verfedgnn.gnn.operator import Neighbourhood, Operator, Weights

MAX_LOGIT = 10.0
"""Largest difference between a neighbour's attention logit and the node's own, so that exp() stays finite."""


class GAT(Operator):
    r"""Sums of neighbours weighted by attention.

    .. math::
        \tilde b_{uv} &= \mathrm{LeakyReLU}(a_1^T W e_u + a_2^T W e_v) \\
        E_p(b_{uv}) &= \frac{\exp \tilde b_{uv}}
            {\exp \tilde b_{uu} + \frac{\sum_i M_i}{M_p} \sum_{v' \in N_p(u)} \exp \tilde b_{uv'}} \\
        E_p(n_u^k) &= \sum_{v \in N_p(u)} E_p(b_{uv}^k) e_v^k,
        \qquad e_u^{k+1} = \sigma(W^k (E_c(b_{uu}^k) e_u^k + \textstyle\sum_p E_p(n_u^k))) \\
        n_v^k &= \sum_{u \in N(v)} b_{vu}^k e_u^k,
        \qquad e_v^{k+1} = \sigma(W^k (b_{vv}^k e_v^k + n_v^k))

    All logits are relative to the node's own, exp(b~_uv - b~_uu). This changes no coefficient unless a neighbour's logit exceeds the
    node's own by more than `MAX_LOGIT`.

    Weights: `w` (K, D, D), `attention` (K, 2, D), its rows a_1 (the node) and a_2 (its neighbour).
    """

    name = "gat"

    def weights(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shapes of W^k and of the attention vectors of each layer."""
        return {"w": (self.layers, self.dim, self.dim), "attention": (self.layers, 2, self.dim)}

    def layer(
        self, k: int, weights: Weights, users: Tensor, items: Tensor, graph: Graph, others: Tensor | None
    ) -> tuple[Neighbourhood, Tensor, Tensor]:
        """Compute layer k as in the equations of the class."""
        w = weights["w"][k].T
        attention = weights["attention"][k].T
        of_users = users @ w @ attention
        of_items = items @ w @ attention
        edge_user, edge_item = graph.edge_users, graph.by_user[1]

        to_user = _relative(of_users, of_items, edge_user, edge_item)
        sums = graph.sum_items(torch.cat([items, torch.ones_like(items[:, :1])], -1), to_user)
        own, weight = sums[:, :-1], sums[:, -1:]
        neighbourhood = self.gather(own, weight, others, graph, lambda s: 1 / (1 + s.clamp(min=0)))

        to_item = _relative(of_items, of_users, edge_item, edge_user)
        from_users = graph.sum_users(torch.cat([users, torch.ones_like(users[:, :1])], -1), to_item)
        item_share = 1 / (1 + from_users[:, -1:])

        next_users = torch.sigmoid((neighbourhood.scale * users + neighbourhood.total) @ w)
        next_items = torch.sigmoid((item_share * (items + from_users[:, :-1])) @ w)
        return neighbourhood, next_users, next_items


def _relative(node: Tensor, neighbour: Tensor, edge_node: Tensor, edge_neighbour: Tensor) -> Tensor:
    """Return exp(b~ of each edge - b~ of the node to itself), (E,)."""
    self_logit = leaky_relu(node.sum(-1), 0.2)
    logit = leaky_relu(
        node[:, 0].index_select(0, edge_node) + neighbour[:, 1].index_select(0, edge_neighbour), 0.2
    )
    return (logit - self_logit.index_select(0, edge_node)).clamp(max=MAX_LOGIT).exp()

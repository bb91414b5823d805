"""The three GNNs over message embeddings (docs/model.md): a user aggregates the messages of the items it rated.

An item v has two private embeddings: e_v, which predicts, and the message y_v to the users that rated v. No e_v is part of h_u, so a
rating is never predicted from itself. There is one layer, and h_v = e_v.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import leaky_relu

from verfedgnn.core.graph import Graph
from verfedgnn.gnn.gat import MAX_LOGIT
from verfedgnn.gnn.ggnn import gru
from verfedgnn.gnn.operator import Neighbourhood, Operator, Others, inverse_sqrt


class MessageGCN(Operator):
    r"""Sums of messages, divided by the root of the user's degree.

    .. math::
        E_p(n_u) = \sum_{v \in N_p(u)} y_v / \sqrt{E_p(N_u)}, \qquad h_u = e_u + \textstyle\sum_p E_p(n_u)

    No shared weights.
    """

    name = "gcn"
    form = "messages"

    def weights(self) -> Mapping[str, tuple[int, ...]]:
        """Return no shapes: there are no shared weights."""
        return {}

    def layer(
        self,
        k: int,
        weights: Mapping[str, Tensor],
        users: Tensor,
        items: Tensor,
        graph: Graph,
        others: Others,
    ) -> tuple[Neighbourhood, Tensor, Tensor]:
        """Compute the layer as in the equations of the class; `items` are the messages y (S, M, D)."""
        neighbourhood = self.gather(graph.sum_items(items), graph.user_degree, others, graph, inverse_sqrt)
        return neighbourhood, users + neighbourhood.total, items


class MessageGAT(Operator):
    r"""Messages weighted by attention; flat attention gives the GCN's sum.

    .. math::
        w_{uv} &= \exp \mathrm{LeakyReLU}(a_1^T e_u + a_2^T y_v), \qquad
        E_p(w_u) = \tfrac{\sum_i M_i}{M_p} \textstyle\sum_{v \in N_p(u)} w_{uv} \
        E_p(n_u) &= \frac{\sqrt{E_p(w_u)}}{1 + E_p(w_u)} \sum_{v \in N_p(u)} w_{uv} y_v, \qquad
        h_u = e_u + \textstyle\sum_p E_p(n_u)

    Weights: `attention` (2, D), its rows a_1 (the user) and a_2 (the message).
    """

    name = "gat"
    form = "messages"

    def weights(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of the attention vectors."""
        return {"attention": (2, self.dim)}

    def initial(self, name: str, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.float32]:
        """Start with flat attention."""
        return np.zeros(shape, np.float32)

    def layer(
        self,
        k: int,
        weights: Mapping[str, Tensor],
        users: Tensor,
        items: Tensor,
        graph: Graph,
        others: Others,
    ) -> tuple[Neighbourhood, Tensor, Tensor]:
        """Compute the layer as in the equations of the class; `items` are the messages y (S, M, D)."""
        of_user, of_item = weights["attention"].unsqueeze(-1).unbind(1)  # (S, D, 1) each
        at_users, at_items = torch.bmm(users, of_user).view(-1), torch.bmm(items, of_item).view(-1)
        logit = leaky_relu(
            at_users.index_select(0, graph.edge_users) + at_items.index_select(0, graph.by_user[1]), 0.2
        )
        edge = logit.clamp(-MAX_LOGIT, MAX_LOGIT).exp()
        sums = graph.sum_items(torch.cat([items, torch.ones_like(items[..., :1])], -1), edge)
        neighbourhood = self.gather(sums[..., :-1], sums[..., -1:], others, graph, _root_over_one_more)
        return neighbourhood, users + neighbourhood.total, items


class MessageGGNN(Operator):
    r"""The GCN's sum, taken in by a gated recurrent unit (`ggnn.gru`).

    .. math::
        E_p(n_u) = \sum_{v \in N_p(u)} y_v / \sqrt{E_p(N_u)}, \qquad
        h_u = \mathrm{GRU}(e_u, \textstyle\sum_p E_p(n_u))

    Weights: `gru_in` (3D, D), `gru_state` (3D, D), `gru_bias` (4D,), as in `ggnn.GGNN`.
    """

    name = "ggnn"
    form = "messages"

    def weights(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shapes of the gated recurrent unit."""
        return {
            "gru_in": (3 * self.dim, self.dim),
            "gru_state": (3 * self.dim, self.dim),
            "gru_bias": (4 * self.dim,),
        }

    def initial(self, name: str, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.float32]:
        """Start with half-open gates and the message as proposal: h_u = e_u/2 + tanh(n_u)/2."""
        start = np.zeros(shape, np.float32)
        if name == "gru_in":
            start[2 * self.dim :] = np.eye(self.dim, dtype=np.float32)
        return start

    def layer(
        self,
        k: int,
        weights: Mapping[str, Tensor],
        users: Tensor,
        items: Tensor,
        graph: Graph,
        others: Others,
    ) -> tuple[Neighbourhood, Tensor, Tensor]:
        """Compute the layer as in the equations of the class; `items` are the messages y (S, M, D)."""
        neighbourhood = self.gather(graph.sum_items(items), graph.user_degree, others, graph, inverse_sqrt)
        return neighbourhood, gru(weights, users, neighbourhood.total), items


def _root_over_one_more(weight: Tensor) -> Tensor:
    """Return sqrt(x) / (1 + x). Below 1e-6, where a user has no edges, the root is constant, so that its slope stays finite."""
    return weight.clamp(min=1e-6).sqrt() / (1 + weight)

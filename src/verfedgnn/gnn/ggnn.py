"""Gated graph network (Sec. 3.2, 4.3, App. A.3)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from verfedgnn.core.graph import Graph
from verfedgnn.gnn.operator import Neighbourhood, Operator, Weights, inverse


class GGNN(Operator):
    r"""Means of neighbours, taken in by a gated recurrent unit.

    .. math::
        E_p(n_u^k) &= \sum_{v \in N_p(u)} e_v^k / N_u^p,
        \qquad e_u^{k+1} = \mathrm{GRU}(e_u^k, \tfrac{1}{\sum_i M_i} \textstyle\sum_p M_p E_p(n_u^k)) \\
        n_v^k &= \sum_{u \in N(v)} e_u^k / N_v, \qquad e_v^{k+1} = \mathrm{GRU}(e_v^k, n_v^k)

    A party exchanges M_p / sum_i M_i times its mean, which is the sum over its neighbours divided by E_p(N_u). Then a plain sum over
    parties is the paper's weighted sum.

    .. math::
        z = \sigma(U_z n + V_z e + c_z), \quad g = \sigma(U_g n + V_g e + c_g), \quad
        s = \tanh(U_s n + c_s + g (V_s e + d_s)), \quad \mathrm{GRU}(e, n) = (1 - z) s + z e

    Weights, one unit for users and items in every layer: `gru_in` (3D, D), `gru_state` (3D, D), rows g, z, s; `gru_bias`
    (4D,), in the order c_g, c_z, c_s, d_s.
    """

    name = "ggnn"

    def weights(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shapes of the gated recurrent unit."""
        return {
            "gru_in": (3 * self.dim, self.dim),
            "gru_state": (3 * self.dim, self.dim),
            "gru_bias": (4 * self.dim,),
        }

    def layer(
        self, k: int, weights: Weights, users: Tensor, items: Tensor, graph: Graph, others: Tensor | None
    ) -> tuple[Neighbourhood, Tensor, Tensor]:
        """Compute layer k as in the equations of the class."""
        neighbourhood = self.gather(graph.sum_items(items), graph.user_degree, others, graph, inverse)
        from_users = graph.sum_users(users) / graph.item_degree
        return neighbourhood, gru(weights, users, neighbourhood.total), gru(weights, items, from_users)


def gru(weights: Weights, state: Tensor, message: Tensor) -> Tensor:
    """Return GRU(state, message), both (R, D)."""
    d = state.shape[-1]
    bias = weights["gru_bias"]
    from_message = torch.addmm(bias[: 3 * d], message, weights["gru_in"].T)
    from_state = state @ weights["gru_state"].T
    gates = torch.sigmoid(from_message[:, : 2 * d] + from_state[:, : 2 * d])
    reset, keep = gates[:, :d], gates[:, d:]
    proposal = torch.tanh(from_message[:, 2 * d :] + reset * (from_state[:, 2 * d :] + bias[3 * d :]))
    return proposal + keep * (state - proposal)

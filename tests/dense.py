"""The three GNNs written the straightforward way, with dense adjacency matrices: what the real ones are compared with.

`own` marks the columns (items) of one party; what the other columns contribute to a user is a constant, as in the paper.
"""

from __future__ import annotations

import torch
from torch import Tensor


def layer(
    gnn: str, k: int, weights: dict[str, Tensor], users: Tensor, items: Tensor, a: Tensor, own: Tensor
) -> tuple[Tensor, Tensor]:
    """Exact global degrees: (N, D) users and (M, D) items, a (N, M) of zeros and ones."""

    def cut(matrix: Tensor, values: Tensor) -> Tensor:
        return matrix[:, own] @ values[own] + (matrix[:, ~own] @ values[~own]).detach()

    if gnn == "gcn":
        w = weights["w"][k]
        du, dv = a.sum(1).clamp(min=1), a.sum(0).clamp(min=1)
        norm = a / (du[:, None] * dv[None, :]).sqrt()
        return torch.sigmoid((users + cut(norm, items)) @ w.T), torch.sigmoid((items + norm.T @ users) @ w.T)
    if gnn == "ggnn":
        du, dv = a.sum(1).clamp(min=1), a.sum(0).clamp(min=1)
        return gru(weights, users, cut(a / du[:, None], items)), gru(
            weights, items, (a / dv[None, :]).T @ users
        )
    w, (a1, a2) = weights["w"][k], weights["attention"][k]
    wu, wv = users @ w.T, items @ w.T
    act = lambda x: torch.nn.functional.leaky_relu(x, 0.2)  # noqa: E731
    bu = act(wu @ a1 + wu @ a2)
    e = a * torch.exp(act((wu @ a1)[:, None] + (wv @ a2)[None, :]) - bu[:, None])
    whole = 1 + e[:, own].sum(1) + e[:, ~own].sum(1).detach()
    next_users = torch.sigmoid(((users + cut(e, items)) / whole[:, None]) @ w.T)
    bv = act(wv @ a1 + wv @ a2)
    f = a.T * torch.exp(act((wv @ a1)[:, None] + (wu @ a2)[None, :]) - bv[:, None])
    next_items = torch.sigmoid(((items + f @ users) / (1 + f.sum(1))[:, None]) @ w.T)
    return next_users, next_items


def gru(weights: dict[str, Tensor], state: Tensor, message: Tensor) -> Tensor:
    """torch's own cell with the same weights."""
    d = state.shape[1]
    cell = torch.nn.GRUCell(d, d)
    bias, zero = weights["gru_bias"], torch.zeros(2 * d)
    values = {
        "weight_ih": weights["gru_in"],
        "weight_hh": weights["gru_state"],
        "bias_ih": bias[: 3 * d],
        "bias_hh": torch.cat([zero, bias[3 * d :]]),
    }
    return torch.func.functional_call(cell, values, (message, state))


def predict(
    gnn: str, layers: int, public: dict[str, Tensor], items: Tensor, a: Tensor, own: Tensor
) -> Tensor:
    """All ratings (N, M): h_u . h_v with h = sum_k a_k e^k."""
    users, mix = public["users"], public["mix"]
    h_users, h_items = mix[0] * users, mix[0] * items
    for k in range(layers):
        users, items = layer(gnn, k, public, users, items, a, own)
        h_users, h_items = h_users + mix[k + 1] * users, h_items + mix[k + 1] * items
    return h_users @ h_items.T

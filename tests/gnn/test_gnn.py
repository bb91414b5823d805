"""Each operator against a graph solved by hand and against the dense reference on random graphs."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dense
from verfedgnn.config.model_forms import PropagationModel
from verfedgnn.core.graph import Graph, build_graph
from verfedgnn.gnn.gat import GAT
from verfedgnn.gnn.gcn import GCN
from verfedgnn.gnn.ggnn import GGNN
from verfedgnn.gnn.model import Model

GNNS = ["gcn", "gat", "ggnn"]


def hand_graph() -> Graph:
    """Users 0, 1; items 0, 1; edges 0-0, 0-1, 1-1. The party holds 2 of 4 items: ratio 2."""
    return build_graph(np.array([0, 0, 1]), np.array([0, 1, 1]), users=2, items=2, ratio=2.0)


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values).view(1, -1, 1)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_gcn_by_hand() -> None:
    users, items = column(0.5, -1.0), column(2.0, 3.0)
    w = torch.tensor([[[[0.7]]]])
    near, next_users, next_items = GCN(dim=1, layers=1).layer(
        0, {"w": w}, users, items, hand_graph(), column(0.1, 0.2)
    )
    # E_p(N_u) = 2 N_u^p = (4, 2); N_v = (1, 2)
    x0 = 2 / math.sqrt(4 * 1) + 3 / math.sqrt(4 * 2)
    x1 = 3 / math.sqrt(2 * 2)
    assert near.own.flatten().tolist() == pytest.approx([x0, x1])
    assert next_users.flatten().tolist() == pytest.approx(
        [sigmoid(0.7 * (0.5 + x0 + 0.1)), sigmoid(0.7 * (-1 + x1 + 0.2))]
    )
    y0 = 0.5 / math.sqrt(4 * 1)
    y1 = 0.5 / math.sqrt(4 * 2) - 1 / math.sqrt(2 * 2)
    assert next_items.flatten().tolist() == pytest.approx([sigmoid(0.7 * (2 + y0)), sigmoid(0.7 * (3 + y1))])


def test_gat_by_hand() -> None:
    users, items = column(0.5, -1.0), column(2.0, 3.0)
    weights = {"w": torch.tensor([[[[1.0]]]]), "attention": torch.tensor([[[[0.3], [0.2]]]])}
    near, next_users, next_items = GAT(dim=1, layers=1).layer(
        0, weights, users, items, hand_graph(), column(0.1, 0.2)
    )

    def att(node: float, neighbour: float) -> float:
        x = 0.3 * node + 0.2 * neighbour
        return math.exp(x if x > 0 else 0.2 * x)

    whole = att(0.5, 0.5) + 2 * (att(0.5, 2) + att(0.5, 3))
    x0 = (att(0.5, 2) * 2 + att(0.5, 3) * 3) / whole
    assert near.own.flatten()[0].item() == pytest.approx(x0)
    assert next_users.flatten()[0].item() == pytest.approx(sigmoid(att(0.5, 0.5) / whole * 0.5 + x0 + 0.1))
    whole_1 = att(3, 3) + att(3, 0.5) + att(3, -1)
    y1 = (att(3, 3) * 3 + att(3, 0.5) * 0.5 - att(3, -1)) / whole_1
    assert next_items.flatten()[1].item() == pytest.approx(sigmoid(y1))


def test_ggnn_by_hand() -> None:
    users, items = column(0.5, -1.0), column(2.0, 3.0)
    weights = {
        "gru_in": torch.tensor([[[0.1], [0.2], [0.3]]]),
        "gru_state": torch.tensor([[[0.4], [0.5], [0.6]]]),
        "gru_bias": torch.tensor([[0.01, 0.02, 0.03, 0.04]]),
    }
    near, next_users, _ = GGNN(dim=1, layers=1).layer(
        0, weights, users, items, hand_graph(), column(0.1, 0.2)
    )
    # M_p / sum M times the mean over own neighbours: (5/2)/2 and 3/2
    assert near.own.flatten().tolist() == pytest.approx([1.25, 1.5])
    n, e = 1.25 + 0.1, 0.5
    reset, keep = sigmoid(0.1 * n + 0.4 * e + 0.01), sigmoid(0.2 * n + 0.5 * e + 0.02)
    proposal = math.tanh(0.3 * n + 0.03 + reset * (0.6 * e + 0.04))
    assert next_users.flatten()[0].item() == pytest.approx((1 - keep) * proposal + keep * e)


@st.composite
def random_graphs(draw: st.DrawFn) -> tuple[np.ndarray, int, int, int, int]:
    users, items = draw(st.integers(1, 8)), draw(st.integers(1, 7))
    seed = draw(st.integers(0, 10_000))
    adjacency = np.random.default_rng(seed).random((users, items)) < draw(
        st.sampled_from([0.0, 0.2, 0.6, 1.0])
    )
    return adjacency, draw(st.integers(1, 3)), draw(st.integers(1, 4)), seed, users


@pytest.mark.parametrize("gnn", GNNS)
@given(case=random_graphs())
def test_one_party_equals_dense_reference(gnn: str, case: tuple[np.ndarray, int, int, int, int]) -> None:
    adjacency, layers, dim, seed, users = case
    model = Model(PropagationModel(gnn=gnn, dim=dim, layers=layers, init_std=0.5), users)
    public = model.views(model.initial_public(seed, 3.0))
    items = model.initial_embeddings(
        np.random.default_rng(seed + 1), adjacency.shape[1], 3.0
    ).requires_grad_()
    public = {name: value.clone().requires_grad_() for name, value in public.items()}
    user, item = np.nonzero(adjacency)
    graph = build_graph(user, item, users=users, items=adjacency.shape[1])
    out = model.propagate(
        {n: v.unsqueeze(0) for n, v in public.items()}, {"items": items.unsqueeze(0)}, graph, None
    )
    ours = out.users[0] @ out.items[0].T
    reference = dense.predict(
        gnn, layers, public, items, torch.tensor(adjacency).float(), torch.ones(len(items), dtype=torch.bool)
    )
    torch.testing.assert_close(ours, reference, atol=2e-5, rtol=1e-4)
    leaves = [*public.values(), items]
    mine = torch.autograd.grad(ours.square().sum(), leaves, allow_unused=True, materialize_grads=True)
    theirs = torch.autograd.grad(reference.square().sum(), leaves, allow_unused=True, materialize_grads=True)
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=2e-3, rtol=2e-3)

"""Each operator against a graph solved by hand and against the dense reference on random graphs; the loss and its gradients."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dense
from verfedgnn import Config
from verfedgnn.config.sections import PropagationModel
from verfedgnn.core.graph import Graph, build_graph
from verfedgnn.core.pairs import Pairs, PartyInput
from verfedgnn.gnn.gat import GAT
from verfedgnn.gnn.gcn import GCN
from verfedgnn.gnn.ggnn import GGNN
from verfedgnn.gnn.model import Model
from verfedgnn.protocol.forward_backward import Batch, compute, penalty
from verfedgnn.protocol.party_state import Targets

GNNS = ["gcn", "gat", "ggnn"]


def hand_graph() -> Graph:
    """Users 0, 1; items 0, 1; edges 0-0, 0-1, 1-1. The party holds 2 of 4 items: ratio 2."""
    return build_graph(np.array([0, 0, 1]), np.array([0, 1, 1]), users=2, items=2, ratio=2.0)


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values).view(-1, 1)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_gcn_by_hand() -> None:
    users, items = column(0.5, -1.0), column(2.0, 3.0)
    w = torch.tensor([[[0.7]]])
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
    weights = {"w": torch.tensor([[[1.0]]]), "attention": torch.tensor([[[0.3], [0.2]]])}
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
        "gru_in": torch.tensor([[0.1], [0.2], [0.3]]),
        "gru_state": torch.tensor([[0.4], [0.5], [0.6]]),
        "gru_bias": torch.tensor([0.01, 0.02, 0.03, 0.04]),
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
    model = Model(PropagationModel(gnn=gnn, dim=dim, layers=layers), users)
    public = model.views(model.initial_public(seed, 3.0))
    items = model.initial_embeddings(
        np.random.default_rng(seed + 1), adjacency.shape[1], 3.0
    ).requires_grad_()
    public = {name: value.clone().requires_grad_() for name, value in public.items()}
    user, item = np.nonzero(adjacency)
    graph = build_graph(user, item, users=users, items=adjacency.shape[1])
    out = model.propagate(public, {"items": items}, graph, None)
    ours = out.users @ out.items.T
    reference = dense.predict(
        gnn, layers, public, items, torch.tensor(adjacency).float(), torch.ones(len(items), dtype=torch.bool)
    )
    torch.testing.assert_close(ours, reference, atol=2e-5, rtol=1e-4)
    leaves = [*public.values(), items]
    mine = torch.autograd.grad(ours.square().sum(), leaves, allow_unused=True, materialize_grads=True)
    theirs = torch.autograd.grad(reference.square().sum(), leaves, allow_unused=True, materialize_grads=True)
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=2e-3, rtol=2e-3)


@given(seed=st.integers(0, 100), biases=st.booleans())
def test_products_along_edges_are_those_of_pairs(seed: int, biases: bool) -> None:
    """Training on all edges at once gives the gradients of training on a list of pairs."""
    rng = np.random.default_rng(seed)
    user, item = np.nonzero(rng.random((6, 5)) < 0.5)
    config = Config.preset(
        "paper", **{"exchange": "off", "model.form": "factors", "biases": biases, "dim": 3}
    )
    model, graph = Model(config.model, 6), build_graph(user, item, users=6, items=5)
    public = model.initial_public(seed, 3.0)
    private = model.initial_private(rng, 5, 3.0)
    rating = torch.from_numpy(rng.normal(size=len(user)).astype(np.float32))
    pairs = Pairs(torch.from_numpy(user), torch.from_numpy(item), rating)
    one, other = (
        compute(model, graph, public, private, config.training, batch=Batch(pairs, edges=edges))
        for edges in (True, False)
    )
    torch.testing.assert_close(one.public_gradient, other.public_gradient, atol=1e-4, rtol=1e-4)
    assert one.private_gradients.keys() == private.keys()
    for name, gradient in one.private_gradients.items():
        torch.testing.assert_close(gradient, other.private_gradients[name], atol=1e-4, rtol=1e-4)


def test_regularisers_by_hand() -> None:
    """One item, half of the ratings: every weight where docs/model.md has it."""
    pairs = Pairs(torch.tensor([0, 0, 1]), torch.tensor([0, 0, 0]), torch.zeros(3))
    leaves = {
        "users": torch.tensor([[1.0], [2.0]]),
        "items": torch.tensor([[3.0]]),
        "item_bias": torch.tensor([[5.0]]),
    }
    training = Config().training.model_copy(update={"l2_bias": 2.0, "l2": 4.0})
    assert penalty(leaves, Batch(pairs, share=0.5), training).item() == pytest.approx(
        0.5 * (4.0 * 9 + 2.0 * 25)
    )


def test_targets_are_in_quarters_of_the_scale_around_the_mean() -> None:
    pairs = Pairs(torch.tensor([1, 0]), torch.tensor([0, 0]), torch.tensor([10.0, 2.0]))
    data = PartyInput("p", 2, 1, (1.0, 10.0), pairs, pairs)
    targets = Targets.of(data, Config.preset("best"))
    assert targets.train.rating.tolist() == pytest.approx([-4 / 2.25, 4 / 2.25])  # in the order of users
    vectors = torch.tensor([[2.0]])
    served = targets.serve(torch.tensor([[0.0], [1.0]]), vectors, vectors)
    users, items = served["users"], served["items"]
    assert (users @ items.T).flatten().tolist() == pytest.approx([6.0, 6.0 + 2 * 2.25])
    error, count = targets.validate(users, items)
    assert (error, count) == (pytest.approx((6 - 2) ** 2), 2), "10.5 is clipped to 10, as it is served"

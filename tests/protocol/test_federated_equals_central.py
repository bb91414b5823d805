"""With protection and estimators off and a settled exchange, the federation is the pooled model, for any number of parties.

What comes from other parties is a constant to the recipient (the paper cuts gradients there); the reference does the same.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import dense
from verfedgnn import Config, split_items
from verfedgnn.core.graph import build_graph
from verfedgnn.data import synthetic_ratings
from verfedgnn.gnn.gcn import GCN
from verfedgnn.gnn.operator import inverse_sqrt
from verfedgnn.protocol.party import Party
from verfedgnn.runs.prepared_data import prepare
from verfedgnn.training.local_runtime import LocalRuntime, local_federation
from verfedgnn_research.gnn_contract import settle


def open_config(gnn: str, layers: int = 2) -> Config:
    return Config.preset("paper", model=gnn, seed=3).with_values(
        {
            "unprotected": ["degrees", "projection"],
            "lr": 1e-3,
            "exchange": 0,
            "layers": layers,
            "estimators": False,
            "mechanism": "none",
            "gradients.clip": None,
            "batch": 0,
            "epochs": 8,
            "evaluate_every": 1,
        }
    )


def federation(config: Config, count: int) -> tuple[LocalRuntime, list[Party]]:
    table = synthetic_ratings(users=40, items=30, ratings=500, seed=2)
    prepared = prepare(split_items(table, parties=count, seed=1), config, torch.device("cpu"))
    runtime = local_federation([p.input for p in prepared], config)
    return runtime, list(runtime.parties.values())


@pytest.mark.parametrize("gnn", ["gcn", "gat", "ggnn"])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_predictions_and_one_step(gnn: str, count: int) -> None:
    config = open_config(gnn)
    runtime, parties = federation(config, count)
    model = parties[0].model
    public = runtime.coordinator.replica.parameters.clone()
    items = torch.cat([party.progress.private.parameters["items"].clone() for party in parties])
    owner = torch.cat(
        [torch.full((len(party.progress.private.parameters["items"]),), p) for p, party in enumerate(parties)]
    )
    adjacency, rating = torch.zeros(40, len(items)), torch.full((40, len(items)), torch.nan)
    start = 0
    settle(runtime, 2)
    for party in parties:
        pairs = party.data.train
        user, item = pairs.user.long(), pairs.item.long() + start
        rating[user, item] = pairs.rating
        adjacency[user, item] = (pairs.rating >= party.setup.threshold).float()
        start += len(party.progress.private.parameters["items"])
        party.progress.private.accumulators["items"].zero_()
    for replica in (runtime.coordinator.replica, *(party.replica for party in parties)):
        replica.accumulator.zero_()

    runtime.round()

    public_gradient, item_gradient = torch.zeros_like(public), torch.zeros_like(items)
    for p, party in enumerate(parties):
        own = owner == p
        flat, rows = public.clone().requires_grad_(), items.clone().requires_grad_()
        ratings = dense.predict(gnn, 2, model.views(flat), rows, adjacency, own)
        h = party.progress.evaluated[1]
        torch.testing.assert_close(h["users"] @ h["items"].T, ratings[:, own].detach(), atol=1e-5, rtol=1e-5)
        known = ~rating.isnan() & own
        loss = (ratings - rating)[known].square().sum()
        to_public, to_items = torch.autograd.grad(loss, [flat, rows])
        public_gradient += to_public
        item_gradient[own] = to_items[own]
    public_gradient[: model.user_size] += 2 / 40 * public[: model.user_size]
    item_gradient += 2 / len(items) * items
    assert public_gradient.abs().max() > 1
    replica, private = runtime.coordinator.replica, [party.progress.private for party in parties]
    same_step(public, public_gradient, replica.parameters, replica.accumulator)
    moved = torch.cat([own.parameters["items"] for own in private])
    squares = torch.cat([own.accumulators["items"] for own in private])
    same_step(items, item_gradient, moved, squares)


def same_step(before: Tensor, gradient: Tensor, after: Tensor, squares: Tensor) -> None:
    """The first step of Adagrad is its sign; the accumulator has its size."""
    torch.testing.assert_close(squares.sqrt(), gradient.abs(), atol=1e-4, rtol=1e-4)
    large = gradient.abs() > 1e-2
    torch.testing.assert_close((before - after)[large], 1e-3 * gradient[large].sign())


def test_more_layers_and_more_rounds() -> None:
    """Three layers, four parties: after three rounds of training every party still predicts what the pooled model would."""
    config = open_config("gcn", layers=3).with_values({"lr": 1e-5})
    runtime, parties = federation(config, 4)
    for _ in range(3):
        runtime.round()
    settle(runtime, 3)
    public, items = (
        runtime.coordinator.replica.parameters.clone(),
        torch.cat([party.progress.private.parameters["items"] for party in parties]),
    )
    adjacency = torch.zeros(40, len(items))
    start = 0
    for party in parties:
        liked = party.data.train.rating >= party.setup.threshold
        adjacency[party.data.train.user[liked].long(), party.data.train.item[liked].long() + start] = 1
        start += len(party.progress.private.parameters["items"])
    predicted = dense.predict(
        "gcn", 3, parties[0].model.views(public), items, adjacency, torch.ones(len(items), dtype=torch.bool)
    )
    runtime.round()
    start = 0
    for party in parties:
        h = party.progress.evaluated[1]
        torch.testing.assert_close(
            h["users"] @ h["items"].T,
            predicted[:, start : start + len(party.progress.private.parameters["items"])],
            atol=1e-5,
            rtol=1e-5,
        )
        start += len(party.progress.private.parameters["items"])


def test_estimators_are_exact_when_every_party_has_its_share() -> None:
    """E_p(N_u) = N_u when each of three equal parties holds a third of a user's items."""
    graph = build_graph(np.array([0, 0, 1]), np.array([0, 1, 0]), users=2, items=2, ratio=3.0)
    operator = GCN(dim=1, layers=1)
    near = operator.gather(torch.ones(2, 1), graph.user_degree, None, graph, inverse_sqrt)
    assert near.scale.flatten().tolist() == pytest.approx([6**-0.5, 3**-0.5])
    assert near.own.flatten().tolist() == pytest.approx([6**-0.5, 3**-0.5])

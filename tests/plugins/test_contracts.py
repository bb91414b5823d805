"""The built-in GNNs and methods under the contracts that any plug-in inherits; docs/tutorials/own-gnn.md tests the example GNN."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import my_baseline
import my_gnn
import numpy as np
import pytest
import torch

from verfedgnn import plugins
from verfedgnn.gnn.gat import GAT
from verfedgnn.gnn.gcn import GCN
from verfedgnn.gnn.ggnn import GGNN
from verfedgnn.runs.ledger import Ledger
from verfedgnn_research.baselines import METHODS
from verfedgnn_research.baselines.descent_methods import DescentMethod, LightGCN
from verfedgnn_research.gnn_contract import GNNContract
from verfedgnn_research.method_contract import MethodContract

for operator in (GCN, GAT, GGNN):
    name = f"Test{operator.__name__}"
    globals()[name] = type(name, (GNNContract,), {"gnn": operator})

SHORT = {
    "training.batch": 0,
    "training.epochs": 16,
    "training.evaluate_every": 8,
}
OWN = {
    "bias": {"rmse": (0.9, 0.93), "settings": {}},
    "bias-alone": {"rmse": (0.9, 1.0), "settings": {}, "sends": False},
    "alone": {"sends": False, "rmse": (0.9, 1.1)},
    "popularity": {"settings": {}},
    "popularity-alone": {"settings": {}, "sends": False},
    "lightgcn": {"settings": {}},
    "emcdr": {"settings": {}, "rmse": (0.7, 1.1)},
    **{
        name + suffix: {"settings": {}, "rmse": (0.7, 1.1), "sends": not suffix}
        for name, suffix in product(
            ("itemknn", "ease", "ials", "pipeline", "biased-mf", "svd++", "autorec"), ("", "-alone")
        )
    },
    "private": {"settings": {"training.epochs": 24}, "rmse": (0.9, 1.2)},
}


@pytest.fixture(autouse=True)
def short_descents(monkeypatch: pytest.MonkeyPatch, short_own_models: None) -> None:
    """Let simple methods descend for fifty steps from one option in the place of nine, or for three rounds."""
    monkeypatch.setattr(DescentMethod, "options", (4.0,))
    monkeypatch.setattr(LightGCN, "options", ((1, 1e-3),))
    monkeypatch.setattr(DescentMethod, "steps", 50)


for found in METHODS.values():
    name = f"TestMethod{type(found).__name__}"
    globals()[name] = type(
        name, (MethodContract,), {"method": type(found), "settings": SHORT, **OWN.get(found.name, {})}
    )


class TestEase(MethodContract):
    method = my_baseline.Ease
    rmse = (0.8, 0.97)


# -- the contracts notice ----------------------------------------------------------------------------------------------------


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is registered here is forgotten afterwards."""
    monkeypatch.setattr(plugins, "_registered", dict(plugins._registered))


class Cut(my_gnn.Sage):
    """Gradients of the neighbourhood are cut."""

    name = "cut"

    def layer(self, k, weights, users, items, graph, others):  # type: ignore[no-untyped-def]
        near, next_users, next_items = super().layer(k, weights, users, items.detach(), graph, others)
        return near, next_users, next_items


class Ordered(my_gnn.Sage):
    """The first user is special."""

    name = "ordered"

    def layer(self, k, weights, users, items, graph, others):  # type: ignore[no-untyped-def]
        near, next_users, next_items = super().layer(k, weights, users, items, graph, others)
        return near, next_users + next_users[:1], next_items


class Deaf(my_gnn.Sage):
    """Others are not listened to."""

    name = "deaf"

    def layer(self, k, weights, users, items, graph, others):  # type: ignore[no-untyped-def]
        return super().layer(k, weights, users, items, graph, None)


class Restless(my_gnn.Sage):
    """Randomness of its own."""

    name = "restless"

    def initial(self, name, shape, rng):  # type: ignore[no-untyped-def]
        return np.random.default_rng().normal(size=shape).astype(np.float32)


class Silent(my_gnn.Sage):
    """Nothing of it reaches a prediction."""

    name = "silent"

    def layer(self, k, weights, users, items, graph, others):  # type: ignore[no-untyped-def]
        near, next_users, next_items = super().layer(k, weights, users, items, graph, others)
        return near, torch.zeros_like(next_users), next_items


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize(
    ("operator", "test"),
    [
        (Cut, "test_gradients_are_those_of_finite_differences"),
        (Ordered, "test_the_order_of_users_and_items_is_of_no_account"),
        (Deaf, "test_unprotected_the_federation_is_the_pooled_model"),
        (Restless, "test_shapes"),
        (Restless, "test_same_seed_same_bits"),
        (Silent, "test_it_learns"),
    ],
)
def test_a_faulty_gnn_is_noticed(operator: type, test: str) -> None:
    with pytest.raises(AssertionError):
        getattr(type("Contract", (GNNContract,), {"gnn": operator})(), test)()


class Peeking(my_baseline.Ease):
    """Trains on everything."""

    name = "peeking"

    def train(self, parties, config, where):  # type: ignore[no-untyped-def]
        return super().train(parties, config.with_values({"split.fractions": [0.98, 0.01, 0.01]}), where)


class Free(my_baseline.Ease):
    """Ratings travel for nothing."""

    name = "free"

    def train(self, parties, config, where):  # type: ignore[no-untyped-def]
        return replace(super().train(parties, config, where), ledger=Ledger())


@pytest.mark.parametrize(
    ("method", "test"), [(Peeking, "test_the_test_part_is_not_looked_at"), (Free, "test_bytes_are_counted")]
)
def test_a_faulty_method_is_noticed(method: type, test: str) -> None:
    with pytest.raises(AssertionError):
        getattr(type("Contract", (MethodContract,), {"method": method})(), test)()

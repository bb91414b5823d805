"""The contract of a GNN: what the protocol relies on. Plug-ins and the built-in GNNs pass it (docs/tutorials/own-gnn.md).

    class TestMine(verfedgnn_research.gnn_contract.GNNContract):
        gnn = MyOperator

Run it with pytest, or call the methods; nothing here needs pytest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.testing import assert_close

from verfedgnn.config import Config
from verfedgnn.core.graph import build_graph
from verfedgnn.core.pairs import Pairs
from verfedgnn.data import PartyData, split_items, synthetic_ratings
from verfedgnn.gnn.model import OPERATORS, Model
from verfedgnn.gnn.operator import Operator
from verfedgnn.plugins import register
from verfedgnn.privacy.projection import IdentityProjection
from verfedgnn.protocol.forward_backward import Batch, compute
from verfedgnn.runs.prepared_data import prepare
from verfedgnn.training.local_runtime import LocalRuntime, local_federation
from verfedgnn.training.train import train

CPU = torch.device("cpu")
USERS = 14
ITEMS = 9
OPEN = {
    "unprotected": ["degrees", "projection"],
    "lr": 1e-4,
    "exchange": 0,
    "estimators": False,
    "mechanism": "none",
    "gradients.clip": None,
    "batch": 0,
    "epochs": 9,
    "evaluate_every": 1,
}
"""Settings without protection, with exact degrees and plain gradient steps."""


class GNNContract:
    """Tests of everything the protocol relies on. Inherit from it, set `gnn` and run pytest."""

    gnn: ClassVar[type[Operator]]
    """Operator under test."""
    settings: ClassVar[Mapping[str, Any]] = {}
    """Settings that the GNN needs in place of the preset's, by name."""
    rmse: ClassVar[tuple[float, float] | None] = None
    """Bounds of the test RMSE on `parties()`; unset: those of the built-in GNNs."""

    def test_shapes(self) -> None:
        """Check the shapes of weights, embeddings and neighbourhoods: D columns, or D + 1 with exact degrees."""
        model = self._model()
        dim = model.config.dim
        weights = model.operator.weights()
        assert weights.keys().isdisjoint(("users", "mix", "user_bias")), "these names are the model's own"
        for name, shape in weights.items():
            first, again = (model.operator.initial(name, shape, np.random.default_rng(1)) for _ in range(2))
            assert first.shape == shape, name
            assert np.isfinite(first).all(), name
            assert np.array_equal(first, again), (
                f"{name}: all that is random must come from the generator that is passed in"
            )
        for estimators in (True, False):
            drawn = Inputs(self._model(estimators=estimators))
            operator, users, items = drawn.model.operator, drawn.public["users"], drawn.private["items"]
            near, next_users, next_items = operator.layer(0, drawn.public, users, items, drawn.graph, None)
            assert near.own.shape == (USERS, dim + (not estimators))
            assert near.own.shape[-1] == operator.columns
            assert near.total.shape == next_users.shape == (USERS, dim)
            assert next_items.shape == (ITEMS, dim)

    def test_inputs_are_left_alone(self) -> None:
        """Check that parameters and the others' neighbourhoods, which the next round uses again, stay as they are."""
        drawn = Inputs(self._model())
        values = [*drawn.public.values(), *drawn.private.values(), *drawn.others]
        before = [value.clone() for value in values]
        drawn.model.propagate(drawn.public, drawn.private, drawn.graph, drawn.others)
        assert all(map(torch.equal, values, before))

    def test_a_user_without_neighbours_says_nothing(self) -> None:
        """Check that a user without ratings at a party is sent as zeros, so that it adds nothing and causes no NaN."""
        graph = build_graph(np.array([0]), np.array([0]), users=USERS, items=ITEMS, ratio=4.0)
        drawn = Inputs(self._model())
        out = drawn.model.propagate(drawn.public, drawn.private, graph, None)
        assert torch.isfinite(out.users).all()
        assert torch.isfinite(out.items).all()
        assert (out.neighbourhoods[0][1:] == 0).all()

    def test_gradients_are_those_of_finite_differences(self) -> None:
        """Compare the backward pass with finite differences of the loss, for every parameter in a random direction.

        The test runs in 64 bits: an operator must take its dtype from its inputs.
        """
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            self._compare_gradients(Inputs(self._model()))
        finally:
            torch.set_default_dtype(before)

    def _compare_gradients(self, drawn: Inputs) -> None:
        model = drawn.model
        degrees = ("user_degree", "item_degree", "ratio")
        graph = replace(drawn.graph, **{name: getattr(drawn.graph, name).double() for name in degrees})
        rng = np.random.default_rng(4)
        user, item = np.nonzero(rng.random((USERS, ITEMS)) < 0.5)
        pairs = Pairs(
            torch.from_numpy(user), torch.from_numpy(item), torch.from_numpy(rng.normal(3, 1, len(user)))
        )

        def loss(parameters: Mapping[str, Tensor]) -> float:
            private = {name: parameters[name] for name in drawn.private}
            out = model.propagate(parameters, private, graph, drawn.others)
            return float((out.predict(pairs.user, pairs.item) - pairs.rating).square().sum())

        training, public = Config.preset("paper", l2=0.0).training, model.flat(drawn.public)
        others: dict[str, Any] = {"exchange": IdentityProjection(USERS), "others": torch.stack(drawn.others)}
        found = compute(model, graph, public, drawn.private, training, batch=Batch(pairs), **others)
        parameters = {**drawn.public, **drawn.private}
        for name, gradient in {**model.views(found.public_gradient), **found.private_gradients}.items():
            step = 1e-6 * torch.from_numpy(rng.normal(size=tuple(gradient.shape)))
            up, down = (loss(parameters | {name: parameters[name] + way * step}) for way in (1, -1))
            backward, slope = float((gradient * step).sum()) * 1e6, (up - down) / 2e-6
            assert abs(backward - slope) <= 1e-5 * max(1.0, abs(slope)), (
                f"{name}: backward says {backward:.6g}, the loss {slope:.6g}"
            )

    def test_the_order_of_users_and_items_is_of_no_account(self) -> None:
        """Check that renumbering users and items only renumbers the result."""
        rng = np.random.default_rng(6)
        people, things = rng.permutation(USERS), rng.permutation(ITEMS)
        drawn = Inputs(self._model())
        one = drawn.model.propagate(drawn.public, drawn.private, drawn.graph, drawn.others)
        user, item = small_edges()
        graph = build_graph(
            np.argsort(people)[user], np.argsort(things)[item], users=USERS, items=ITEMS, ratio=2.0
        )
        per_user = drawn.model.per_user
        public = {name: value[people] if name in per_user else value for name, value in drawn.public.items()}
        private = {name: value[things] for name, value in drawn.private.items()}
        other = drawn.model.propagate(public, private, graph, [near[people] for near in drawn.others])
        assert_close(other.users, one.users[people], atol=1e-5, rtol=1e-4)
        assert_close(other.items, one.items[things], atol=1e-5, rtol=1e-4)
        for a, b in zip(other.neighbourhoods, one.neighbourhoods, strict=True):
            assert_close(a, b[people], atol=1e-5, rtol=1e-4)

    def test_unprotected_the_federation_is_the_pooled_model(self) -> None:
        """Check that every party predicts what one model of all items would, after three rounds of training."""
        config = self._config(**OPEN)
        runtime = federation(parties(40, 30, 500), config)
        members = list(runtime.parties.values())
        for party in members:
            for value in party.progress.private.parameters.values():
                value.add_(draw(tuple(value.shape), len(value), 0.3))
        for _ in range(3):
            runtime.round()
        assert config.model.form == "propagation"
        settle(runtime, config.model.layers)
        model = members[0].model
        public = runtime.coordinator.replica.parameters.clone()
        parameters = [party.progress.private.parameters for party in members]
        private = {name: torch.cat([own[name] for own in parameters]) for name in parameters[0]}
        starts = np.cumsum([0, *(party.data.items for party in members)])
        edges = []
        for party, start in zip(members, starts[:-1], strict=True):
            liked = party.data.train.take(party.data.train.rating >= party.setup.threshold)
            edges.append((liked.user.numpy(), liked.item.numpy() + start))
        graph = build_graph(*map(np.concatenate, zip(*edges, strict=True)), users=40, items=int(starts[-1]))
        pooled = model.propagate(model.views(public), private, graph, None)
        runtime.round()
        for party, start in zip(members, starts[:-1], strict=True):
            found = party.progress.evaluated[1]
            own = pooled.items[start : start + party.data.items]
            wanted = party.setup.targets.serve(pooled.users, own, own)
            users, items = wanted["users"], wanted["items"]
            assert_close(found["users"] @ found["items"].T, users @ items.T, atol=1e-4, rtol=1e-4)

    def test_same_seed_same_bits(self) -> None:
        """Check that a seed gives the same bits under the preset's protection, and another seed another model."""
        config = self._config(epochs=6, batch=0)
        data = parties(40, 30, 500)
        drawn = [Model(config.model, 8).initial_public(0, 3.0) for _ in range(2)]
        assert torch.equal(*drawn), "`initial` draws from its `rng` alone"
        first, again, other = (train(data, config.with_values({"seed": seed})) for seed in (0, 0, 1))
        assert torch.equal(first.public, again.public)
        assert all(torch.equal(a.items, b.items) for a, b in zip(first.models, again.models, strict=True))
        assert not torch.equal(first.public, other.public)

    def test_it_learns(self) -> None:
        """Check that the test RMSE is below that of the mean rating (1.06)."""
        low, high = self.rmse or (0.7, 1.03)
        run = train(parties(), self._config(epochs=30, evaluate_every=10, batch=0))
        error = run.metrics["test"]["rmse"]
        assert low < error < high, f"test RMSE {error:.3f} is not between {low} and {high} (rmse)"
        assert run.ledger.total("up", kind="RoundReply") > 0

    def _config(self, **values: Any) -> Config:
        if OPERATORS.get(self.gnn.name) is not self.gnn:
            register(self.gnn)
        return Config.preset("paper", model=self.gnn.name).with_values({**values, **self.settings})

    def _model(self, **values: Any) -> Model:
        config = self._config(**({"dim": 4} | ({**OPEN, **values} if values else {}))).model
        return Model(config, USERS)


class Inputs:
    """The inputs of a model at a party that holds half of all items; no parameter is 0."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.graph = build_graph(*small_edges(), users=USERS, items=ITEMS, ratio=2.0)
        first = model.views(model.initial_public(1, 3.0)).items()
        self.public = {
            name: value + draw(tuple(value.shape), 7 + k, 0.1) for k, (name, value) in enumerate(first)
        }
        shapes = model.private_shapes(ITEMS)
        self.private = {name: draw(shape, 20 + place) for place, (name, shape) in enumerate(shapes.items())}
        columns = model.operator.columns
        self.others = [draw((USERS, columns), 30 + k).abs() for k in range(model.operator.layers)]
        """What others sent, X^k for every layer."""


def small_edges() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Draw users and items that are neighbours."""
    user, item = np.nonzero(np.random.default_rng(3).random((USERS, ITEMS)) < 0.4)
    return user, item


def draw(shape: tuple[int, ...], seed: int, spread: float = 0.5) -> Tensor:
    """Draw normal numbers of the default dtype."""
    values = np.random.default_rng(seed).normal(0, spread, shape)
    return torch.from_numpy(values).to(torch.get_default_dtype())


@cache
def parties(users: int = 200, items: int = 120, ratings: int = 9000, count: int = 3) -> list[PartyData]:
    """Return `count` parties. With the defaults, user and item means reach an RMSE of 0.913."""
    table = synthetic_ratings(users=users, items=items, ratings=ratings, seed=5)
    return split_items(table, parties=count, seed=5)


def federation(data: list[PartyData], config: Config) -> LocalRuntime:
    """Join a coordinator and the parties of `data`, ready for the first round."""
    return local_federation([party.input for party in prepare(data, config, CPU)], config)


def settle(runtime: LocalRuntime, rounds: int) -> None:
    """Run rounds in which all parameters stand still, so that the exchange, which is a round late for each layer, catches up."""
    config = runtime.coordinator.config
    still = config.model_copy(update={"training": config.training.model_copy(update={"lr": 1e-30})})
    replica = runtime.coordinator.replica
    for chosen in (still, config):
        replica.config = chosen
        for party in runtime.parties.values():
            party.replica.config = chosen
            party.replica.load(replica.arrays(), replica.round)  # the last step was taken with the other rate
            party.config = chosen
            party.setup = replace(party.setup, config=chosen)
        for _ in range(rounds if chosen is still else 0):
            runtime.round()

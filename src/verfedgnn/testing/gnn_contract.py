"""The contract of a GNN: what the protocol relies on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.testing import assert_close

from verfedgnn.config import Config
from verfedgnn.core.graph import Graph, build_graph
from verfedgnn.core.pairs import Pairs
from verfedgnn.gnn.model import OPERATORS, Model
from verfedgnn.gnn.operator import Operator
from verfedgnn.plugins import register
from verfedgnn.privacy.projection import IdentityProjection
from verfedgnn.protocol.forward_backward import Batch, compute
from verfedgnn.testing.small_federation import federation, parties, settle
from verfedgnn.training.train import train

USERS = 14
ITEMS = 9
OPEN = {
    "unprotected": ["degrees", "projection"],
    "optimizer": "sgd",
    "lr": 1e-4,
    "exchange.ratio": 0,
    "estimators": False,
    "mechanism": "none",
    "gradients.clip": None,
    "batch": 0,
    "init_std": 0.3,
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
    """Bounds of the test RMSE on `small_federation.parties()`; unset: those of the built-in GNNs."""

    # -- the operator itself -----------------------------------------------------------------------------------------------

    def test_shapes(self) -> None:
        """Check that weights have the declared shapes, embeddings keep theirs, and neighbourhoods have D
        columns, or D + 1 with exact degrees.
        """
        model = self._model()
        dim = model.config.dim
        weights = model.operator.weights()
        assert all(name not in ("users", "mix", "user_bias") for name in weights), (
            "these names are the model's own"
        )
        for name, shape in weights.items():
            first, again = (model.operator.initial(name, shape, np.random.default_rng(1)) for _ in range(2))
            assert first.shape == shape, name
            assert np.isfinite(first).all(), name
            assert np.array_equal(first, again), (
                f"{name}: all that is random must come from the generator that is passed in"
            )
        for estimators in (True, False):
            model = self._model(estimators=estimators)
            public = drawn_public(model)
            items = drawn_private(model)["items"]
            near, users, next_items = model.operator.layer(
                0, public, public["users"], items, small_graph(), None
            )
            assert near.own.shape == (USERS, dim + (not estimators))
            assert near.own.shape[-1] == model.operator.columns
            assert near.total.shape == users.shape == (USERS, dim)
            assert next_items.shape == (ITEMS, dim)

    def test_inputs_are_left_alone(self) -> None:
        """Check that parameters and the others' neighbourhoods, which the next round uses again, are not
        changed.
        """
        model = self._model()
        public = drawn_public(model)
        private = drawn_private(model)
        others = drawn_others(model)
        before = [value.clone() for value in (*public.values(), *private.values(), *others)]
        model.propagate(public, private, small_graph(), others)
        for value, old in zip((*public.values(), *private.values(), *others), before, strict=True):
            assert torch.equal(value, old)

    def test_a_user_without_neighbours_says_nothing(self) -> None:
        """Check that an empty row is sent as zeros, so that a party without a user's ratings adds nothing,
        and causes no NaN.
        """
        graph = build_graph(np.array([0]), np.array([0]), users=USERS, items=ITEMS, ratio=4.0)
        model = self._model()
        out = model.propagate(drawn_public(model), drawn_private(model), graph, None)
        assert torch.isfinite(out.users).all()
        assert torch.isfinite(out.items).all()
        assert (out.neighbourhoods[0][1:] == 0).all()

    def test_gradients_are_those_of_finite_differences(self) -> None:
        """Compare the protocol's backward pass with finite differences of the loss, for every parameter in
        a random direction.

        The test runs in 64 bits: an operator must take its dtype from its inputs.
        """
        with double():
            model = self._model()
            graph = double_graph(small_graph())
            identity = IdentityProjection(USERS)
            others = torch.stack(drawn_others(model))
            public = model.flat(drawn_public(model))
            own = drawn_private(model)
            rng = np.random.default_rng(4)
            user, item = np.nonzero(rng.random((USERS, ITEMS)) < 0.5)
            pairs = Pairs(
                torch.from_numpy(user), torch.from_numpy(item), torch.from_numpy(rng.normal(3, 1, len(user)))
            )
            training = Config.preset("paper", l2=0.0).training

            def loss(public: Tensor, own: Mapping[str, Tensor]) -> float:
                out = model.propagate(model.views(public), own, graph, list(others))
                return float((out.predict(pairs.user, pairs.item) - pairs.rating).square().sum())

            found = compute(
                model, graph, public, own, training, exchange=identity, others=others, batch=Batch(pairs)
            )
            assert found.public_gradient is not None
            for name, place in model.views(torch.arange(model.size)).items():
                direction = torch.zeros_like(public)
                direction[place.reshape(-1)] = torch.from_numpy(rng.normal(size=place.numel()))
                slope = (loss(public + 1e-6 * direction, own) - loss(public - 1e-6 * direction, own)) / 2e-6
                _agree(float(found.public_gradient @ direction), slope, name)
            for name, value in own.items():
                direction = torch.from_numpy(rng.normal(size=value.shape))
                near = (own | {name: value + sign * 1e-6 * direction} for sign in (1, -1))
                slope = (loss(public, next(near)) - loss(public, next(near))) / 2e-6
                _agree(float((found.private_gradients[name] * direction).sum()), slope, name)

    def test_the_order_of_users_and_items_is_of_no_account(self) -> None:
        """Check that renumbering users and items only renumbers the result."""
        rng = np.random.default_rng(6)
        model = self._model()
        (user, item) = small_edges()
        people = rng.permutation(USERS)
        things = rng.permutation(ITEMS)
        public = drawn_public(model)
        private = drawn_private(model)
        others = drawn_others(model)
        one = model.propagate(public, private, small_graph(), others)
        graph = build_graph(
            np.argsort(people)[user], np.argsort(things)[item], users=USERS, items=ITEMS, ratio=2.0
        )
        moved = {name: value[people] if name in model.per_user else value for name, value in public.items()}
        other = model.propagate(
            moved, {n: v[things] for n, v in private.items()}, graph, [x[people] for x in others]
        )
        assert_close(other.users, one.users[people], atol=1e-5, rtol=1e-4)
        assert_close(other.items, one.items[things], atol=1e-5, rtol=1e-4)
        for a, b in zip(other.neighbourhoods, one.neighbourhoods, strict=True):
            assert_close(a, b[people], atol=1e-5, rtol=1e-4)

    # -- in a federation ---------------------------------------------------------------------------------------------------

    def test_unprotected_the_federation_is_the_pooled_model(self) -> None:
        """Check that every party predicts what one model of all items would, with the parameters of three
        rounds of training.
        """
        config = self._config(**OPEN)
        runtime = federation(parties(40, 30, 500), config)
        members = list(runtime.parties.values())
        for party in members:
            for value in party.progress.private.parameters.values():
                value.add_(
                    0.3 * torch.randn(value.shape, generator=torch.Generator().manual_seed(len(value)))
                )
        for _ in range(3):
            runtime.round()
        assert config.model.form == "propagation"
        settle(runtime, config.model.layers)
        model = members[0].model
        public = runtime.coordinator.replica.parameters.clone()
        private = {
            n: torch.cat([p.progress.private.parameters[n] for p in members])
            for n in members[0].progress.private.parameters
        }
        user = []
        item = []
        start = 0
        for party in members:
            liked = party.data.train.take(party.data.train.rating >= party.setup.threshold)
            user.append(liked.user.numpy())
            item.append(liked.item.numpy() + start)
            start += party.data.items
        graph = build_graph(np.concatenate(user), np.concatenate(item), users=40, items=start)
        pooled = model.propagate(model.views(public), private, graph, None)
        runtime.round()
        start = 0
        for party in members:
            assert party.progress.evaluated is not None
            found = party.progress.evaluated[1]
            users, items = party.setup.targets.to_rating_scale(
                pooled.users, pooled.items[start : start + party.data.items]
            )
            assert_close(found["users"] @ found["items"].T, users @ items.T, atol=1e-4, rtol=1e-4)
            start += party.data.items

    def test_same_seed_same_bits(self) -> None:
        """Check that the same seed gives the same bits under the preset's protection, and another seed
        another model.
        """
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
        assert low < run.metrics["test"]["rmse"] < high, run.metrics["test"]["rmse"]
        assert run.ledger.total("up", kind="RoundReply") > 0

    # ----------------------------------------------------------------------------------------------------------------------

    def _config(self, **values: Any) -> Config:
        if OPERATORS.get(self.gnn.name) is not self.gnn:
            register(self.gnn)
        return Config.preset("paper", model=self.gnn.name).with_values({**values, **self.settings})

    def _model(self, **values: Any) -> Model:
        config = self._config(**({"dim": 4} | ({**OPEN, **values} if values else {}))).model
        return Model(config, USERS)


def _agree(found: float, slope: float, name: str) -> None:
    assert abs(found - slope) <= 1e-5 * max(1.0, abs(slope)), (
        f"{name}: backward says {found:.6g}, the loss {slope:.6g}"
    )


def small_edges(seed: int = 3, items: int = ITEMS) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Draw users and items that are neighbours."""
    user, item = np.nonzero(np.random.default_rng(seed).random((USERS, items)) < 0.4)
    return user, item


def small_graph(seed: int = 3, items: int = ITEMS) -> Graph:
    """Return the graph of a party that holds half of all items."""
    return build_graph(*small_edges(seed, items), users=USERS, items=items, ratio=2.0)


def drawn(shape: tuple[int, ...], seed: int, spread: float = 0.5) -> Tensor:
    """Draw normal numbers of the default dtype."""
    return torch.from_numpy(np.random.default_rng(seed).normal(0, spread, shape)).to(
        torch.get_default_dtype()
    )


def drawn_public(model: Model) -> dict[str, Tensor]:
    """Draw public parameters near their initial values, none of them 0."""
    views = model.views(model.initial_public(1, 3.0))
    near = {
        name: value + drawn(tuple(value.shape), 7 + i, 0.1) for i, (name, value) in enumerate(views.items())
    }
    return near


def drawn_private(model: Model) -> dict[str, Tensor]:
    """Draw private parameters, none of them 0."""
    shapes = model.private_shapes(ITEMS)
    return {name: drawn(shape, 20 + i) for i, (name, shape) in enumerate(shapes.items())}


def drawn_others(model: Model) -> list[Tensor]:
    """Draw the neighbourhoods that others sent, X^k for every layer."""
    shape = (USERS, model.operator.columns)
    return [drawn(shape, 30 + k).abs() for k in range(model.operator.layers)]


@contextmanager
def double() -> Iterator[None]:
    """Make 64-bit floats the default inside the block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def double_graph(graph: Graph) -> Graph:
    """Return the same graph in 64 bits."""
    return replace(
        graph,
        user_degree=graph.user_degree.double(),
        item_degree=graph.item_degree.double(),
        ratio=graph.ratio.double(),
    )

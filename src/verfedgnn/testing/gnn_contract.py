"""The contract of a GNN: what the protocol relies on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.testing import assert_close

from verfedgnn.config import Config
from verfedgnn.core.graph import build_graph, stack_graphs
from verfedgnn.core.pairs import Pairs
from verfedgnn.gnn.model import OPERATORS, Model
from verfedgnn.gnn.operator import Operator
from verfedgnn.plugins import register
from verfedgnn.privacy.projection import IdentityProjection
from verfedgnn.protocol.round.forward_backward import PassInputs, compute
from verfedgnn.protocol.round.loss import Batch
from verfedgnn.testing.random_inputs import (
    ITEMS,
    USERS,
    double,
    double_graph,
    drawn_others,
    drawn_private,
    drawn_public,
    small_edges,
    small_graph,
)
from verfedgnn.testing.small_federation import federation, parties
from verfedgnn.training.train import train

OPEN = {
    "masking": False,
    "unprotected": "degrees",
    "optimizer": "sgd",
    "lr": 1e-4,
    "exchange.mode": "exact",
    "exchange.bits": 32,
    "exchange.every": 1,
    "exchange.backward": False,
    "estimators": False,
    "mechanism": "none",
    "gradients.clip": None,
    "batch": 0,
    "init_std": 0.3,
    "epochs": 9,
    "evaluate_every": 1,
    "average": 0.0,
    "gate": False,
}
"""Settings without protection, with exact degrees and plain gradient steps."""


class GNNContract:
    """Tests of everything the protocol relies on. Inherit from it, set `gnn` and run pytest."""

    gnn: ClassVar[type[Operator]]
    """Operator under test. A GNN with an operator for both forms has two contracts."""
    settings: ClassVar[Mapping[str, Any]] = {}
    """Settings that the GNN needs in place of the preset's, by name."""
    rmse: ClassVar[tuple[float, float] | None] = None
    """Bounds of the test RMSE on `small_federation.parties()`; unset: those of the built-in GNNs of its
    form.
    """

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
            graph = stack_graphs([small_graph(1), small_graph(2)])
            public = drawn_public(model, 2)
            private = drawn_private(model, 2)
            items = private["messages" if self.gnn.form == "messages" else "items"]
            near, users, next_items = model.operator.layer(0, public, public["users"], items, graph, None)
            assert near.own.shape == (2, USERS, dim + (not estimators))
            assert near.own.shape[-1] == model.operator.columns
            assert near.total.shape == users.shape == (2, USERS, dim)
            assert next_items.shape == (2, ITEMS, dim)

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
        assert (out.neighbourhoods[0][0, 1:] == 0).all()

    def test_gradients_are_those_of_finite_differences(self) -> None:
        """Compare the protocol's backward pass with finite differences of the loss, for every parameter in
        a random direction.

        The test runs in 64 bits: an operator must take its dtype from its inputs.
        """
        with double():
            model = self._model()
            graph = double_graph(small_graph())
            identity = IdentityProjection(USERS)
            others = torch.stack([x[0] for x in drawn_others(model)])
            public = model.flat({n: v[0] for n, v in drawn_public(model).items()})
            private = drawn_private(model)
            own = {name: value[0] for name, value in private.items()}
            rng = np.random.default_rng(4)
            user, item = np.nonzero(rng.random((USERS, ITEMS)) < 0.5)
            pairs = Pairs(
                torch.from_numpy(user), torch.from_numpy(item), torch.from_numpy(rng.normal(3, 1, len(user)))
            )
            training = Config.preset("paper", l2=0.0).training

            def loss(public: Tensor, own: Mapping[str, Tensor]) -> float:
                lead = {n: v.unsqueeze(0) for n, v in (model.views(public) | dict(own)).items()}
                out = model.propagate(lead, lead, graph, list(others.unsqueeze(1)))
                return float((out.predict(pairs.user, pairs.item) - pairs.rating).square().sum())

            work = PassInputs(own, others, Batch(pairs, USERS, ITEMS))
            (found,) = compute(model, graph, public, identity, [work], training)
            assert found.public_gradient is not None
            assert found.private_gradients is not None
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
        moved = {
            name: value[:, people] if name in model.per_user else value for name, value in public.items()
        }
        other = model.propagate(
            moved, {n: v[:, things] for n, v in private.items()}, graph, [x[:, people] for x in others]
        )
        assert_close(other.users, one.users[:, people], atol=1e-5, rtol=1e-4)
        assert_close(other.items, one.items[:, things], atol=1e-5, rtol=1e-4)
        for a, b in zip(other.neighbourhoods, one.neighbourhoods, strict=True):
            assert_close(a, b[:, people], atol=1e-5, rtol=1e-4)

    def test_a_stack_is_its_parties_one_by_one(self) -> None:
        """Check that parties computed in one stack, the smaller one padded, do not affect each other."""
        model = self._model()
        graphs = [small_graph(1), small_graph(2, items=4)]
        sizes = (ITEMS, 4)
        public = drawn_public(model, 2)
        others = drawn_others(model, 2)
        private = drawn_private(model, 2)
        for value in private.values():
            value[1, 4:] = 0
        together = model.propagate(public, private, stack_graphs(graphs), others)
        for p, size in enumerate(sizes):
            alone = model.propagate(
                {n: v[p : p + 1] for n, v in public.items()},
                {n: v[p : p + 1, :size] for n, v in private.items()},
                graphs[p],
                [x[p : p + 1] for x in others],
            )
            assert_close(together.users[p], alone.users[0], atol=1e-5, rtol=1e-4)
            assert_close(together.items[p, :size], alone.items[0], atol=1e-5, rtol=1e-4)
            for a, b in zip(together.neighbourhoods, alone.neighbourhoods, strict=True):
                assert_close(a[p], b[0], atol=1e-5, rtol=1e-4)

    # -- in a federation ---------------------------------------------------------------------------------------------------

    def test_unprotected_the_federation_is_the_pooled_model(self) -> None:
        """Check that every party predicts what one model of all items would, with the parameters of three
        rounds of training.
        """
        config = self._config(**OPEN, **{"exchange.refresh": 1 if self.gnn.form == "messages" else 2})
        runtime = federation(parties(40, 30, 500), config)
        members = list(runtime.parties.values())
        for party in members:
            for value in party.progress.private.parameters.values():
                value.add_(
                    0.3 * torch.randn(value.shape, generator=torch.Generator().manual_seed(len(value)))
                )
        for _ in range(3):
            runtime.round()
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
        lead = {n: v.unsqueeze(0) for n, v in (model.views(public) | private).items()}
        pooled = model.propagate(lead, lead, graph, None)
        runtime.round()
        start = 0
        for party in members:
            assert party.progress.evaluated is not None
            found = party.progress.evaluated[1]
            users, items = party.setup.targets.to_rating_scale(
                pooled.users[0], pooled.items[0, start : start + party.data.items]
            )
            assert_close(found["users"] @ found["items"].T, users @ items.T, atol=1e-4, rtol=1e-4)
            start += party.data.items

    def test_stacked_rounds_are_rounds_one_by_one(self) -> None:
        """Check ten rounds with plain gradient steps, where a difference in rounding stays small."""
        config = self._config(
            mechanism="none", masking=False, optimizer="sgd", lr=1e-3, batch=0, epochs=10, **self._open_sums()
        )
        stacked, single = (federation(parties(40, 30, 500), config, stack=stack) for stack in (True, False))
        for _ in range(10):
            stacked.round()
            single.round()
        assert_close(
            stacked.coordinator.replica.parameters,
            single.coordinator.replica.parameters,
            atol=1e-5,
            rtol=1e-4,
        )
        assert stacked.ledger.messages == single.ledger.messages

    def test_same_seed_same_bits(self) -> None:
        """Check that the same seed gives the same bits under the preset's protection, and another seed
        another model.
        """
        config = self._config(epochs=6, batch=0, gate=False)
        data = parties(40, 30, 500)
        drawn = [Model(config.model, 8).initial_public(0, 3.0) for _ in range(2)]
        assert torch.equal(*drawn), "`initial` draws from its `rng` alone"
        first, again, other = (train(data, config.with_values({"seed": seed})) for seed in (0, 0, 1))
        assert torch.equal(first.public, again.public)
        assert all(torch.equal(a.items, b.items) for a, b in zip(first.models, again.models, strict=True))
        assert not torch.equal(first.public, other.public)

    def test_it_learns(self) -> None:
        """Check the test RMSE in the preset of its form: below that of the mean rating (1.06); with
        messages, of user and item means (0.977).
        """
        (low, high), epochs = ((0.7, 0.95), 80) if self.gnn.form == "messages" else ((0.7, 1.03), 30)
        low, high = self.rmse or (low, high)
        run = train(parties(), self._config(epochs=epochs, evaluate_every=10, batch=0, gate=False))
        assert low < run.metrics["test"]["rmse"] < high, run.metrics["test"]["rmse"]
        assert run.ledger.total("up", kind="RoundReply") > 0

    # ----------------------------------------------------------------------------------------------------------------------

    def _config(self, **values: Any) -> Config:
        if OPERATORS.get(self.gnn.form, {}).get(self.gnn.name) is not self.gnn:
            register(self.gnn)
        messages = self.gnn.form == "messages"
        config = Config.preset("best" if messages else "paper", model=self.gnn.name)
        short = {"model.raters": 0, "training.list_epochs": 0.1} if messages else {}
        return config.with_values({**short, **values, **self.settings})

    def _open_sums(self) -> dict[str, Any]:
        messages = self.gnn.form == "messages"
        return (
            {"exchange.mode": "exact", "exchange.bits": 32, "gradients.clip": None, "gate": False}
            if messages
            else {}
        )

    def _model(self, **values: Any) -> Model:
        config = self._config(**({"dim": 4} | ({**OPEN, **values} if values else {}))).model
        return Model(config, USERS)


def _agree(found: float, slope: float, name: str) -> None:
    assert abs(found - slope) <= 1e-5 * max(1.0, abs(slope)), (
        f"{name}: backward says {found:.6g}, the loss {slope:.6g}"
    )

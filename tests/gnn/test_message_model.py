"""Preset best: message embeddings against dense references, and the federation against the pooled model (docs/model.md)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dense
from verfedgnn import Config, ConfigError
from verfedgnn.config.model_forms import PropagationModel
from verfedgnn.core.graph import build_graph
from verfedgnn.core.pairs import Pairs, PartyInput
from verfedgnn.core.random_streams import simulated_secret
from verfedgnn.gnn.model import Model
from verfedgnn.protocol.coordinator.coordinator import Coordinator
from verfedgnn.protocol.party.candidate import Candidate
from verfedgnn.protocol.party.party import Party
from verfedgnn.protocol.party.targets import Targets
from verfedgnn.protocol.round.forward_backward import PassInputs, compute
from verfedgnn.protocol.round.loss import Batch, penalty
from verfedgnn.training.local_runtime import LocalRuntime

GNNS = ["gcn", "gat", "ggnn"]
USERS, ITEMS, PARTIES, RATED = 12, 8, 3, 4


def parts(config: Config, seed: int = 0) -> list[PartyInput]:
    """Three parties where every user rates four of eight items at each: the party-side estimators are exact."""
    rng = np.random.default_rng(seed)
    inputs = []
    for p in range(PARTIES):
        item = np.concatenate([rng.choice(ITEMS, RATED, replace=False) for _ in range(USERS)])
        user = np.repeat(np.arange(USERS), RATED)
        rating = rng.integers(1, 6, len(user)).astype(np.float32)
        pairs = Pairs(torch.from_numpy(user), torch.from_numpy(item), torch.from_numpy(rating))
        inputs.append(PartyInput(f"p{p}", USERS, ITEMS, (1.0, 5.0), pairs, pairs))
    return inputs


def open_config(gnn: str, **values: object) -> Config:
    """Preset best with nothing protected, plain steps, and no regulariser."""
    off = ("l2_row", "l2_rating", "l2_messages", "l2_user_bias", "l2_item_bias", "average")
    return Config.preset("best", model=gnn).with_values(
        {
            "raters": 0,
            "masking": False,
            "exchange.mode": "exact",
            "exchange.bits": 32,
            "exchange.every": 1,
            "gradients.mechanism": "none",
        }
        | {
            "gradients.clip": None,
            "exchange.refresh": 1,
            "optimizer": "sgd",
            "gate": False,
            "dim": 3,
            "init_std": 0.5,
        }
        | {
            "lr_private": 1.0,
            "lr_messages": 1.0,
            "lr_weights": 1.0,
            "evaluate_every": 1,
            "lr": 1e-6,
            "epochs": 5,
        }
        | dict.fromkeys(off, 0.0)
        | values
    )


def federation(config: Config) -> tuple[LocalRuntime, list[Party]]:
    candidates = [
        Candidate(data, config, secret=simulated_secret(0, i)) for i, data in enumerate(parts(config))
    ]
    rng = np.random.default_rng(1)
    for candidate in candidates:
        candidate.progress.private.parameters["messages"].copy_(
            torch.from_numpy(rng.normal(0, 0.5, (ITEMS, 3)).astype(np.float32))
        )
    runtime = LocalRuntime(Coordinator(config, [each.name for each in candidates]), candidates)
    return runtime, list(runtime.parties.values())


def pooled(parties: list[Party]) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor]:
    """All items side by side: private parameters, adjacency, targets."""
    private = {
        name: torch.cat([p.progress.private.parameters[name] for p in parties]).requires_grad_()
        for name in ("items", "messages", "item_bias")
    }
    a, target = torch.zeros(USERS, PARTIES * ITEMS), torch.full((USERS, PARTIES * ITEMS), torch.nan)
    for p, party in enumerate(parties):
        train = party.setup.targets.train
        a[train.user, train.item + p * ITEMS] = 1
        target[train.user, train.item + p * ITEMS] = train.rating
    return private, a, target


@pytest.mark.parametrize("gnn", GNNS)
def test_the_federation_predicts_what_the_pooled_model_does(gnn: str) -> None:
    exact = {"estimators": False, "unprotected": "degrees", "backward": False} if gnn == "gat" else {}
    runtime, parties = federation(open_config(gnn, **exact))
    weights = runtime.coordinator.replica.model.views(runtime.coordinator.replica.parameters)
    for name in ("attention", "gru_bias"):
        if name in weights:  # both start at 0, where they would not be seen
            weights[name].copy_(torch.linspace(-0.5, 0.5, weights[name].numel()).view(weights[name].shape))
    parties[0].replica.parameters.copy_(runtime.coordinator.replica.parameters)
    public = {n: v.clone() for n, v in parties[0].model.views(parties[0].replica.parameters).items()}
    private, a, _ = pooled(parties)
    expected = dense.predict_messages(gnn, public, private, a)
    runtime.round()
    for p, party in enumerate(parties):
        assert party.progress.evaluated is not None
        model = party.progress.evaluated[1]
        found = model["users"] @ model["items"].T
        centre = party.setup.targets.centre
        assert centre == pytest.approx(float(party.data.train.rating.mean()))
        own = expected[:, p * ITEMS : (p + 1) * ITEMS]
        torch.testing.assert_close(found, (own + centre).detach(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("backward", [True, False])
def test_a_backward_exchange_trains_messages_on_everybodys_loss(backward: bool) -> None:
    """GCN: the messages' step is along the pooled gradient; without the exchange only along the own part."""
    runtime, parties = federation(open_config("gcn", backward=backward))
    runtime.round()
    before = torch.cat([p.progress.private.parameters["messages"].clone() for p in parties])
    public = {n: v.clone() for n, v in parties[0].model.views(parties[0].replica.parameters).items()}
    private, a, target = pooled(parties)
    error = (dense.predict_messages("gcn", public, private, a) - target)[~target.isnan()].square()
    (whole,) = torch.autograd.grad(error.sum(), [private["messages"]])
    runtime.round()
    step = (before - torch.cat([p.progress.private.parameters["messages"] for p in parties])) / 1e-6
    close = (step - whole).norm() / whole.norm()
    assert close < 0.05 if backward else close > 0.3


@given(seed=st.integers(0, 100), gnn=st.sampled_from(GNNS))
def test_products_along_edges_are_those_of_pairs(seed: int, gnn: str) -> None:
    """Training on all edges at once gives the gradients of training on a list of pairs."""
    rng = np.random.default_rng(seed)
    user, item = np.nonzero(rng.random((6, 5)) < 0.5)
    config = Config.preset("best", model=gnn, dim=3, raters=0).model
    model, graph = Model(config, 6), build_graph(user, item, users=6, items=5)
    public = model.initial_public(seed, 3.0)
    private = model.initial_private(rng, 5, 3.0)
    pairs = Pairs(
        torch.from_numpy(user),
        torch.from_numpy(item),
        torch.from_numpy(rng.normal(size=len(user)).astype(np.float32)),
    )
    training = Config.preset("best").training
    one, other = (
        compute(
            model, graph, public, None, [PassInputs(private, None, Batch(pairs, 6, 5, edges=edges))], training
        )[0]
        for edges in (True, False)
    )
    assert one.public_gradient is not None
    assert one.private_gradients is not None
    assert other.private_gradients is not None
    torch.testing.assert_close(one.public_gradient, other.public_gradient, atol=1e-4, rtol=1e-4)
    for name, gradient in one.private_gradients.items():
        torch.testing.assert_close(gradient, other.private_gradients[name], atol=1e-4, rtol=1e-4)


def test_regularisers_by_hand() -> None:
    """Two users, one item, three ratings: every weight where docs/model.md has it."""
    pairs = Pairs(torch.tensor([0, 0, 1]), torch.tensor([0, 0, 0]), torch.zeros(3))
    work = PassInputs({}, None, Batch(pairs, 2, 1, share=0.5))
    graph = build_graph(np.array([0, 1]), np.array([0, 0]), users=2, items=1)
    leaves = {
        "users": torch.tensor([[[1.0], [2.0]]]),
        "items": torch.tensor([[[3.0]]]),
        "messages": torch.tensor([[[2.0]]]),
    }
    leaves |= {"item_bias": torch.tensor([[[5.0]]]), "own_users": torch.tensor([[[1.0], [3.0]]])}
    training = Config(masking=False).training.model_copy(
        update={"l2_rating": 0.1, "l2_messages": 0.01, "l2_item_bias": 2.0, "l2_row": 4.0, "l2_residual": 0.5}
    )
    per_rating = 0.1 * (2 * 1 + 1 * 4 + 3 * 9) + 0.01 * 3 * 4 + 0.5 * (2 * 1 + 1 * 9)
    per_row = 0.5 * (4.0 * (9 + 4 + 10) + 2.0 * 25)
    assert penalty(leaves, [work.batch], graph, training).item() == pytest.approx(per_rating + per_row)


def test_targets_are_in_quarters_of_the_scale_around_the_mean() -> None:
    pairs = Pairs(torch.tensor([1, 0]), torch.tensor([0, 0]), torch.tensor([10.0, 2.0]))
    data = PartyInput("p", 2, 1, (1.0, 10.0), pairs, pairs)
    targets = Targets.of(data, Config.preset("best"))
    assert targets.train.rating.tolist() == pytest.approx([-4 / 2.25, 4 / 2.25])  # in the order of users
    users, items = targets.to_rating_scale(torch.tensor([[0.0], [1.0]]), torch.tensor([[2.0]]))
    assert (users @ items.T).flatten().tolist() == pytest.approx([6.0, 6.0 + 2 * 2.25])
    error, count = targets.validate(users, items)
    assert (error, count) == (pytest.approx((10.5 - 10) ** 2 + (6 - 2) ** 2), 2)


def test_an_own_user_embedding_stays_private() -> None:
    config = open_config("gcn", residual=True)
    assert "own_users" in Model(config.model, 5).private_shapes(3)
    assert not any("own" in name for name in Model(config.model, 5).shapes)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model\.layers belongs to model\.form = propagation"):
        Config.preset("best", layers=2)
    with pytest.raises(ConfigError, match=r"set model\.form = messages"):
        Config.preset("paper", backward=True)
    with pytest.raises(ConfigError, match="protected by masks"):
        Config.preset("best", masking=False)
    with pytest.raises(ConfigError, match=r"noise and exchange.row_clip"):
        Config.preset("best", mode="noised")
    assert PropagationModel().form == "propagation"

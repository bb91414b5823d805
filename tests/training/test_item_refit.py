"""The re-estimation of a party's items at home: against a direct solution, on noise, and without effect on what is sent."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import verfedgnn as vf
from verfedgnn.config.sections import Sizes
from verfedgnn.core.pairs import Choices, Pairs, PartyInput
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.prepared_data import choose_config, prepare
from verfedgnn.training import own_models
from verfedgnn.training.gate import gate_party
from verfedgnn.training.own_models import own_rating_models, refit_items


def noisy_party(*, noise: float, seed: int = 0) -> tuple[PartyModel, PartyInput]:
    """Return ratings of known vectors, and a model with the right users whose items are wrong by `noise`."""
    rng = np.random.default_rng(seed)
    users = torch.from_numpy(rng.normal(0, 1, (60, 3))).float()
    users[:, 2] = 1
    items = torch.from_numpy(rng.normal(0, 0.5, (12, 3))).float()
    items[:, 2] += 3
    user, item = (torch.from_numpy(each) for each in np.divmod(rng.permutation(60 * 12), 12))
    rating = (users[user] * items[item]).sum(1) + torch.from_numpy(rng.normal(0, 0.1, len(user))).float()
    parts = [
        Pairs(user[rows], item[rows], rating[rows])
        for rows in (slice(0, 400), slice(400, 560), slice(560, 720))
    ]
    data = PartyInput("p", 60, 12, (-10.0, 10.0), *parts[:2])
    wrong = items + noise * torch.from_numpy(rng.normal(0, 1, items.shape)).float()
    return PartyModel(users, wrong, wrong[:, :2]), data


def test_items_are_those_of_ridge_regression() -> None:
    model, data = noisy_party(noise=1.0)
    found = refit_items(model, data, Choices())
    spread = model.users[data.train.user][:, :2].double().var(0, unbiased=False)
    errors = []
    for strength in own_models.STRENGTHS:
        for damping in own_models.BIAS_DAMPINGS:
            penalty = torch.diag(torch.cat([strength * spread, torch.tensor([damping], dtype=torch.float64)]))
            items = model.items.double().clone()
            for v in range(data.items):
                rows = data.train.item == v
                x = model.users[data.train.user[rows]].double()
                y = data.train.rating[rows].double()
                right = x.T @ y + penalty @ model.items[v].double()
                items[v] = torch.linalg.solve(x.T @ x + penalty, right)
            predicted = (model.users[data.valid.user].double() * items[data.valid.item]).sum(1)
            errors.append((float((predicted - data.valid.rating).square().sum()), items))
    best = min(errors, key=lambda each: each[0])[1]
    torch.testing.assert_close(found.items.double(), best, atol=1e-4, rtol=1e-4)


def test_right_items_stay_and_wrong_ones_are_mended() -> None:
    for noise, largest in ((0.0, 0.05), (1.0, 0.25)):
        model, data = noisy_party(noise=noise)
        true = noisy_party(noise=0.0)[0].items
        assert float((refit_items(model, data, Choices()).items - true).abs().mean()) < largest


def test_columns_that_all_items_share_are_kept() -> None:
    model, data = noisy_party(noise=1.0)
    items = model.items.clone()
    items[:, 2] = 3.0
    found = refit_items(PartyModel(model.users, items, items[:, :2]), data, Choices())
    assert (found.items[:, 2] == 3.0).all()


def test_an_item_of_the_second_model_reads_y() -> None:
    """Users are (w, b, 1, y, 1), and items (h, 1, b, 0, mean). With four orthogonal raters, a ridge divides by 4 + lambda."""
    w, y = torch.tensor([1.0, 1, -1, -1]), torch.tensor([1.0, -1, 1, -1])
    one = torch.ones(4)
    users = torch.stack([w, 0 * one, one, y, one], 1)
    items = torch.tensor([[0.5, 1, 0.1, 0, 3], [-0.5, 1, -0.1, 0, 3]])
    user, item = torch.arange(4).repeat(2), torch.tensor([0, 1]).repeat_interleave(4)
    rating = (users[user] * items[item]).sum(1) + torch.where(item == 0, 1.0, -1.0) * y[user]
    pairs = Pairs(user, item, rating)
    data = PartyInput("p", 4, 2, (-10.0, 10.0), pairs, pairs)
    found = refit_items(PartyModel(users, items, items), data, Choices(), "items of raters", 1)
    reads = 4 / (4 + 2 * own_models.STRENGTHS[0])
    true = items.clone()
    true[:, 3] = torch.tensor([reads, -reads])
    torch.testing.assert_close(found.items, true)


def test_a_party_fits_the_items_of_both_second_models(
    small_parties: list[vf.PartyData], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both the federated one and its own read y_u, which costs no byte; on all ratings it repeats the strength."""
    monkeypatch.setattr(own_models, "choose_sizes", lambda users, ratings: Sizes(4, 3, 4))
    monkeypatch.setattr(own_models, "ROUNDS", 3)
    config = vf.Config.preset("best", epochs=4, raters=3, lists=False, final=False)
    config = choose_config(small_parties, config.with_values({"gate": False}))
    trained = vf.train(small_parties, config)
    (party, *_) = prepare(small_parties, config, torch.device("cpu"))
    choices = Choices()
    for made in (choices, choices.repeat()):
        ways = gate_party(party, trained.models[0], trained.public, config, made)
        for way, name in (("alone", "alone raters"), ("federated", "federated raters")):
            assert choices.recorded[f"items of {name}"] is not None
            assert name in ways[way].known
    own = own_rating_models(party.input, 0, Choices())["alone raters"]
    assert own.items[:, 5:-1].any()


def test_a_private_run_sends_the_same_with_and_without_its_gate(small_parties: list[vf.PartyData]) -> None:
    """What a party re-estimates at home changes neither the public parameters nor the budget nor the bytes."""
    runs = [
        vf.train(small_parties, vf.Config.preset("private", epochs=4, gate=gate)) for gate in (False, True)
    ]
    assert torch.equal(runs[0].public, runs[1].public)
    plain, gated = (run.metrics for run in runs)
    assert plain["bytes"] == gated["bytes"]
    assert plain["privacy"] == gated["privacy"]
    assert gated["federated_model"]["rmse"] == plain["test"]["rmse"]
    assert gated["valid"]["rmse"] < plain["valid"]["rmse"]

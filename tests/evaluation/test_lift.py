"""Whether joining pays: the bootstrap, the gate, lift by party and by own ratings; tuning; ranking."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from verfedgnn.training.gate import blend, choose

import verfedgnn as vf
from verfedgnn.config import load_config
from verfedgnn.core.pairs import Pairs
from verfedgnn.evaluation.bootstrap import gain
from verfedgnn.evaluation.lift import lift
from verfedgnn.evaluation.lift_plots import draw_lift, draw_study
from verfedgnn.gnn.model import Propagation
from verfedgnn.protocol.round.forward_backward import PassInputs
from verfedgnn.protocol.round.loss import Batch, _ranking_loss
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.run_evaluation import evaluate
from verfedgnn.training.tuning import Range, parse_space, tune


def best(**values: Any) -> vf.Config:
    return vf.Config.preset("best").with_values({"epochs": 40, "dim": 4} | values)


def test_a_real_gain_is_seen_and_none_is_not_made_up() -> None:
    rng = np.random.default_rng(0)
    user = rng.integers(0, 200, 4000)
    error = rng.normal(size=4000)
    worse = error + 0.3 * rng.normal(size=4000)
    found = gain(user, worse**2, error**2)
    assert found is not None
    assert found.pays == "yes"
    assert found.low < found.value < found.high
    back = gain(user, error**2, worse**2)
    assert back is not None
    assert back.pays == "no"
    assert gain(user[:0], error[:0], error[:0]) is None


def test_the_interval_holds_as_often_as_it_says() -> None:
    """200 comparisons of equally good models: 95 % of the intervals hold 0, and 24 misses have a chance of 1 in 10,000."""
    rng = np.random.default_rng(1)
    missed = 0
    for seed in range(200):
        user = rng.integers(0, 80, 800)
        shift = rng.normal(size=(2, 80))  # errors of one user go together
        a, b = (shift[i][user] * 0.5 + rng.normal(size=800) for i in (0, 1))
        found = gain(user, a**2, b**2, seed=seed)
        assert found is not None
        missed += found.pays != "cannot tell"
    assert missed < 24


@given(g=st.floats(-0.5, 1.5), seed=st.integers(0, 100))
def test_the_gate_finds_the_mixture(g: float, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    models = [
        PartyModel(torch.randn(6, 2, generator=rng), torch.randn(5, 2, generator=rng), torch.zeros(5, 2))
        for _ in range(2)
    ]
    user, item = torch.arange(30) % 6, torch.arange(30) % 5
    predicted = [(m.users[user] * m.items[item]).sum(-1) for m in models]
    pairs = Pairs(user, item, g * predicted[0] + (1 - g) * predicted[1])
    gate = choose(models[0], models[1], pairs)
    assert gate == pytest.approx(min(1.0, max(0.0, g)), abs=1e-3)
    mixed = blend(models[0], models[1], gate)
    torch.testing.assert_close(
        (mixed.users[user] * mixed.items[item]).sum(-1),
        gate * predicted[0] + (1 - gate) * predicted[1],
        atol=1e-4,
        rtol=1e-4,
    )


def test_nobody_is_worse_off(small_parties: list[vf.PartyData], tmp_path: Path) -> None:
    """Parties whose ratings have nothing in common: the gate leaves each with what it has alone."""
    rng = np.random.default_rng(3)
    odd = [
        vf.PartyData(p.name, replace(p.ratings, rating=rng.permutation(p.ratings.rating)))
        for p in small_parties
    ]
    run = vf.train([small_parties[0], *odd[1:]], best(), out=tmp_path / "run")
    found = lift(run)
    for party in found["parties"]:
        assert party["federated"] < 1.02 * party["alone"]
    assert run.alone is not None
    again = vf.Run.load(tmp_path / "run")
    assert again.alone is not None
    assert torch.equal(again.alone[0].users, run.alone[0].users)
    assert all(0 <= party["gate"] <= 1 for party in again.metrics["parties"])


def test_lift_tells_parties_and_users_apart(small_parties: list[vf.PartyData], tmp_path: Path) -> None:
    run = vf.train(small_parties, best())
    found = lift(run)
    for row in [*found["parties"], found["overall"], *found["by_own_ratings"]]:
        assert row["pays"] in ("yes", "no", "cannot tell")
        assert row["gain"]["low"] <= row["gain"]["rmse"] <= row["gain"]["high"]
    tests = sum(int((part == 2).sum()) for part in run.parts)
    assert sum(row["ratings"] for row in found["by_own_ratings"]) == tests
    assert found["overall"]["federated"] == pytest.approx(run.metrics["test"]["rmse"], abs=1e-6)
    assert draw_lift(found, tmp_path / "lift.png")
    assert (tmp_path / "lift.png").read_bytes().startswith(b"\x89PNG")


def test_softmax_by_hand() -> None:
    users, items = torch.tensor([[[1.0], [0.0]]]), torch.tensor([[[0.0], [2.0]]])
    out = Propagation(users, items, [])
    pairs = Pairs(torch.tensor([0, 1]), torch.tensor([1, 0]), torch.zeros(2))
    work = PassInputs({}, None, Batch(pairs, 2, 2))
    expected = np.log(1 + np.e**2) - 2 + np.log(2)
    assert _ranking_loss(out, [work.batch]).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("negatives", [0, 20])
def test_a_ranking_learns_who_likes_what(small_parties: list[vf.PartyData], negatives: int) -> None:
    """Every user likes every other item, odd users the odd ones: popularity cannot tell them apart."""
    parties = [
        vf.PartyData(
            p.name,
            replace(
                p.ratings, rating=np.where(p.ratings.user % 2 == p.ratings.item % 2, 5, 1).astype(np.float32)
            ),
        )
        for p in small_parties
    ]
    values = {"epochs": 80, "dim": 8, "negatives": negatives, "l2_row": 0.5}
    run = vf.train(parties, vf.Config.preset("ranking").with_values(values))
    assert run.metrics["test"]["rmse"] is None
    assert "valid_ndcg@20" in run.history[0]
    prepared = run.prepared()
    popular = [
        (
            torch.ones(p.party.ratings.n_users, 1),
            torch.bincount(p.train.item, minlength=p.party.ratings.n_items)[:, None].float(),
        )
        for p in prepared
    ]
    assert run.metrics["test"]["ndcg@20"] > 1.1 * evaluate(prepared, popular)["test"]["ndcg@20"]
    with pytest.raises(vf.ConfigError, match="a ranking predicts none"):
        lift(run)


def test_tuning_goes_on_where_it_stopped(small_parties: list[vf.PartyData], tmp_path: Path) -> None:
    space = {"training.lr": Range(0.01, 0.3), "model.dim": [2, 4]}
    told: list[int] = []
    options: dict[str, Any] = {
        "study": tmp_path / "study.db",
        "space": space,
        "watch": lambda t: told.append(t.number),
    }
    first = tune(small_parties, best(epochs=20), trials=2, **options)
    assert told == [1, 2]
    second = tune(small_parties, best(epochs=20), trials=4, **options)
    assert told == [1, 2, 3, 4]
    assert second.error <= first.error
    (tmp_path / "mine.toml").write_text(second.to_preset())
    assert second.to_preset().startswith("# Chosen by verfedgnn tune")
    assert load_config(tmp_path / "mine.toml") == second.config
    assert vf.Config.preset(str(tmp_path / "mine.toml")) == second.config
    run = vf.train(small_parties, second.config.with_values({"gate": False}))
    assert run.metrics["valid"]["rmse"] == pytest.approx(second.error, abs=1e-6)
    with pytest.raises(vf.ConfigError, match="other data, settings or ranges"):
        tune(small_parties, best(epochs=21), trials=5, **options)
    assert draw_study(second.history, tmp_path / "study.png")


def test_spaces_are_read_or_refused() -> None:
    space = parse_space(["training.lr=0.02:0.4", "model.dim=16|32", "model.gnn=gcn|gat"])
    assert space == {"training.lr": Range(0.02, 0.4), "model.dim": [16, 32], "model.gnn": ["gcn", "gat"]}
    for wrong in ("lr=1:2", "training.lr", "training.lr=2:1", "training.lr=a:b"):
        with pytest.raises(vf.ConfigError):
            parse_space([wrong])

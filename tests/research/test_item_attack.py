"""What attackers who know the algorithm read in all releases: planted systems by hand, and small federations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import verfedgnn as vf
from verfedgnn.data.parties import parties_from_tables
from verfedgnn.data.synthetic import synthetic_tables
from verfedgnn.gnn.list_model import pair_targets
from verfedgnn.protocol.solved_round import STEPS_PER_DEVIATION
from verfedgnn_research.attacks.item_attack import (
    Surroundings,
    attack_items,
    item_odds,
    item_parts,
    judge_odds,
    log_likelihood_ratios,
    read_fakes,
    read_tables,
    unexplained,
)
from verfedgnn_research.attacks.recording import record_federation
from verfedgnn_research.attacks.release_view import ItemSeries, ReleaseView, watch_releases

ITEMS, USERS, ROUNDS, DIM = 12, 40, 8, 4


def planted_system(noise: float) -> tuple[ReleaseView, torch.Tensor, torch.Tensor]:
    """Rows that are exactly g_u = sum_v x_v (r_uv - r^_uv) plus noise, then one row for a fake account of each item."""
    generator = torch.Generator().manual_seed(3)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    items = ItemSeries(draw(ITEMS, ROUNDS, DIM), torch.zeros(ITEMS, ROUNDS), torch.ones(ROUNDS))
    items = replace(items, pull=torch.zeros(ROUNDS, DIM + 1, DIM))
    has = torch.cat([torch.rand(USERS, ITEMS, generator=generator) < 0.4, torch.eye(ITEMS, dtype=torch.bool)])
    rating = draw(*has.shape)
    view = ReleaseView(
        kind="ratings",
        parties=2,
        rows={},
        own=torch.zeros(USERS, ROUNDS, DIM + 1),
        scale=torch.ones(len(has), ROUNDS, DIM + 1),
        users=0.3 * draw(len(has), ROUNDS, DIM + 1),
        raters=None,
        exact={},
        added=torch.full((DIM + 1,), noise),
        own_items=items,
        target_items=items,
    )
    rows = torch.zeros(len(has), ROUNDS, DIM + 1)
    for user in range(len(has)):
        parts = item_parts(view, items, user)
        rows[user] = (
            has[user].view(-1, 1, 1) * (parts[:, 0] + rating[user].view(-1, 1, 1) * parts[:, 1])
        ).sum(0)
    rows = rows + noise * draw(*rows.shape)
    return replace(view, rows={"party": rows, "colluders": rows}), has[:USERS], rating


@pytest.mark.parametrize("how", ["insider", "fakes"])
def test_a_planted_system_is_solved_without_protection_and_not_under_noise(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """40 equations a user for 24 unknowns; exact rows give every item, and noise of four times their size gives none."""
    monkeypatch.setattr("verfedgnn_research.attacks.release_view.ROUNDING", 1e-6)
    monkeypatch.setattr("verfedgnn_research.attacks.item_attack.MEMORY", 0.05)  # these items change at random
    share = torch.full((ITEMS,), 0.4).double()
    found = {}
    for noise in (0.0, 20.0):
        view, truth, _ = planted_system(noise)
        items = view.target_items if how == "insider" else read_fakes(view, "party", USERS)
        odds = item_odds(view, items, "party", USERS, share, 0.0)
        found[noise] = judge_odds(odds, truth, ~truth, truth.sum(0))
        if noise == 0.0 and how == "insider":
            assert torch.equal(odds > 0, truth)
    assert found[0.0]["within"] > (0.999 if how == "insider" else 0.97)  # type: ignore[operator]
    assert found[20.0]["within"] < 0.62  # type: ignore[operator]


def test_a_likelihood_ratio_by_hand() -> None:
    """One item of weight w ~ N(1, 1/2) in one column of 2: x = 2 w + n against x = n, both with noise of variance 1."""
    row, share = torch.tensor([1.5]).double(), torch.tensor([0.5]).double()
    mean, square = share * 1.0, share * 1.5
    prior = (square - mean.square()).view(1, 1, 1)
    found = log_likelihood_ratios(torch.tensor([[2.0]]).double(), row, mean.unsqueeze(1), prior, (1.0, 0.5))
    there = torch.distributions.Normal(2.0, 3.0**0.5).log_prob(row)
    absent = torch.distributions.Normal(0.0, 1.0).log_prob(row)
    assert torch.allclose(found, there - absent)


def test_whitened_noise_is_white() -> None:
    generator = torch.Generator().manual_seed(0)
    others = torch.randn(2000, 3, generator=generator) @ torch.randn(3, 6, generator=generator)
    noise = torch.tensor([0.5, 1.0, 2.0, 1.0, 0.3, 0.7])
    around = Surroundings.of(noise, others, 2.0)
    rows = 2**0.5 * others + noise.sqrt() * torch.randn(2000, 6, generator=generator)
    assert torch.allclose(torch.cov(around.whiten(rows).T), torch.eye(6), atol=0.12)


def test_known_users_show_others_with_the_same_row() -> None:
    rows = torch.eye(4).repeat(10, 1) + 0.01 * torch.randn(40, 4, generator=torch.Generator().manual_seed(1))
    truth = torch.eye(4, dtype=torch.bool).repeat(10, 1)
    known = truth.clone()
    known[20:] = False
    odds = read_tables({"users": rows}, known, 40)
    assert judge_odds(odds, truth & ~known, ~truth, truth.sum(0), None, known)["all"] == 1


@pytest.fixture(scope="module")
def three() -> list[vf.PartyData]:
    """Three parties with 20 items each."""
    return vf.split_items(
        vf.data.synthetic_ratings(users=150, items=60, ratings=3500, seed=5), parties=3, seed=5
    )


def test_rows_of_a_federation_are_the_parts_of_its_items(three: list[vf.PartyData]) -> None:
    """Up to rounding, and without chance in what the second model reads."""
    for chosen in (
        vf.Config.preset("best", **{"lists": False, "model.raters": 0, "model.dim": 8}),
        vf.Config.preset("best", **{"model.dim": 8}).for_lists(),
    ):
        federation = record_federation(three, chosen)
        view = watch_releases(federation, attacker=0, target=1, chosen=torch.arange(20), rounds=4)
        party = federation.parties[1]
        has = party.neighbours[:20]
        targets = torch.zeros(has.shape)
        edges = party.graph.edge_users < 20
        targets[party.graph.edge_users[edges].long(), party.graph.by_user[1][edges].long()] = (
            party.setup.solved_targets[edges]
        )
        for user in range(20):
            parts = item_parts(view, view.target_items, user)
            weight = targets[user].view(-1, 1, 1)
            if view.kind == "ratings":
                made = has[user].view(-1, 1, 1) * parts[:, 0] + weight * parts[:, 1]
            else:  # parts are those of a liked pair, whose target is 1
                lower = (pair_targets(weight) - 1) * view.target_items.vectors / view.scale[user]
                made = weight * (parts[:, 0] + lower)
            assert torch.allclose(made.sum(0), view.exact["colluders"][user], atol=0.05, rtol=1e-3)
        assert (view.rows["colluders"] - view.exact["colluders"]).abs().max() <= 1


@pytest.mark.parametrize(("parties", "raters", "noise"), [(3, 0, 0.0), (3, 4, 0.1), (2, 4, 0.25)])
def test_an_attacker_knows_the_noise_of_the_defaults(parties: int, raters: int, noise: float) -> None:
    shops = parties_from_tables(synthetic_tables(parties, 0.5, users=40, items=20, ratings=900))
    config = vf.Config.preset("best", lists=False, dim=6, raters=raters)
    view = watch_releases(
        record_federation(shops, config), attacker=0, target=1, chosen=torch.arange(20), rounds=3
    )
    left = (view.rows["colluders"] - view.exact["colluders"]).flatten(0, 1)
    assert view.added[0] == pytest.approx(STEPS_PER_DEVIATION * noise)
    if noise:
        assert left[:, :7].std() == pytest.approx(float(view.added[0]), rel=0.15)
        assert left[:, 7:12].std() == pytest.approx(float(view.added[-1]), rel=0.15)


def test_attacks_on_a_federation_and_their_guesses(three: list[vf.PartyData]) -> None:
    config = vf.Config.preset("best", lists=False)
    found = attack_items(three, config, rounds=12, victims=60)
    assert list(found) == [
        "party, fakes", "party, insider", "colluders, fakes", "colluders, insider", "public tables", "one rating",
        "party, both trainings",
    ]  # fmt: skip
    assert found["colluders, insider"]["held"] > 0.9  # type: ignore[operator]
    assert found["one rating"]["all"] > 0.95  # type: ignore[operator]
    noised = attack_items(three, config.with_values({"gradients.noise": 0.25}), rounds=12, victims=60)
    assert noised["colluders, insider"]["held"] < found["colluders, insider"]["held"]  # type: ignore[operator]
    assert noised["one rating"]["shift"] < found["one rating"]["shift"] / 4  # type: ignore[operator]
    stepped = attack_items(three, vf.Config.preset("paper"), rounds=4, victims=20, method="party")
    assert list(stepped) == ["party, fakes", "party, insider"]


def test_what_a_second_training_adds_is_what_the_first_does_not_explain() -> None:
    """Equal odds add nothing; odds that rise for one pair single it out, whatever their scale."""
    before = torch.randn(9, 4, generator=torch.Generator().manual_seed(1)).double()
    asked = torch.ones(9, 4, dtype=torch.bool)
    assert unexplained(3 * before + 1, before, asked).abs().max() < 1e-9
    after = before.clone()
    lowest = int(before[:, 2].argmin())
    after[lowest, 2] = 9.0
    assert int(unexplained(after, before, asked)[:, 2].argmax()) == lowest


def test_users_of_two_parties_are_judged_apart() -> None:
    parties = parties_from_tables(synthetic_tables(3, 0.5, users=200, items=30, ratings=4_000))
    config = vf.Config.preset("best").for_lists()
    found = attack_items(parties, config, rounds=6, victims=100, method="party, insider")
    assert found["party, insider"]["alone"] is not None
    pair = parties_from_tables(synthetic_tables(2, 0.5, users=200, items=30, ratings=4_000))
    two = attack_items(pair, config, rounds=6, victims=40, method="insider")
    assert list(two) == ["party, insider"]
    assert "alone" not in two["party, insider"]
    with pytest.raises(vf.ConfigError, match="no attack has 'magic'"):
        attack_items(pair, config, rounds=2, victims=5, method="magic")
    assert np.isfinite(two["party, insider"]["all"])

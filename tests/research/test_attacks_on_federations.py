"""Attacks the paper does not try, on small federations whose messages are read."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from projection_theory import (
    known_rows,
    read_off,
    relative_error,
    sent_neighbourhoods,
)
from test_attacks_beyond_the_paper import generator

import verfedgnn as vf
from helpers import config, federation
from verfedgnn.core.errors import ConfigError, ProtocolError
from verfedgnn.core.pairs import Pairs
from verfedgnn.core.rating_means import USER_MEAN_COLUMNS
from verfedgnn.privacy.projection import Projection
from verfedgnn.research.attacks.adversaries import plant
from verfedgnn.research.attacks.collusion import Exposure, honest_sum
from verfedgnn.research.attacks.coordinator_attack import attack_gradients
from verfedgnn.research.attacks.count_sketch import CountSketch
from verfedgnn.research.attacks.curious_coordinator import read_trip, strength
from verfedgnn.research.attacks.many_releases import ReleaseAverage
from verfedgnn.research.attacks.membership_inference import membership, squared_errors
from verfedgnn.research.attacks.projection_inverse import dense_projection
from verfedgnn.research.attacks.recording import TOGETHER, RecordedFederation, record_federation
from verfedgnn.research.attacks.sparse_recovery import omp
from verfedgnn.research.attacks.sum_attacks import attack_sums
from verfedgnn.runs.prepared_data import split_ratings


def best(**values: object) -> vf.Config:
    return vf.Config.preset("best", **({"epochs": 200, "gate": False, "dim": 16} | values))


@pytest.fixture(scope="module")
def four(small_parties: list[vf.PartyData]) -> list[vf.PartyData]:
    """Four parties, 120 users, 22 or 23 items each."""
    table = vf.data.synthetic_ratings(users=120, items=90, ratings=3000, seed=5)
    return vf.split_items(table, parties=4, seed=5)


def test_a_tapped_federation_sends_what_any_other_sends(small_parties: list[vf.PartyData]) -> None:
    chosen = config()
    ordinary = federation(small_parties, chosen)
    watched = record_federation(small_parties, chosen)
    for _ in range(4):
        ordinary.round()
        trip = watched.round()
    assert torch.equal(ordinary.coordinator.replica.parameters, watched.coordinator.replica.parameters)
    assert sorted(trip.replies) == sorted(trip.starts) == sorted(party.name for party in small_parties)
    projection = watched.parties[0].projection
    assert isinstance(projection, Projection)
    for party in watched.parties:
        y = sent_neighbourhoods(watched, trip)[party.data.name]
        assert torch.allclose(y[0], projection.project(party.neighbourhood(party.exchanged)), atol=2**-20)
        signs = watched.sent_gradients(trip)[party.data.name]
        assert set(signs.unique().tolist()) <= {-1.0, 0.0, 1.0}
        assert not signs[party.gradient[: signs.numel()].view_as(signs) == 0].any()


@pytest.mark.parametrize("chosen", [config(), config(gnn="ggnn"), best()])
def test_rows_are_sums_of_atoms(small_parties: list[vf.PartyData], chosen: vf.Config) -> None:
    watched = record_federation(small_parties, chosen)
    for _ in range(3):
        watched.round()
    party = watched.parties[1]
    truth = party.neighbours
    x = party.neighbourhood(party.exchanged)
    count = truth.sum(1, keepdim=True).clamp(min=1)
    f = 1 / count if (chosen.model.form, chosen.model.gnn) == ("propagation", "ggnn") else count.rsqrt()
    assert torch.allclose(x, f * (truth.float() @ party.atoms(party.exchanged)), atol=1e-6)
    gat = record_federation(small_parties, config(gnn="gat"))
    gat.round()
    with pytest.raises(ConfigError, match="GAT"):
        gat.parties[0].atoms(gat.parties[0].exchanged)


def test_masked_messages_show_their_sum_only(small_parties: list[vf.PartyData]) -> None:
    watched = record_federation(small_parties, best())
    trip = watched.round()
    total = sent_neighbourhoods(watched, trip)
    assert list(total) == list(watched.sent_gradients(trip)) == [TOGETHER]
    true = torch.stack([party.neighbourhood(party.exchanged) for party in watched.parties]).sum(0)
    columns = watched.coordinator.model.operator.columns
    assert total[TOGETHER].shape[2] == columns + USER_MEAN_COLUMNS
    assert torch.allclose(total[TOGETHER][0, :, :columns], true, atol=3 * 2**-11 + 1e-6)
    nothing = record_federation(small_parties, config(form="messages", **{"exchange.mode": "off"}))
    with pytest.raises(ConfigError, match="no sum"):
        nothing.exchange()


def test_all_but_one_have_the_others_matrix_and_all_but_two_the_sum_of_two(four: list[vf.PartyData]) -> None:
    watched = record_federation(four, best())
    for _ in range(4):
        exchange = watched.exchange()
    exact = [party.neighbourhood(knows) for party, knows in zip(watched.parties, exchange.knows, strict=True)]
    rounding = 2**-11 + 1e-6
    three = honest_sum(exchange.start, exchange.sent[:3], 16, 16)[0]
    assert torch.allclose(three, exact[3], atol=rounding)
    two = honest_sum(exchange.start, exchange.sent[:2], 16, 16)[0]
    assert torch.allclose(two, exact[2] + exact[3], atol=2 * rounding)
    assert not torch.allclose(two, exact[3], atol=20 * rounding)
    with pytest.raises(ProtocolError, match="another sum"):
        honest_sum(watched.exchange().start, exchange.sent[:3], 16, 16)


def test_in_64_bits_what_is_left_is_exact_to_float_rounding(four: list[vf.PartyData]) -> None:
    watched = record_federation(four, config(**{"exchange.mode": "exact", "exchange.bits": 64}))
    exchange = watched.exchange()
    columns = watched.coordinator.model.operator.columns
    left = honest_sum(exchange.start, [exchange.sent[p] for p in (0, 1, 3)], 64, columns)[0]
    true = watched.parties[2].neighbourhood(exchange.knows[2])
    assert torch.allclose(left, true, rtol=1e-6, atol=2**-32)


def test_who_is_exposed_by_how_many() -> None:
    assert [Exposure(4, colluders).summed for colluders in (1, 2, 3)] == [3, 2, 1]
    assert Exposure(10, 1).noise_left == 1
    assert Exposure(10, 9).noise_left == pytest.approx(1 / 9)


def scores(found: dict[str, float]) -> tuple[float, float]:
    guess = found["guess"]
    assert isinstance(guess, dict)
    return found["f1"], guess["f1"]


def test_masked_sums_give_items_away_to_fake_accounts(four: list[vf.PartyData]) -> None:
    """Four parties with 16 columns: one party alone finds more than half, all but one colluding find everything."""
    found = attack_sums(four, best(), rounds=100)
    assert set(found) >= {
        "party, insider, nnls",
        "colluders, insider, polished",
        "colluders, fakes, all exchanges",
    }
    assert found["colluders, fakes, all exchanges"]["exact"] > 0.95
    single, guess = scores(found["party, fakes, all exchanges"])
    assert single > guess + 0.1
    once, guess = scores(found["colluders, insider, polished"])
    assert once > guess


def test_noised_sums_give_items_away_to_who_expects_the_noise(four: list[vf.PartyData]) -> None:
    """Noise of 0.05: reading rows as if they were exact finds little, expecting the noise much, for an insider most."""
    noised = best(**{"exchange.mode": "noised", "exchange.noise": 0.05, "exchange.row_clip": 1.0})
    found = attack_sums(four, noised, rounds=100, copies=2)
    old, _ = scores(found["colluders, fakes, all exchanges"])
    new, guess = scores(found["colluders, fakes, noise expected"])
    assert new > max(old, guess) + 0.2
    alone, guess = scores(found["party, fakes, noise expected"])
    assert alone > guess + 0.1
    for who in ("colluders", "party"):
        fakes, insider = (found[f"{who}, {how}, noise expected"]["auc"] for how in ("fakes", "insider"))
        assert insider["within"] > fakes["within"] > 0.55
        assert insider["all"] > insider["guess"]
        assert insider["held"] > 0.6


def test_projected_sums_keep_rows_but_not_from_an_insider_over_rounds(four: list[vf.PartyData]) -> None:
    found = attack_sums(four, config(epochs=12), rounds=40)
    for name in ("colluders, insider, omp", "colluders, fakes, subset, ridge", "party, fakes, all exchanges"):
        reached, guess = scores(found[name])
        assert reached < guess + 0.05  # as for the paper's own attacks
    known = found["colluders, insider, all exchanges"]
    assert known["precision"] > 0.95
    assert known["recall"] > 0.1


def trips(watched: RecordedFederation, count: int) -> list[dict[str, float]]:
    readings = []
    for _ in range(count):
        trip = watched.round()
        for reading in read_trip(watched, trip, generator()).values():
            readings.append({"auc": reading.separation.auc, "proven": reading.proven, "false": reading.false})
    return readings


@pytest.fixture(scope="module")
def sparse() -> list[vf.PartyData]:
    """Three parties at which many of 300 users have nothing."""
    return vf.split_items(
        vf.data.synthetic_ratings(users=300, items=90, ratings=1800, seed=2), parties=3, seed=2
    )


@pytest.mark.parametrize(
    ("mechanism", "masked", "least", "most"),
    [
        ("none", False, 0.999, 1.0),
        ("ternary", False, 0.55, 0.95),
        ("laplace", False, 0.4, 0.65),
        ("ternary", True, 0.4, 0.8),
    ],
)
def test_the_coordinator_sees_who_has_ratings(
    sparse: list[vf.PartyData], mechanism: str, masked: bool, least: float, most: float
) -> None:
    """With messages a user without ratings has a gradient of 0: open ones tell all, ternary ones some, and these for sure."""
    mode = "masked" if masked else "exact"
    chosen = best(
        masking=masked,
        **{"gradients.mechanism": mechanism, "exchange.mode": mode, "exchange.backward": False},
    )
    readings = trips(record_federation(sparse, chosen), 5)
    assert len(readings) == 15
    assert least <= float(np.mean([each["auc"] for each in readings])) <= most
    false = float(np.mean([each["false"] for each in readings]))
    assert (false == 0) == (mechanism != "laplace" and not masked)


def test_many_rounds_show_who_has_ratings_and_how_many(sparse: list[vf.PartyData]) -> None:
    open_ = {"masking": False, "exchange.mode": "exact"}
    alone = attack_gradients(sparse, best(**open_), rounds=60, at=(1, 10))["rounds"]
    masked = attack_gradients(sparse, best(), rounds=60, at=(1, 10))["rounds"]
    assert list(alone) == ["1", "10", "60"]
    for name in ("any", "proven", "degree", "cosine"):
        assert alone["1"][name] < alone["10"][name] < alone["60"][name]
    assert alone["60"]["any"] > 0.96
    assert alone["60"]["false"] == 0
    assert masked["60"]["any"] < masked["60"]["guess"] + 0.05 < alone["60"]["any"]
    assert masked["60"]["false"] > 0.5


def test_rows_that_gradients_prove_are_solved_for(sparse: list[vf.PartyData]) -> None:
    """The coordinator without masks, theorem 1 fulfilled: it learns from gradients who is there, and then solves for X."""
    few = [sparse[0], *(vf.PartyData(p.name, p.ratings) for p in sparse[1:])]
    kept = np.isin(few[0].ratings.user, np.arange(300)[::6])
    few[0] = vf.PartyData(few[0].name, few[0].ratings.take(kept))
    watched = record_federation(few, config(form="messages", batch=0, epochs=200, rescale_users=1.0))
    average = ReleaseAverage()
    name = few[0].name
    for _ in range(100):
        trip = watched.round()
        average.add(watched.sent_gradients(trip)[name])
    party = watched.parties[0]
    assert isinstance(party.projection, Projection)
    assert party.projection.protected
    true = party.neighbourhood(party.exchanged)
    y = sent_neighbourhoods(watched, trip)[name][0]
    found = known_rows(y, dense_projection(party.projection), torch.nonzero(average.proven).squeeze(1))
    assert relative_error(found, true) < 0.01
    assert relative_error(party.projection.reconstruct(y), true) > 2


def test_membership_by_hand() -> None:
    pairs = Pairs(torch.tensor([0, 1]), torch.tensor([1, 0]), torch.tensor([3.0, 5.0]))
    users = torch.tensor([[1.0, 2.0], [0.0, 1.0]])
    items = torch.tensor([[1.0, 4.0], [1.0, 1.0]])
    assert squared_errors(users, items, pairs).tolist() == [0.0, 1.0]
    assert strength(torch.tensor([[1.0, -2.0], [0.0, 0.0]])).tolist() == [3.0, 0.0]


def test_a_model_that_memorises_tells_its_ratings(small_parties: list[vf.PartyData]) -> None:
    run = vf.train(small_parties, config(epochs=3))
    prepared = run.prepared()
    fair = membership(prepared, [(m.users, m.items) for m in run.models], generator())
    assert 0.45 < fair.control.auc < 0.55
    assert fair.trained.auc < 0.65
    parrots = []
    for party in prepared:  # h_u . h_v is the rating itself for training pairs, and 3 elsewhere
        table = torch.full((party.party.ratings.n_users, party.party.ratings.n_items), 3.0)
        table[party.train.user.long(), party.train.item.long()] = party.train.rating
        parrots.append((table, torch.eye(table.shape[1])))
    caught = membership(prepared, parrots, generator())
    assert caught.trained.auc > 0.8
    assert caught.trained.advantage > 0.5
    assert caught.train_rmse == 0


def test_users_alone_in_a_bucket_are_read_off_a_federations_neighbourhoods(
    sparse: list[vf.PartyData],
) -> None:
    watched = record_federation(sparse, config(**{"exchange.mode": "exact"}))
    for _ in range(3):
        watched.round()
    party = watched.parties[0]
    x = party.neighbourhood(party.exchanged)
    drawn = CountSketch.draw(300, 60, generator())
    there = x.any(1)
    users, rows = read_off(drawn.project(x), drawn, there)
    assert torch.allclose(rows, x[users], atol=1e-7)
    assert len(users) > int(drawn.alone().sum())  # users with nothing keep nobody company
    truth = party.neighbours[users]
    one = truth.sum(1) == 1
    weights = omp(rows[one], party.atoms(party.exchanged), most=1).weights
    assert torch.equal(weights > 0, truth[one])


def test_a_smaller_share_of_fakes_is_planted_and_used(four: list[vf.PartyData]) -> None:
    parts = [split_ratings(party, best().split, 0) for party in four]
    fakes = plant(four, parts, target=1, share=0.5, rng=np.random.default_rng(0))
    found = attack_sums(four, best(), rounds=60, share=0.5, victims=50)
    assert len(fakes.users) < four[1].ratings.n_items
    assert (
        found["colluders, fakes, all exchanges"]["precision"]
        > found["colluders, fakes, all exchanges"]["guess"]["precision"]
    )

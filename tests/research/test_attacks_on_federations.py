"""What recorded federations send, what the coordinator reads in it, and which ratings a model was trained on."""

from __future__ import annotations

import pytest
import torch
from test_attacks_beyond_the_paper import generator

import verfedgnn as vf
from helpers import config, federation
from verfedgnn.core.pairs import Pairs
from verfedgnn_research.attacks.coordinator_attack import attack_gradients
from verfedgnn_research.attacks.membership_inference import membership, prediction_errors
from verfedgnn_research.attacks.recording import TOGETHER, record_federation


@pytest.mark.parametrize("chosen", [config(), vf.Config.preset("best", gate=False)])
def test_a_tapped_federation_sends_what_any_other_sends(
    small_parties: list[vf.PartyData], chosen: vf.Config
) -> None:
    watched = record_federation(small_parties, chosen)
    ordinary = federation(small_parties, watched.config)
    for _ in range(4):
        ordinary.round()
        trip = watched.round()
    assert torch.equal(ordinary.coordinator.replica.parameters, watched.coordinator.replica.parameters)
    assert sorted(trip.replies) == sorted(trip.starts) == sorted(party.name for party in small_parties)
    parts = [watched.sum_of_others(trip, p) for p in range(len(small_parties))]
    if chosen.masking:
        assert list(watched.sent_gradients(trip)) == [TOGETHER]
        total = watched.sent_gradients(trip)[TOGETHER]
        assert torch.equal(watched.of_users(sum(parts)) / (len(parts) - 1), total)  # type: ignore[arg-type]
    else:
        assert set(torch.cat(list(watched.sent_gradients(trip).values())).unique().tolist()) <= {
            -1.0,
            0.0,
            1.0,
        }


def test_many_rounds_show_who_has_ratings_and_how_many() -> None:
    """Three parties at which many of 300 users have nothing."""
    table = vf.data.synthetic_ratings(users=300, items=90, ratings=1800, seed=2)
    sparse = vf.split_items(table, parties=3, seed=2)
    alone = attack_gradients(sparse, config(batch=0), rounds=60, at=(1, 10))["rounds"]
    masked = attack_gradients(sparse, config(batch=0, masking=True, exchange="off"), rounds=60, at=(1, 10))[
        "rounds"
    ]
    assert list(alone) == ["1", "10", "60"]
    for name in ("any", "proven"):
        assert alone["1"][name] < alone["10"][name] < alone["60"][name]
    assert alone["60"]["false"] == 0
    assert masked["60"]["any"] < masked["60"]["guess"] + 0.05 < alone["60"]["any"]
    assert masked["60"]["false"] > 0.5


def test_membership_by_hand() -> None:
    pairs = Pairs(torch.tensor([0, 1]), torch.tensor([1, 0]), torch.tensor([3.0, 5.0]))
    users = torch.tensor([[1.0, 2.0], [0.0, 1.0]])
    items = torch.tensor([[1.0, 4.0], [1.0, 1.0]])
    assert prediction_errors(users, items, pairs).square().tolist() == [0.0, 1.0]


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

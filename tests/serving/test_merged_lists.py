"""Lists over several parties: one order for items whose scores are not comparable."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import verfedgnn as vf
from verfedgnn.core.rating_scale import upper_quarter
from verfedgnn.data import Ratings
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.serving.catalogue import Catalogue
from verfedgnn.serving.fold_in import UserRatings
from verfedgnn.serving.user_lists import PRIOR_LIKES, ServedUser, UserProfile, weigh_parties


def is_liked(table: Ratings) -> NDArray[np.bool_]:
    return np.asarray(table.rating >= upper_quarter(table.scale))


def liked_by(run: vf.Run, user: int) -> list[int]:
    """Return the number of items that a user likes at each party."""
    tables = [party.ratings for party in run.parties]
    return [int((is_liked(table) & (table.user == user)).sum()) for table in tables]


def test_likes_decide_how_much_of_a_list_is_a_party_s() -> None:
    assert weigh_parties([7], [100]).tolist() == [1.0]
    same = weigh_parties([0, 0], [300, 100])
    assert same == pytest.approx([0.75, 0.25], abs=0.002)  # nothing is known of the user
    weights = weigh_parties([[20, 0], [0, 20]], [199, 199])
    most = (20 + PRIOR_LIKES / 2) / (20 + PRIOR_LIKES)
    assert weights == pytest.approx(np.array([[most, 1 - most], [1 - most, most]]))
    assert weigh_parties([0, 0], [0, 0]).tolist() == [0.5, 0.5]


def without_taste(run: vf.Run, party: int, items: int) -> vf.Run:
    """Return the run with equal scores of all items, and only the first items of one catalogue."""
    assert run.lists is not None
    parties = list(run.parties)
    table = parties[party].ratings
    kept = table.take(table.item < items)
    parties[party] = vf.PartyData(
        parties[party].name,
        replace(kept, item_ids=table.item_ids[:items], titles=None, columns={}),
    )
    parts = list(run.parts)
    parts[party] = run.parts[party][table.item < items]
    models = [
        PartyModel(torch.zeros(p.ratings.n_users, 1), torch.zeros(p.ratings.n_items, 1), torch.zeros(1, 0))
        for p in parties
    ]
    lists = replace(run.lists, parties=parties, parts=parts, models=models, alone=None)
    return replace(run, parties=parties, parts=parts, alone=None, lists=lists)


def test_the_smallest_catalogue_does_not_win(run: vf.Run) -> None:
    """Shares of a catalogue of 15 items are larger than those of others, whatever a user likes."""
    small = without_taste(run, 0, 15)
    table = small.parties[0].ratings
    likes = np.array([liked_by(small, user) for user in range(table.n_users)])
    others = int(np.argmax(likes[:, 1:].sum(1) - 100 * likes[:, 0]))  # likes nothing at the small one
    assert likes[others, 0] == 0
    found = small.recommend(str(table.user_ids[others]), 10)
    assert table.name not in {item.party for item in found}


def test_scores_are_probabilities_over_all_unrated_items(run: vf.Run) -> None:
    for user in (0, 17, 60):
        found = run.recommend(str(run.parties[0].ratings.user_ids[user]), 1000)
        assert sum(item.score for item in found) == pytest.approx(1, abs=1e-4)
        by_party = [sum(item.score for item in found if item.party == party.name) for party in run.parties]
        totals = [int(is_liked(party.ratings).sum()) for party in run.parties]
        assert by_party == pytest.approx(weigh_parties(liked_by(run, user), totals).tolist(), abs=1e-4)


def test_each_party_keeps_its_own_order(run: vf.Run) -> None:
    user = str(run.parties[0].ratings.user_ids[5])
    merged = run.recommend(user, 1000)
    for party in run.parties:
        own = [item.item for item in run.recommend(user, 1000, party=party.name)]
        assert [item.item for item in merged if item.party == party.name] == own


def test_predicted_ratings_are_compared_within_their_scales(run: vf.Run) -> None:
    """A party that rates from 10 to 50 does not fill the list with its higher numbers."""
    plain = replace(run, lists=None)
    first, *others = plain.parties
    table = first.ratings
    tenfold = replace(table, rating=10 * table.rating, scale=(10 * table.scale[0], 10 * table.scale[1]))
    model = plain.models[0]
    scaled = replace(
        plain,
        parties=[vf.PartyData(first.name, tenfold), *others],
        models=[replace(model, items=10 * model.items), *plain.models[1:]],
    )
    user = str(table.user_ids[3])
    wanted = [(item.party, item.item) for item in plain.recommend(user, 12)]
    assert [(item.party, item.item) for item in scaled.recommend(user, 12)] == wanted


def test_newer_ratings_and_those_of_newcomers_count(run: vf.Run, catalogue: Catalogue) -> None:
    user = 4
    before = UserProfile(catalogue, ServedUser(user), [0, 1]).at
    assert [before[p].likes for p in (0, 1)] == liked_by(run, user)[:2]
    fresh = np.setdiff1d(np.arange(run.parties[1].ratings.n_items), before[1].rated)[:3]
    newer = UserRatings(fresh, np.array([5, 5, 1], np.float32))
    after = UserProfile(catalogue, ServedUser(user, {1: newer}), [0, 1]).at
    assert [after[p].likes for p in (0, 1)] == [before[0].likes, before[1].likes + 2]
    new = UserProfile(catalogue, ServedUser(None, {1: newer}), [0, 1]).at
    assert [new[p].likes for p in (0, 1)] == [0, 2]


def test_someone_who_has_rated_everything_gets_nothing(run: vf.Run) -> None:
    table = run.parties[0].ratings
    rated = np.full(table.n_items, 5, np.float32)
    everything = replace(
        table,
        user=np.zeros(table.n_items, np.int32),
        item=np.arange(table.n_items, dtype=np.int32),
        rating=rated,
        time=None,
    )
    full = replace(run, parties=[vf.PartyData(run.parties[0].name, everything), *run.parties[1:]])
    user = str(table.user_ids[0])
    assert full.recommend(user, 10, party=run.parties[0].name) == []
    others = full.recommend(user, 10)
    assert others
    assert np.isfinite([item.score for item in others]).all()

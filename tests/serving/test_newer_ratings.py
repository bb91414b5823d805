"""Ratings that training did not use: a request may carry them for newcomers and for known users, who move with them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import verfedgnn as vf
from verfedgnn.data import synthetic_ratings
from verfedgnn.serving.catalogue import Catalogue
from verfedgnn.serving.fold_in import UserRatings, merge_ratings
from verfedgnn.serving.split_test import ALONE, FEDERATED
from verfedgnn.serving.user_lists import ServedUser, UserProfile

httpx = pytest.importorskip("httpx", reason="httpx is not installed: no client")
pytest.importorskip("fastapi", reason="the extra serve is not installed")

from served import serving  # noqa: E402
from verfedgnn.serving.app import make_app  # noqa: E402


@pytest.fixture(scope="module")
def run() -> vf.Run:
    parties = vf.split_items(synthetic_ratings(users=100, items=60, ratings=2500, seed=3), by="category")
    return vf.train(parties, vf.Config.preset("best", epochs=15))


def unrated(run: vf.Run, user: int) -> list[int]:
    table = run.parties[0].ratings
    return sorted(set(range(table.n_items)) - set(table.item[table.user == user].tolist()))


@pytest.fixture(scope="module")
def catalogue(run: vf.Run) -> Catalogue:
    return Catalogue(run, "trial")


@pytest.fixture(scope="module")
def client(catalogue: Catalogue) -> Iterator[Any]:
    with serving(make_app(catalogue)) as address, httpx.Client(base_url=address, timeout=180) as client:
        yield client


def test_newer_ratings_move_a_trained_user(run: vf.Run, catalogue: Catalogue) -> None:
    own = UserRatings(np.array(unrated(run, 0)[:2]), np.array([5, 1], np.float32))
    for model in (FEDERATED, ALONE):
        before = UserProfile(catalogue, ServedUser(0, model=model), [0, 1]).at
        after = UserProfile(catalogue, ServedUser(0, {0: own}, model=model), [0, 1]).at
        vectors = catalogue.stars[model].models[0].items.numpy()[own.items]
        moved = vectors @ (after[0].rating_vector - before[0].rating_vector)
        assert moved[own.ratings == 5] > moved[own.ratings == 1]
        assert set(own.items) <= set(after[0].rated)
    # a party that trained alone hears nothing of ratings elsewhere
    assert np.array_equal(after[1].rating_vector, before[1].rating_vector)


def test_ratings_that_training_has_seen_change_nothing(catalogue: Catalogue) -> None:
    user = ServedUser(3, catalogue.find_ratings(3, [0], training=True))
    assert user.newer
    found = UserProfile(catalogue, user, [0]).at[0]
    wanted = UserProfile(catalogue, ServedUser(3), [0]).at[0]
    assert (found.vector - wanted.vector).abs().max() < 1e-5
    assert np.array_equal(found.rated, np.sort(wanted.rated))
    assert len(user.find_ratings(catalogue, [0])[0].items) == len(wanted.rated)


def test_a_known_user_sends_further_ratings(run: vf.Run, client: Any) -> None:
    table = run.parties[0].ratings
    item = str(table.item_ids[unrated(run, 7)[0]])
    given = {"item": item, "rating": 1, "party": run.parties[0].name}
    user = str(table.user_ids[7])
    plain = client.get("/v1/recommendations", params={"user": user, "k": 30}).json()
    same = client.post("/v1/recommendations", json={"user": user, "ratings": [], "k": 30}).json()
    assert same == plain
    found = client.post("/v1/recommendations", json={"user": user, "ratings": [given], "k": 30}).json()
    assert found != plain
    assert item not in [item["item"] for item in found["recommendations"]]


def test_the_newer_of_two_ratings_counts() -> None:
    older = {0: UserRatings(np.array([3, 1]), np.array([2, 4], np.float32))}
    newer = {
        1: UserRatings(np.array([9]), np.array([5], np.float32)),
        0: UserRatings(np.array([1]), np.array([1], np.float32)),
    }
    merged = merge_ratings(older, newer)
    assert [(p, own.items.tolist(), own.ratings.tolist()) for p, own in merged.items()] == [
        (0, [1, 3], [1, 2]),
        (1, [9], [5]),
    ]


def test_items_are_found_by_title_and_id(run: vf.Run, client: Any) -> None:
    table = run.parties[0].ratings
    party = run.parties[0].name
    popular = client.get("/v1/items", params={"party": party, "k": 3}).json()["items"]
    counts = np.bincount(table.item, minlength=table.n_items)
    assert [item["item"] for item in popular] == [
        str(table.item_ids[i]) for i in np.argsort(-counts, kind="stable")[:3]
    ]
    item = popular[1]
    found = client.get(
        "/v1/items", params={"text": item["title"].upper() or item["item"], "party": party}
    ).json()["items"]
    assert item in found
    assert client.get("/v1/items", params={"text": "no such title"}).json()["items"] == []

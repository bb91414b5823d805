"""Ratings that are newer than the run: unknown users are served from them, and known users move with them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import verfedgnn as vf
from verfedgnn.core.errors import DataError
from verfedgnn.data import TRAIN, make_ratings, synthetic_ratings
from verfedgnn.serving.catalogue import ALONE, FEDERATED, Catalogue
from verfedgnn.serving.fold_in import UserRatings, merge_ratings
from verfedgnn.serving.newer_ratings import read_newer_ratings
from verfedgnn.serving.user_profile import ServedUser, all_ratings, profile_user

httpx = pytest.importorskip("httpx", reason="httpx is not installed: no client")
pytest.importorskip("fastapi", reason="the extra serve is not installed")

from served import serving  # noqa: E402
from verfedgnn.serving.http.api_keys import ApiKey, digest_key  # noqa: E402
from verfedgnn.serving.http.app import make_app  # noqa: E402

KEY = "a-key-that-is-long-enough"


@pytest.fixture(scope="module")
def run() -> vf.Run:
    parties = vf.split_items(synthetic_ratings(users=100, items=60, ratings=2500, seed=3), by="category")
    return vf.train(parties, vf.Config.preset("best", epochs=15, list_epochs=1))


def ids(run: vf.Run, items: list[int]) -> list[str]:
    return [str(run.parties[0].ratings.item_ids[item]) for item in items]


def unrated(run: vf.Run, user: int) -> list[int]:
    table = run.parties[0].ratings
    return sorted(set(range(table.n_items)) - set(table.item[table.user == user].tolist()))


@pytest.fixture(scope="module")
def catalogue(run: vf.Run) -> Catalogue:
    """The first party has newer ratings of a stranger and of its first user, and one of an item that the run lacks."""
    known = str(run.parties[0].ratings.user_ids[0])
    users = ["stranger"] * 4 + [known] * 2
    items = [*ids(run, [1, 2, 3]), "new item", *ids(run, unrated(run, 0)[:2])]
    newer = make_ratings(users, items, [5, 5, 1, 3, 5, 1])
    return Catalogue(run, "trial", newer={run.parties[0].name: newer})


@pytest.fixture(scope="module")
def client(catalogue: Catalogue) -> Iterator[Any]:
    with serving(make_app(catalogue)) as address, httpx.Client(base_url=address) as client:
        yield client


def test_a_stranger_is_served_like_a_newcomer_with_the_same_ratings(run: vf.Run, client: Any) -> None:
    items = ids(run, [1, 2, 3])
    body = [
        {"item": i, "rating": r, "party": run.parties[0].name} for i, r in zip(items, [5, 5, 1], strict=True)
    ]
    wanted = client.post("/v1/recommendations", json={"ratings": body, "why": 2}).json()
    found = client.get("/v1/recommendations", params={"user": "stranger", "why": 2}).json()
    assert found == wanted
    assert len(found["recommendations"]) == 10
    assert not {item["item"] for item in found["recommendations"]} & set(items)
    batch = client.post("/v1/recommendations/batch", json={"users": ["stranger"]}).json()["answers"][0]
    assert [i["item"] for i in batch["recommendations"]] == [i["item"] for i in found["recommendations"]]
    assert client.get("/v1/recommendations", params={"user": "nobody"}).status_code == 404
    alone = client.get("/v1/recommendations", params={"user": "stranger", "model": "alone"})
    assert alone.status_code == 200


def test_the_page_knows_the_stranger(run: vf.Run, client: Any) -> None:
    assert client.get("/v1/users", params={"starts": "stra"}).json()["users"] == [
        {"user": "stranger", "ratings": 3}
    ]
    history = client.get("/v1/history", params={"user": "stranger"}).json()
    assert (history["count"], history["liked"], history["trained"]) == (3, 2, False)
    pair = {"user": "stranger", "item": history["items"][-1]["item"], "party": run.parties[0].name}
    assert client.get("/v1/rating", params=pair).json()["rated"] == 1


def test_newer_ratings_move_a_trained_user_and_nobody_else(run: vf.Run, catalogue: Catalogue) -> None:
    plain = Catalogue(run, "plain")
    newer = catalogue.find_newer_ratings(str(run.parties[0].ratings.user_ids[0]))
    (own,) = newer
    for model in (FEDERATED, ALONE):
        before = profile_user(plain, model, ServedUser(0), [0, 1])
        after = profile_user(catalogue, model, ServedUser(0, newer), [0, 1])
        vectors = catalogue.rating_models[model][0].items.numpy()[own.items]
        moved = vectors @ (after[0].rating_vector - before[0].rating_vector)
        assert moved[own.ratings == 5] > moved[own.ratings == 1]
        assert set(own.items) <= set(after[0].rated)
        other = profile_user(catalogue, model, ServedUser(1), [0])
        assert np.array_equal(other[0].vector, plain.rankers[model][0].model.users[1])
    # a party that trained alone hears nothing of ratings elsewhere
    assert np.array_equal(after[1].rating_vector, before[1].rating_vector)


def test_ratings_that_training_has_seen_change_nothing(run: vf.Run) -> None:
    table = run.parties[0].ratings
    catalogue = Catalogue(run, "same", newer={run.parties[0].name: table.take(run.parts[0] == TRAIN)})
    user = ServedUser(3, catalogue.find_newer_ratings(str(table.user_ids[3])))
    assert user.newer
    found = profile_user(catalogue, FEDERATED, user, [0])[0]
    wanted = profile_user(catalogue, FEDERATED, ServedUser(3), [0])[0]
    assert (found.vector - wanted.vector).abs().max() < 1e-5
    assert np.array_equal(found.rated, np.sort(wanted.rated))
    assert len(all_ratings(catalogue, user, [0])[0].items) == len(wanted.rated)


def test_a_known_user_sends_further_ratings(run: vf.Run, client: Any) -> None:
    table = run.parties[0].ratings
    given = {"item": ids(run, unrated(run, 7))[0], "rating": 1, "party": run.parties[0].name}
    user = str(table.user_ids[7])
    plain = client.get("/v1/recommendations", params={"user": user, "k": 30}).json()
    same = client.post("/v1/recommendations", json={"user": user, "ratings": [], "k": 30}).json()
    assert same == plain
    found = client.post("/v1/recommendations", json={"user": user, "ratings": [given], "k": 30}).json()
    assert found != plain
    assert given["item"] not in [item["item"] for item in found["recommendations"]]


def test_a_key_for_another_party_does_not_see_the_stranger(run: vf.Run, catalogue: Catalogue) -> None:
    key = ApiKey("other", digest_key(KEY), parties=(run.parties[1].name,))
    headers = {"Authorization": f"Bearer {KEY}"}
    with (
        serving(make_app(catalogue, keys=[key])) as address,
        httpx.Client(base_url=address, headers=headers) as client,
    ):
        assert client.get("/v1/users", params={"starts": "stra"}).json()["users"] == []
        assert client.get("/v1/history", params={"user": "stranger"}).json()["count"] == 0
        found = client.get("/v1/recommendations", params={"user": "stranger", "why": 5}).json()
        assert all(not item["why"]["because"] for item in found["recommendations"])


def test_the_newer_of_two_ratings_counts() -> None:
    older = [UserRatings(0, np.array([3, 1]), np.array([2, 4], np.float32))]
    newer = [
        UserRatings(1, np.array([9]), np.array([5], np.float32)),
        UserRatings(0, np.array([1]), np.array([1], np.float32)),
    ]
    merged = merge_ratings(older, newer)
    assert [(own.party, own.items.tolist(), own.ratings.tolist()) for own in merged] == [
        (0, [1, 3], [1, 2]),
        (1, [9], [5]),
    ]


def test_sources_are_checked(run: vf.Run, tmp_path: Path) -> None:
    table = run.parties[0].ratings
    tables = {party.name: party.ratings for party in run.parties}
    first = run.parties[0].name
    file = tmp_path / "new.csv"
    file.write_text(f"user,item,rating\na,{table.item_ids[0]},2\na,{table.item_ids[0]},4\n")
    found = read_newer_ratings([f"{first}={file}"], tables)
    assert found[first].rating.tolist() == [4]
    assert read_newer_ratings([str(file)], {first: table}).keys() == {first}
    for sources, reason in [
        ([str(file)], "does not name"),
        ([f"x={file}"], "does not name"),
        ([f"{first}={file}"] * 2, "twice"),
    ]:
        with pytest.raises(DataError, match=reason):
            read_newer_ratings(sources, tables)
    high = replace(found[first], rating=np.array([9], np.float32), scale=(1, 9))
    with pytest.raises(DataError, match="outside the run's scale 1 to 5"):
        Catalogue(run, "x", newer={first: high})
    with pytest.raises(DataError, match="no item of the run"):
        Catalogue(run, "x", newer={first: make_ratings(["a"], ["elsewhere"], [3])})


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

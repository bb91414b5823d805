"""Newcomers, the reasons for recommendations, and similar items."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import verfedgnn as vf
from verfedgnn.data import TEST, TRAIN, synthetic_ratings
from verfedgnn.runs.prepared_data import split_ratings
from verfedgnn.serving.catalogue import Catalogue
from verfedgnn.serving.fold_in import UserRatings, fit_user_prior, fold_in
from verfedgnn.serving.split_test import ALONE, FEDERATED
from verfedgnn.serving.user_lists import (
    Explanation,
    Reason,
    ServedUser,
    UserProfile,
    find_similar,
    make_lists,
)

httpx = pytest.importorskip("httpx", reason="httpx is not installed: no client")
pytest.importorskip("fastapi", reason="the extra serve is not installed")

from served import serving  # noqa: E402
from verfedgnn.serving.app import make_app  # noqa: E402


def test_a_newcomer_to_a_ranking_is_the_most_probable_one(ranking_run: vf.Run) -> None:
    catalogue = Catalogue(ranking_run, "ranking")
    places = catalogue.lists[FEDERATED].priors
    liked = {
        0: UserRatings(np.array([0, 3, 5]), np.array([5, 5, 4], np.float32)),
        2: UserRatings(np.array([1]), np.array([5], np.float32)),
    }
    fold = fold_in(places, liked)
    models = [ranker.model for ranker in catalogue.lists[FEDERATED].rankers]
    assert (
        np.abs(fold.z - sum(pull.sum(0) for pull in fold.pulls.values())).max() < 1e-3
    )  # where the slope is 0

    def likely(z: np.ndarray) -> float:
        scores = [models[p].items @ places[p].make_vector(z) for p in liked]
        return (
            sum(
                float(s.log_softmax(0)[own.items].sum())
                for s, own in zip(scores, liked.values(), strict=True)
            )
            - float(z @ z) / 2
        )

    around = np.random.default_rng(0).normal(0, 0.1, (20, len(fold.z)))
    assert all(likely(fold.z) >= likely(fold.z + step) for step in around)
    assert likely(fold.z) > likely(np.zeros_like(fold.z))
    with serving(make_app(catalogue)) as address:
        ratings = [{"item": str(ranking_run.parties[0].ratings.item_ids[i]), "rating": 5} for i in (0, 3, 5)]
        found = httpx.post(
            f"{address}/v1/recommendations", json={"ratings": ratings, "k": 3, "why": 2}, timeout=180
        ).json()
    assert len(found["recommendations"]) == 3


@pytest.mark.parametrize("model", ["federated", "alone"])
def test_reasons_of_lists_add_up_for_trained_users(run: vf.Run, catalogue: Catalogue, model: str) -> None:
    named = 0
    for user in range(0, 200, 20):
        for p, ranker in enumerate(catalogue.lists[model].rankers):
            profile = UserProfile(catalogue, ServedUser(user, model=model), [p])
            (best,) = make_lists([profile], 3)
            before = ranker.model.score(torch.tensor([user]))[0]
            reasons = profile.explain(best, [p], 4)
            for (_, row, _), why in zip(best, reasons, strict=True):
                whole = sum(getattr(why, part) for part in ("average", "habit", "taste", "items", "rest"))
                assert whole == pytest.approx(float(before[row]), abs=1e-3)
                if ranker.item_weights is not None:
                    named += any(reason.adds > 0 for reason in why.because)
                else:
                    assert why.items == 0
    assert named, "no recommendation has a reason at a party with item weights"


def test_a_newcomer_without_likes_is_the_average_user_with_their_items(catalogue: Catalogue) -> None:
    disliked = UserRatings(np.array([1, 2]), np.array([1, 2], np.float32))
    prior = catalogue.lists[FEDERATED].priors[0]
    profile = UserProfile(catalogue, ServedUser(None, {0: disliked}), [0]).at
    assert profile[0].vector.numpy() == pytest.approx(prior.mean, abs=1e-5)
    assert profile[0].owned.tolist() == profile[0].rated.tolist() == [1, 2]
    liking = UserRatings(np.array([1, 2]), np.array([1, 5], np.float32))
    assert not np.allclose(
        UserProfile(catalogue, ServedUser(None, {0: liking}), [0]).at[0].vector.numpy(),
        prior.mean,
        atol=1e-4,
    )


def test_newcomers_come_near_the_trained() -> None:
    parties = vf.split_items(
        synthetic_ratings(users=400, items=120, ratings=16000, seed=7), parties=3, seed=7
    )
    config = vf.Config.preset("best", epochs=80, gate=False, lists=False)
    parts = [split_ratings(party, config.split, 0) for party in parties]
    new = np.arange(400) % 5 == 0
    kept = [part[~new[party.ratings.user]] for party, part in zip(parties, parts, strict=True)]
    others = [vf.PartyData(party.name, party.ratings.select_users(~new)) for party in parties]
    everybody, without = vf.train(parties, config, parts=parts), vf.train(others, config, parts=kept)
    places = fit_user_prior(
        without.models, [(party.ratings, part) for party, part in zip(others, kept, strict=True)]
    )
    errors: dict[str, list[float]] = {"folded": [], "trained": [], "average": []}
    for user in np.flatnonzero(new):
        tables = [(p, party.ratings, parts[p]) for p, party in enumerate(parties)]
        own = [(p, t, (t.user == user) & (part == TRAIN)) for p, t, part in tables]
        rated = {
            p: UserRatings(t.item[mine].astype(np.int64), t.rating[mine]) for p, t, mine in own if mine.any()
        }
        z = fold_in(dict(enumerate(places)), rated).z
        for p, table, part in tables:
            judged = (table.user == user) & (part == TEST)
            items, truth = table.item[judged], table.rating[judged]
            errors["folded"] += (
                (without.models[p].items[items] @ places[p].make_vector(z)).numpy() - truth
            ).tolist()
            errors["trained"] += (
                (everybody.models[p].items[items] @ everybody.models[p].users[user]).numpy() - truth
            ).tolist()
            errors["average"] += (places[p].level[items] - truth).tolist()
    rmse = {way: float(np.sqrt(np.mean(np.square(e)))) for way, e in errors.items()}
    assert rmse["folded"] < 0.95 * rmse["average"]
    assert rmse["folded"] < 1.04 * rmse["trained"]


def test_the_average_rank_is_that_of_a_list_for_nobody(run: vf.Run, client: Any, known: str) -> None:
    party = run.parties[0].name
    asked = {"party": party, "k": 1000, "where": {}, "ratings": []}
    usual = client.post("/v1/recommendations", json=asked).json()["recommendations"]
    mine = client.get(
        "/v1/recommendations", params={"user": known, "party": party, "k": 1000, "why": 1}
    ).json()["recommendations"]
    scores = {item["item"]: item["score"] for item in usual}
    for item in mine[:20]:
        before = sum(scores[other["item"]] > scores[item["item"]] for other in mine)
        assert item["why"]["average_rank"] == 1 + before


def test_a_reason_is_given_only_where_it_moved_the_item(run: vf.Run, catalogue: Catalogue) -> None:
    """Liked items and similar customers are named for items that the user's ratings place above their usual rank."""
    kinds = set()
    for row in range(0, 200, 10):
        for user in (ServedUser(row), ServedUser(row, model=ALONE)):
            for parties in ([0], range(len(run.parties))):
                profile = UserProfile(catalogue, user, parties)
                (best,) = make_lists([profile], 15)
                places = dict.fromkeys(parties, 0)
                items = profile.describe(best, profile.explain(best, parties))
                for (p, _, _), item in zip(best, items, strict=True):
                    places[p] += 1
                    why = item.why
                    assert why is not None
                    kinds.add(why.kind)
                    assert (why.kind == "liked") == bool(why.because)
                    if why.kind in ("liked", "similar"):
                        assert why.average_rank > places[p]
                    if why.kind == "liked":
                        assert why.taste + why.items > 0
                        assert all(reason.adds >= 0.02 for reason in why.because)
                        assert all(reason.rating >= catalogue.parties[p].liked_from for reason in why.because)
                    if why.kind == "similar":
                        assert why.average_rank > 15
                        assert item.rating is not None
                        assert item.rating >= 3, "an item of two stars is liked by nobody of that taste"
                    assert why.kind != "popular" or why.average_rank <= 15
    assert kinds >= {"liked", "popular", "none"}


def test_only_the_items_that_are_named_are_described(
    catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of 1,000 lines has up to 10,000 reasons: describing all of them took a minute for one request."""
    party = catalogue.parties[0]
    described: list[int] = []
    describe = type(party).describe
    monkeypatch.setattr(
        type(party), "describe", lambda self, item: described.append(item) or describe(self, item)
    )
    rated = UserRatings(np.arange(party.table.n_items), np.full(party.table.n_items, 5.0, np.float32))
    adds = np.linspace(1, 2, party.table.n_items)
    profile = UserProfile(catalogue, ServedUser(None, {0: rated}), [0])
    names = [reason.adds for reason in profile._name_reasons({0: adds}, {0: rated}, 3)]
    assert names == adds[:-4:-1].tolist()
    assert len(described) == 3


def test_words_of_a_reason_follow_from_its_kind() -> None:
    liked = [
        Reason(item, title, "films", {}, 5.0, 1.0) for item, title in (("1", "x"), ("2", ""), ("3", "z"))
    ]
    words = {
        kind: Explanation(0, 0, 0, 0, 0, 9, kind, liked if kind == "liked" else []).in_words()  # type: ignore[arg-type]
        for kind in ("liked", "popular", "similar", "none")
    }
    assert words == {
        "liked": "liked x and 2",
        "popular": "popular with many customers",
        "similar": "liked by customers with a similar taste",
        "none": "",
    }


def test_a_newcomer_over_http(run: vf.Run, client: Any) -> None:
    table, party = run.parties[0].ratings, run.parties[0].name
    ratings = [
        {"item": str(table.item_ids[i]), "party": party, "rating": 5 if i % 2 else 1} for i in range(10)
    ]
    answer = client.post("/v1/recommendations", json={"ratings": ratings, "k": 20, "why": 3})
    found = answer.json()["recommendations"]
    assert len(found) == 20
    assert not {(party, r["item"]) for r in ratings} & {(item["party"], item["item"]) for item in found}
    for item in found:
        why = item["why"]
        assert why["rest"] == pytest.approx(0, abs=1e-3)
        assert all(reason["adds"] > 0 and reason["rating"] == 5 for reason in why["because"])
    nobody = client.post("/v1/recommendations", json={"ratings": [], "k": 3}).json()["recommendations"]
    opposite = [r | {"rating": 6 - r["rating"]} for r in ratings]
    other = client.post("/v1/recommendations", json={"ratings": opposite, "k": 20}).json()["recommendations"]
    assert len(nobody) == 3
    assert [i["score"] for i in other] != pytest.approx([i["score"] for i in found], rel=1e-3)
    assert [i["rating"] for i in other] != pytest.approx([i["rating"] for i in found], rel=1e-2)


@pytest.mark.parametrize(
    ("rating", "status", "cause"),
    [
        ({"item": "no such item", "rating": 3}, 404, "item 'no such item' is in no catalogue"),
        ({"item": "0", "rating": 99}, 400, "the rating of item"),
        ({"item": "0"}, 400, "ratings.0.rating: field required"),
        ({"item": "0", "rating": 3, "more": 1}, 400, "ratings.0.more"),
    ],
)
def test_bad_ratings_are_named(
    run: vf.Run, client: Any, rating: dict[str, Any], status: int, cause: str
) -> None:
    if rating["item"] == "0":
        rating = rating | {"item": str(run.parties[0].ratings.item_ids[0]), "party": run.parties[0].name}
    answer = client.post("/v1/recommendations", json={"ratings": [rating]})
    assert answer.status_code == status
    assert answer.json()["error"]["cause"].startswith(cause)


def test_reasons_add_up_and_change_with_the_rating(rating_catalogue: Catalogue) -> None:
    items = np.arange(6, dtype=np.int64)
    places = rating_catalogue.lists[FEDERATED].priors
    high = UserRatings(items, np.array([5, 4, 3, 2, 1, 5], np.float32))
    fold = fold_in(places, {0: high})
    profile = UserProfile(rating_catalogue, ServedUser(None, {0: high}), [0])
    model = rating_catalogue.run.models[0]
    score = float(model.items[20] @ places[0].make_vector(fold.z))
    (why,) = profile.explain([(0, 20, score)], [0], 6)
    assert why.rest == pytest.approx(0, abs=1e-4)
    assert why.items == 0
    # What one rating adds is what is missing when it had been what the average user would give.
    level = places[0].level[0]
    neutral = UserRatings(items, np.array([level, 4, 3, 2, 1, 5], np.float32))
    less = float(model.items[20] @ places[0].make_vector(fold_in(places, {0: neutral}).z))
    whole = float(fold.pulls[0][0] @ places[0].project_items(np.array([20]))[0])
    assert score - less == pytest.approx(whole, abs=1e-4)


def test_similar_items_move_together(rating_catalogue: Catalogue) -> None:
    run = rating_catalogue.run
    found = find_similar(rating_catalogue, 0, 0, [0], 5)
    predicted = (run.models[0].users @ run.models[0].items.T).numpy()
    shared = (np.ptp(run.models[0].items.numpy(), axis=0) == 0).astype(np.float32)
    level = (run.models[0].users * torch.from_numpy(shared)) @ run.models[0].items[0]
    taste = predicted - level.numpy()[:, None]
    wanted = np.corrcoef(taste.T)[0]
    rows = [rating_catalogue.parties[0].ids.find(item.item) for item in found]
    assert [item.similarity for item in found] == pytest.approx(
        [wanted[row] for row in rows if row is not None], abs=1e-3
    )
    assert found[0].similarity == pytest.approx(np.sort(wanted)[-2], abs=1e-3)


def test_similar_items_of_a_kind(run: vf.Run, client: Any) -> None:
    column, values = next(iter(run.parties[1].ratings.columns.items()))
    kind = str(values[0])
    asked = {"item": str(run.parties[0].ratings.item_ids[0]), "party": run.parties[0].name, "k": 1000}
    every = client.get("/v1/similar", params=asked).json()["similar"]
    found = client.get("/v1/similar", params=asked | {column: kind}).json()["similar"]
    assert 0 < len(found) < len(every)
    assert found == [one for one in every if one["columns"].get(column) == kind]
    assert client.get("/v1/similar", params=asked | {"colour": "red"}).status_code == 400

"""Serving: the recommendations of `Run.recommend`, newcomers, explanations, API keys, limits, errors and tables."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

import verfedgnn as vf
from verfedgnn.cli.main import app, main
from verfedgnn.core.item_item import ItemScores
from verfedgnn.data import TEST, TRAIN, synthetic_ratings
from verfedgnn.reports.phrases import warn_of_lists
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.prepared_data import prepare, split_ratings
from verfedgnn.serving.approximate_index import ApproximateRanker
from verfedgnn.serving.catalogue import FEDERATED, Catalogue
from verfedgnn.serving.explain import explain_recommendations, find_similar, merge_rankings
from verfedgnn.serving.fold_in import UserRatings, fold_in
from verfedgnn.serving.id_index import IdIndex
from verfedgnn.serving.ranker import NO_ITEMS, ItemRanker, RankingQuery
from verfedgnn.serving.recommendation_table import write_table
from verfedgnn.serving.run_overview import describe_run
from verfedgnn.serving.user_prior import fit_user_prior
from verfedgnn.serving.user_profile import ServedUser, make_queries, profile_user
from verfedgnn.training.simple_models import ease_model

httpx = pytest.importorskip("httpx", reason="httpx is not installed: no client")
pytest.importorskip("fastapi", reason="the extra serve is not installed")

from served import as_alone, serving, without_alone  # noqa: E402
from verfedgnn.core.hosts import is_loopback  # noqa: E402
from verfedgnn.serving.http.api_keys import ApiKey, digest_key  # noqa: E402
from verfedgnn.serving.http.app import make_app  # noqa: E402
from verfedgnn.serving.http.request_guard import LARGEST_BODY  # noqa: E402

KEY = "a-key-that-is-long-enough"


@pytest.fixture(scope="module")
def run() -> vf.Run:
    parties = vf.split_items(synthetic_ratings(users=200, items=120, ratings=8000, seed=3), by="category")
    return vf.train(parties, vf.Config.preset("best", epochs=60))


@pytest.fixture(scope="module")
def ranking_run() -> vf.Run:
    parties = vf.split_items(synthetic_ratings(users=120, items=90, ratings=4000, seed=5), parties=3, seed=5)
    return vf.train(parties, vf.Config.preset("ranking", epochs=40))


@pytest.fixture(scope="module")
def catalogue(run: vf.Run) -> Catalogue:
    return Catalogue(run, "first")


@pytest.fixture(scope="module")
def rating_catalogue(run: vf.Run) -> Catalogue:
    """The same run without its model of lists: predicted ratings order lists."""
    return Catalogue(replace(run, lists=None), "ratings")


@pytest.fixture(scope="module")
def client(catalogue: Catalogue) -> Iterator[Any]:
    with serving(make_app(catalogue)) as address, httpx.Client(base_url=address) as client:
        yield client


@pytest.fixture(scope="module")
def known(run: vf.Run) -> str:
    """A user of the run."""
    return users(run)[0]


def users(run: vf.Run) -> list[str]:
    return [str(user) for user in run.parties[0].ratings.user_ids]


def same_items(found: list[dict[str, Any]], wanted: list[vf.Recommendation]) -> bool:
    """Return whether items, order, scores and predicted ratings agree."""
    for a, b in zip(found, wanted, strict=True):
        assert a["score"] == pytest.approx(b.score, abs=1e-4)
        assert a["rating"] == (None if b.rating is None else pytest.approx(b.rating, abs=1e-4))
    return [(a["party"], a["item"]) for a in found] == [(b.party, b.item) for b in wanted]


def test_many_at_once_get_what_recommend_gives(run: vf.Run, client: Any) -> None:
    asked = users(run)[:60]

    def ask(user: str) -> list[dict[str, Any]]:
        return client.get("/v1/recommendations", params={"user": user, "k": 7}).json()["recommendations"]

    with ThreadPoolExecutor(16) as pool:
        for user, found in zip(asked, pool.map(ask, asked), strict=True):
            assert same_items(found, run.recommend(user, 7))


def test_a_ranking_is_served_in_shares(ranking_run: vf.Run) -> None:
    with (
        serving(make_app(Catalogue(ranking_run, "ranking"))) as address,
        httpx.Client(base_url=address) as client,
    ):
        for user in users(ranking_run)[:5]:
            found = client.get("/v1/recommendations", params={"user": user, "k": 5, "why": 2}).json()[
                "recommendations"
            ]
            assert same_items(found, ranking_run.recommend(user, 5))
        pair = client.get(
            "/v1/rating", params={"user": user, "item": found[0]["item"], "party": found[0]["party"]}
        ).json()
        assert pair["score"] == pytest.approx(found[0]["score"], rel=1e-4)


def test_a_newcomer_to_a_ranking_is_the_most_probable_one(ranking_run: vf.Run) -> None:
    catalogue = Catalogue(ranking_run, "ranking")
    places = catalogue.priors[FEDERATED]
    liked = [
        UserRatings(0, np.array([0, 3, 5]), np.array([5, 5, 4], np.float32)),
        UserRatings(2, np.array([1]), np.array([5], np.float32)),
    ]
    fold = fold_in(places, liked, ranks=True)
    models = [ranker.model for ranker in catalogue.rankers[FEDERATED]]
    assert np.abs(fold.z - sum(pull.sum(0) for pull in fold.pulls)).max() < 1e-3  # where the slope is 0

    def likely(z: np.ndarray) -> float:
        scores = [models[own.party].items @ places[own.party].make_vector(z) for own in liked]
        return (
            sum(float(s.log_softmax(0)[own.items].sum()) for s, own in zip(scores, liked, strict=True))
            - float(z @ z) / 2
        )

    around = np.random.default_rng(0).normal(0, 0.1, (20, len(fold.z)))
    assert all(likely(fold.z) >= likely(fold.z + step) for step in around)
    assert likely(fold.z) > likely(np.zeros_like(fold.z))
    with serving(make_app(catalogue)) as address:
        ratings = [{"item": str(ranking_run.parties[0].ratings.item_ids[i]), "rating": 5} for i in (0, 3, 5)]
        found = httpx.post(
            f"{address}/v1/recommendations", json={"ratings": ratings, "k": 3, "why": 2}
        ).json()
    assert len(found["recommendations"]) == 3


def test_an_internal_error_shows_no_details(
    catalogue: Catalogue, known: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("insides")

    monkeypatch.setattr(ItemRanker, "rank", broken)
    with serving(make_app(catalogue)) as address:
        answer = httpx.get(f"{address}/v1/recommendations", params={"user": known})
        assert httpx.get(f"{address}/health").status_code == 200
    assert answer.status_code == 500
    assert "insides" not in answer.text
    assert "content-security-policy" in answer.headers


def test_lists_use_the_item_weights(run: vf.Run, catalogue: Catalogue) -> None:
    rankers = catalogue.rankers[FEDERATED]
    weighted = [p for p, ranker in enumerate(rankers) if ranker.item_weights is not None]
    assert weighted, "no party of this run mixes in EASE"
    for p in weighted:
        model = run.ranker.models[p]
        assert model.item_scores is not None
        people = list(range(0, 200, 7))
        wishes = [
            RankingQuery(model.users[user], 9, NO_ITEMS, None, rankers[p].find_owned(user)) for user in people
        ]
        for user, found in zip(people, rankers[p].rank(wishes), strict=True):
            shares = model.score(torch.tensor([user]))[0].softmax(0)
            assert found.scores == pytest.approx(shares.topk(9).values.tolist(), rel=1e-4)
            assert found.scores == pytest.approx(shares[found.rows].tolist(), rel=1e-4)
        # A newcomer with the items and the vector of a trained user has the same list.
        owned = rankers[p].find_owned(people[3])
        scores = model.items @ model.users[people[3]] + model.item_scores.score_items(torch.from_numpy(owned))
        assert rankers[p].rank(wishes[3:4])[0].rows == scores.topk(9).indices.tolist()


def test_item_weights_of_some_items_only() -> None:
    generator = torch.Generator().manual_seed(0)
    kept = torch.tensor([1, 4, 5])
    weights = torch.randn(3, 3, generator=generator)
    scores = ItemScores(weights, kept, torch.tensor([0, 2, 2]), torch.tensor([0, 2], dtype=torch.int32), 7)
    nothing = torch.zeros(2, 0)
    ranker = ItemRanker(PartyModel(nothing, torch.zeros(7, 0), torch.zeros(7, 0), scores), ranks=True)
    assert ranker.item_weights is not None
    assert ranker.find_owned(0).tolist() == [1, 5]
    assert ranker.find_owned(1).tolist() == []
    wishes = [RankingQuery(nothing[0], 7, NO_ITEMS, None, owned) for owned in (np.array([1, 5, 6]), NO_ITEMS)]
    some, none = ranker.rank(wishes)
    expected = torch.zeros(7)
    expected[kept] = weights[0] + weights[2]
    assert some.scores == pytest.approx(expected.softmax(0).sort(descending=True).values.tolist())
    assert none.scores == pytest.approx([1 / 7] * 7)
    assert ranker.item_weights.split_score(4, np.array([1, 5, 6])) == pytest.approx(
        [float(weights[0, 1]), float(weights[2, 1]), 0]
    )
    assert not ranker.item_weights.split_score(0, np.array([1, 5])).any()


def test_items_with_a_share_of_almost_nothing_are_listed() -> None:
    items = torch.tensor([[0.0], [500.0], [1000.0]])
    ranker = ItemRanker(PartyModel(torch.ones(1, 1), items, items), ranks=True)
    assert ranker.rank([RankingQuery(torch.ones(1), 3, NO_ITEMS)])[0].rows == [2, 1, 0]


@pytest.mark.parametrize("model", ["federated", "alone"])
def test_reasons_of_lists_add_up_for_trained_users(run: vf.Run, catalogue: Catalogue, model: str) -> None:
    named = 0
    for user in range(0, 200, 20):
        for p, ranker in enumerate(catalogue.rankers[model]):
            profile = profile_user(catalogue, model, ServedUser(user), [p])
            queries = [query for _, query in make_queries(catalogue, model, profile, 3, {})]
            best = merge_rankings([p], ranker.rank(queries), 3)
            rated = catalogue.find_training_ratings(user, [p])
            before = ranker.model.score(torch.tensor([user]))[0]
            reasons = explain_recommendations(catalogue, model, profile, rated, best, 4)
            for (_, row, _), why in zip(best, reasons, strict=True):
                whole = sum(why[part] for part in ("average", "habit", "taste", "items", "rest"))
                assert whole == pytest.approx(float(before[row]), abs=1e-3)
                if ranker.item_weights is not None:
                    named += any(reason["adds"] > 0 for reason in why["because"])
                else:
                    assert why["items"] == 0
    assert named, "no recommendation has a reason at a party with item weights"


def test_a_newcomer_without_likes_is_the_average_user_with_their_items(catalogue: Catalogue) -> None:
    disliked = UserRatings(0, np.array([1, 2]), np.array([1, 2], np.float32))
    prior = catalogue.priors[FEDERATED][0]
    profile = profile_user(catalogue, FEDERATED, ServedUser(None, [disliked]), [0])
    assert profile[0].vector.numpy() == pytest.approx(prior.mean, abs=1e-5)
    assert profile[0].owned.tolist() == profile[0].rated.tolist() == [1, 2]
    liking = UserRatings(0, np.array([1, 2]), np.array([1, 5], np.float32))
    assert not np.allclose(
        profile_user(catalogue, FEDERATED, ServedUser(None, [liking]), [0])[0].vector.numpy(),
        prior.mean,
        atol=1e-4,
    )


def test_a_party_that_mixes_only_item_weights_is_served(run: vf.Run, known: str) -> None:
    assert run.lists is not None
    parts = prepare(run.parties, run.config, torch.device("cpu"), run.parts)
    lists = replace(run.lists, models=[ease_model(party.input) for party in parts])
    catalogue = Catalogue(replace(run, lists=lists), "items")
    with serving(make_app(catalogue)) as address, httpx.Client(base_url=address) as client:
        found = client.get("/v1/recommendations", params={"user": known, "k": 5, "why": 2}).json()
        assert same_items(found["recommendations"], catalogue.run.recommend(known, 5))
        assert all(item["why"]["items"] != 0 for item in found["recommendations"])
        item = str(run.parties[0].ratings.item_ids[0])
        rating = {"item": item, "party": run.parties[0].name, "rating": 5}
        folded = client.post("/v1/recommendations", json={"ratings": [rating], "k": 3, "why": 1}).json()
        assert len(folded["recommendations"]) == 3
        similar = client.get("/v1/similar", params={"item": item, "party": run.parties[0].name}).json()
        assert similar["similar"][0]["similarity"] > 0  # from the vectors of the predicted ratings


def test_the_overview_names_lists_that_lose_to_popularity(run: vf.Run) -> None:
    metrics = deepcopy(run.metrics)
    for row in metrics["parties"]:
        row["popularity"]["ndcg@20"] = 0.0
    changed = replace(run, metrics=metrics)
    assert describe_run(Catalogue(changed, "x"), range(len(run.parties)))["warning"] is None
    metrics["parties"][1] |= {"test": {"ndcg@20": 0.028}, "popularity": {"ndcg@20": 0.078}}
    warning = describe_run(Catalogue(changed, "x"), range(len(run.parties)))["warning"]
    assert "worse than the most popular items" in warning
    assert f"{run.parties[1].name} 0.0280, popularity 0.0780" in warning
    assert describe_run(Catalogue(changed, "x", run.parties[0].name), [0])["warning"] is None


def test_large_catalogues_are_sorted_exactly() -> None:
    generator = torch.Generator().manual_seed(0)
    items, people = torch.randn(5000, 8, generator=generator), torch.randn(9, 8, generator=generator)
    shelf = ItemRanker(PartyModel(people, items, items), ranks=False)
    even = torch.arange(5000) % 2 == 0
    wishes = [
        RankingQuery(person, 5 + place, np.arange(place * 100), even if place % 2 else None)
        for place, person in enumerate(people)
    ]
    for place, (wish, found) in enumerate(zip(wishes, shelf.rank(wishes), strict=True)):
        scores = items @ people[place]
        scores[: place * 100] = -torch.inf
        if wish.allowed is not None:
            scores[~wish.allowed] = -torch.inf
        assert found.rows == scores.topk(5 + place).indices.tolist()


def test_an_index_finds_nearly_all_and_leaves_out_the_known() -> None:
    pytest.importorskip("faiss", reason="the extra index is not installed")
    rng = np.random.default_rng(0)
    centres = rng.normal(0, 1, (50, 16))
    made = [centres[rng.integers(0, 50, n)] + rng.normal(0, 0.5, (n, 16)) for n in (5000, 40)]
    items, people = (torch.from_numpy(values.astype(np.float32)) for values in made)
    model = PartyModel(people, items, items)
    exact, indexed = ItemRanker(model, ranks=False), ApproximateRanker(model)
    wishes = [RankingQuery(person, 10, (items @ person).topk(5).indices.numpy()) for person in people]
    pairs = list(zip(exact.rank(wishes), indexed.rank(wishes), strict=True))
    assert np.mean([len(set(a.rows) & set(b.rows)) / 10 for a, b in pairs]) > 0.9
    assert all(
        not set(found.rows) & set(wish.exclude.tolist())
        for (_, found), wish in zip(pairs, wishes, strict=True)
    )
    narrow = [RankingQuery(people[0], 10, np.empty(0, np.int64), torch.arange(5000) < 100)]
    assert indexed.rank(narrow) == exact.rank(narrow)


def test_party_and_column_narrow_the_answer(run: vf.Run, client: Any) -> None:
    user, party = users(run)[0], run.parties[1].name
    column, values = next(iter(run.parties[1].ratings.columns.items()))
    found = client.get("/v1/recommendations", params={"user": user, "party": party}).json()["recommendations"]
    assert {item["party"] for item in found} == {party}
    narrow = client.get("/v1/recommendations", params={"user": user, column: str(values[0])}).json()[
        "recommendations"
    ]
    assert narrow
    assert {item["columns"][column] for item in narrow} == {str(values[0])}
    none = client.get("/v1/recommendations", params={"user": user, column: "no such value"})
    assert (none.status_code, none.json()) == (200, {"recommendations": []})


@pytest.mark.parametrize("path", ["/v1/rating?user=x&item=x", "/v1/users?", "/v1/history?user=x", "/health?"])
def test_parameters_that_nobody_reads_are_a_mistake(client: Any, path: str) -> None:
    answer = client.get(f"{path}&category=book")
    assert answer.status_code == 400
    assert answer.json()["error"]["cause"] == "there is no such parameter"


def test_the_cache_of_filters_is_bounded(catalogue: Catalogue) -> None:
    party = catalogue.parties[0]
    value = str(party.table.columns["category"][0])
    assert int(party.filter_items({"category": value}).sum()) > 0
    for length in range(1, 400):
        assert not party.filter_items({"category": value + "\0" * length}).any()
    assert party._cached_filter.cache_info().currsize <= 256


def test_a_catalogue_can_run_out(run: vf.Run, client: Any) -> None:
    user, table = users(run)[0], run.parties[0].ratings
    found = client.get(
        "/v1/recommendations", params={"user": user, "k": 1000, "party": run.parties[0].name}
    ).json()
    assert len(found["recommendations"]) == table.n_items - int((table.user == 0).sum())


def test_alone_is_another_model(run: vf.Run, client: Any) -> None:
    user, party = users(run)[3], run.parties[0].name
    assert run.alone is not None
    found = client.get(
        "/v1/recommendations", params={"user": user, "party": party, "model": "alone", "k": 5}
    ).json()
    assert same_items(found["recommendations"], as_alone(run).recommend(user, 5, party=party))
    with serving(make_app(Catalogue(without_alone(run), "x"))) as address:
        refused = httpx.get(f"{address}/v1/recommendations", params={"user": user, "model": "alone"})
    assert refused.status_code == 404
    assert "preset best" in refused.json()["error"]["remedy"]


def test_a_partys_own_run_is_served(run: vf.Run, known: str) -> None:
    own = keep_party(run, 1)
    own.lists = keep_party(run.ranker, 1)
    with serving(make_app(Catalogue(own, "own"))) as address, httpx.Client(base_url=address) as client:
        about = client.get("/v1/run").json()
        assert [party["name"] for party in about["parties"]] == [run.parties[1].name]
        assert [row["metric"] for row in about["parties"][0]["figures"]] == ["rmse", "ndcg@20"]
        assert all(row["alone"] > 0 for row in about["parties"][0]["figures"])
        found = client.get("/v1/recommendations", params={"user": known, "k": 5}).json()["recommendations"]
        assert same_items(found, own.recommend(known, 5))


def keep_party(run: vf.Run, party: int) -> vf.Run:
    """Return the run that one party of a federation would have."""
    assert run.alone is not None
    kept = slice(party, party + 1)
    return replace(
        run, parties=run.parties[kept], parts=run.parts[kept], models=run.models[kept], alone=run.alone[kept]
    )


def test_a_pair_and_what_was_given(run: vf.Run, client: Any) -> None:
    table = run.parties[2].ratings
    user, item, rating = int(table.user[0]), int(table.item[0]), float(table.rating[0])
    asked = {
        "user": str(table.user_ids[user]),
        "item": str(table.item_ids[item]),
        "party": run.parties[2].name,
    }
    pair = client.get("/v1/rating", params=asked).json()
    assert pair["rated"] == rating
    wanted = float(run.models[2].users[user] @ run.models[2].items[item])
    assert pair["rating"] == pytest.approx(min(max(wanted, table.scale[0]), table.scale[1]), abs=1e-4)
    shares = run.ranker.models[2].score(torch.tensor([user]))[0].softmax(0)
    assert pair["score"] == pytest.approx(float(shares[item]), abs=1e-5)


def test_newcomers_come_near_the_trained() -> None:
    parties = vf.split_items(
        synthetic_ratings(users=400, items=120, ratings=16000, seed=7), parties=3, seed=7
    )
    config = vf.Config.preset("best", epochs=150, gate=False)
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
        rated = [
            UserRatings(p, t.item[mine].astype(np.int64), t.rating[mine]) for p, t, mine in own if mine.any()
        ]
        z = fold_in(places, rated, ranks=False).z
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
        ({"item": "no such item", "rating": 3}, 404, "ratings.0: there is no such item"),
        ({"item": "0", "rating": 99}, 400, "ratings.0: the rating is outside the scale"),
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
    places = rating_catalogue.priors[FEDERATED]
    high = UserRatings(0, items, np.array([5, 4, 3, 2, 1, 5], np.float32))
    fold = fold_in(places, [high], ranks=False)
    profile = profile_user(rating_catalogue, FEDERATED, ServedUser(None, [high]), [0])
    model = rating_catalogue.run.models[0]
    score = float(model.items[20] @ places[0].make_vector(fold.z))
    why = explain_recommendations(rating_catalogue, FEDERATED, profile, [high], [(0, 20, score)], 6)[0]
    assert why["rest"] == pytest.approx(0, abs=1e-4)
    assert why["items"] == 0
    # What one rating adds is what is missing when it had been what the average user would give.
    level = places[0].level[0]
    neutral = UserRatings(0, items, np.array([level, 4, 3, 2, 1, 5], np.float32))
    less = float(model.items[20] @ places[0].make_vector(fold_in(places, [neutral], ranks=False).z))
    whole = float(fold.split_score(places[0].project_items(np.array([20])))[0][0, 0])
    assert score - less == pytest.approx(whole, abs=1e-4)


def test_similar_items_move_together(rating_catalogue: Catalogue) -> None:
    run = rating_catalogue.run
    found = find_similar(rating_catalogue, 0, 0, [0], 5)
    predicted = (run.models[0].users @ run.models[0].items.T).numpy()
    shared = (np.ptp(run.models[0].items.numpy(), axis=0) == 0).astype(np.float32)
    level = (run.models[0].users * torch.from_numpy(shared)) @ run.models[0].items[0]
    taste = predicted - level.numpy()[:, None]
    wanted = np.corrcoef(taste.T)[0]
    rows = [rating_catalogue.parties[0].ids.find(item["item"]) for item in found]
    assert [item["similarity"] for item in found] == pytest.approx(
        [wanted[row] for row in rows if row is not None], abs=1e-3
    )
    assert found[0]["similarity"] == pytest.approx(np.sort(wanted)[-2], abs=1e-3)


def test_similar_items_of_a_kind(run: vf.Run, client: Any) -> None:
    column, values = next(iter(run.parties[1].ratings.columns.items()))
    kind = str(values[0])
    asked = {"item": str(run.parties[0].ratings.item_ids[0]), "party": run.parties[0].name, "k": 1000}
    every = client.get("/v1/similar", params=asked).json()["similar"]
    found = client.get("/v1/similar", params=asked | {column: kind}).json()["similar"]
    assert 0 < len(found) < len(every)
    assert found == [one for one in every if one["columns"].get(column) == kind]
    assert client.get("/v1/similar", params=asked | {"colour": "red"}).status_code == 400


@pytest.mark.parametrize(
    ("path", "status", "word"),
    [
        ("/v1/recommendations?user=nobody", 404, "POST their ratings"),
        ("/v1/recommendations", 400, "correct the request"),
        ("/v1/recommendations?user=1&k=1001", 400, "correct the request"),
        ("/v1/recommendations?user=1&party=nobody", 404, "use one of"),
        ("/v1/recommendations?user=1&colour=red", 400, "columns: "),
        ("/v1/similar?item=nothing", 404, "as in the data"),
        ("/v1/rating?user=1&item=nothing", 404, "as in the data"),
        ("/nowhere", 404, "openapi.json"),
    ],
)
def test_errors_have_a_cause_and_a_remedy(client: Any, known: str, path: str, status: int, word: str) -> None:
    answer = client.get(path.replace("user=1", f"user={known}"))
    error = answer.json()["error"]
    assert answer.status_code == status
    assert word in error["remedy"]
    assert error["cause"]
    assert "Traceback" not in answer.text


def test_with_a_key_nothing_but_health_and_the_empty_page_is_open(catalogue: Catalogue, known: str) -> None:
    with (
        serving(make_app(catalogue, keys=[ApiKey("key", digest_key(KEY))])) as address,
        httpx.Client(base_url=address) as client,
    ):
        assert client.get("/health").json() == {"status": "ok"}
        assert client.get("/").status_code == 200
        private = [
            "/metrics",
            "/v1/run",
            f"/v1/recommendations?user={known}",
            "/v1/users",
            "/openapi.json",
            "/nowhere",
        ]
        for path in private:
            for wrong in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": KEY}):
                assert client.get(path, headers=wrong).status_code == 401, path
        right = {"Authorization": f"Bearer {KEY}"}
        assert [client.get(path, headers=right).status_code for path in private] == [200] * 5 + [404]


def test_another_name_for_this_machine_is_refused_without_a_key(client: Any, catalogue: Catalogue) -> None:
    assert client.get("/v1/run", headers={"Host": "evil.example"}).status_code == 403
    assert client.get("/v1/run", headers={"Host": "localhost:1"}).status_code == 200
    assert [
        is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "::", "example.org")
    ] == [True] * 3 + [False] * 3


def test_large_requests_are_refused(client: Any) -> None:
    many = {"ratings": [{"item": "0", "rating": 1}] * 10_001}
    assert client.post("/v1/recommendations", json=many).status_code == 400
    assert client.post("/v1/recommendations", content=b" " * (LARGEST_BODY + 1)).status_code == 413

    def pieces() -> Iterator[bytes]:
        for _ in range(30):
            yield b" " * 100_000

    assert client.post("/v1/recommendations", content=pieces()).status_code == 413


def test_metrics_count_routes_and_name_nobody(client: Any, known: str) -> None:
    client.get("/v1/recommendations", params={"user": known})
    client.get("/v1/recommendations", params={"user": "somebody-secret"})
    text = client.get("/metrics").text
    assert 'verfedgnn_requests_total{route="/v1/recommendations",status="200"}' in text
    assert "somebody-secret" not in text


def test_headers_keep_the_page_to_itself(client: Any) -> None:
    for path in ("/", "/v1/run", "/nowhere"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"


def test_openapi_describes_what_there_is(client: Any) -> None:
    described = client.get("/openapi.json").json()
    assert {"/v1/recommendations", "/v1/similar", "/v1/rating", "/health", "/metrics"} <= set(
        described["paths"]
    )
    example = described["components"]["schemas"]["Newcomer"]["examples"][0]
    assert example["ratings"]


def test_ids_are_found_by_text_and_by_their_start() -> None:
    ids = IdIndex(np.array(["2", "10", "1", "21", "x y"]))
    assert [ids.find(text) for text in ("10", "x y", "3", "", "100")] == [1, 4, None, None, None]
    assert ids.find_prefix("1", 8) == [2, 1]
    assert ids.find_prefix("2", 1) == [0]


def test_everybody_as_a_table(run: vf.Run, catalogue: Catalogue, tmp_path: Path) -> None:
    path = tmp_path / "all.parquet"
    assert write_table(catalogue, path, 4) == 4 * run.parties[0].ratings.n_users
    rows = pq.read_table(path).to_pylist()
    for user in users(run)[::50]:
        mine = [row for row in rows if row["user"] == user]
        assert [row["place"] for row in mine] == [1, 2, 3, 4]
        assert same_items(mine, run.recommend(user, 4))


def test_commands(
    run: vf.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tmp_path / "run", tmp_path / "all.parquet"
    run.save(folder)

    def verfedgnn(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["verfedgnn", *words])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        return code, *capsys.readouterr()

    _, printed, said = verfedgnn("recommend", str(folder), "--user", users(run)[0], "--json")
    assert json.loads(printed)[0].keys() == {"item", "title", "party", "score", "rating"}
    assert (warn_of_lists(run.metrics) or "diagnosis: ") in said
    assert said.splitlines()[-1] == f"next: verfedgnn serve {folder}"
    _, printed, _ = verfedgnn("recommend", str(folder), "--user", users(run)[0])
    assert "share" in printed
    assert "rating" in printed
    _, printed, _ = verfedgnn("recommend", str(folder), "--all", "--out", str(out), "--top", "2", "--json")
    assert json.loads(printed)["rows"] == 2 * run.parties[0].ratings.n_users
    for words in (
        [],
        ["--all"],
        ["--user", "1", "--out", "x.parquet"],
        ["--user", "1", "--all", "--out", "x.parquet"],
    ):
        code, _, error = verfedgnn("recommend", str(folder), *words)
        assert code == 2
        assert "--all --out FILE.parquet" in error
    assert (
        "is not a Parquet file name"
        in verfedgnn("recommend", str(folder), "--all", "--out", str(tmp_path / "all.csv"))[2]
    )
    assert "already exists" in verfedgnn("recommend", str(folder), "--all", "--out", str(out))[2]
    code, _, error = verfedgnn("serve", str(folder), "--host", "0.0.0.0")
    assert code == 2
    assert "--api-key-file" in error
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "choose another" in verfedgnn("serve", str(folder), "--port", str(taken.getsockname()[1]))[2]


def test_recommend_says_that_popularity_is_better(
    run: vf.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = deepcopy(run.metrics)
    metrics["parties"][0]["popularity"]["ndcg@20"] = 1.0
    replace(run, metrics=metrics).save(tmp_path / "run")
    words = ["verfedgnn", "recommend", str(tmp_path / "run"), "--user", users(run)[0], "--party"]
    monkeypatch.setattr(sys, "argv", [*words, run.parties[0].name])
    with pytest.raises(SystemExit):
        main()
    assert "worse than the most popular items" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", [*words, run.parties[0].name, "--quiet"])
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().err == ""


def test_vectors_of_ratings_and_of_lists_are_exported(run: vf.Run, tmp_path: Path) -> None:
    run.save(tmp_path / "run")
    out = tmp_path / "vectors"
    done = CliRunner().invoke(app, ["export", str(tmp_path / "run"), "--out", str(out)])
    assert done.exit_code == 0, done.output
    about = json.loads((out / "embeddings.json").read_text())
    assert [party["name"] for party in about["parties"]] == [party.name for party in run.parties]
    for p, party in enumerate(about["parties"]):
        models = {"ratings": run.models[p], "lists": run.ranker.models[p]}
        assert [vectors["purpose"] for vectors in party["vectors"]] == ["ratings", "lists"]
        for vectors in party["vectors"]:
            model = models[vectors["purpose"]]
            paths = [out / file for file in vectors["files"]]
            read = [np.stack(pq.read_table(path)["vector"].to_numpy()) for path in paths]
            np.testing.assert_array_equal(read[0], model.users.numpy())
            np.testing.assert_array_equal(read[1], model.items.numpy())
            assert ("EASE" in vectors["meaning"]) == (model.item_scores is not None)
            stored = json.loads(pq.read_schema(paths[1]).metadata[b"verfedgnn"])
            assert (stored["purpose"], stored["meaning"]) == (vectors["purpose"], vectors["meaning"])
            gate = run.metrics["parties"][p]["gate" if vectors["purpose"] == "ratings" else "list_gate"]
            mixed = {name for name, weight in gate["known"].items() if weight}
            assert ("factors" in vectors["parts"]) == ("federated" in mixed)
            assert ("alone factors" in vectors["parts"]) == ("alone" in mixed)
            assert ("popularity" in vectors["parts"]) == ("popularity" in mixed)
            assert "components" not in vectors["parts"]


def test_the_command_serves(run: vf.Run, known: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run.save(folder)
    command = [
        sys.executable,
        "-m",
        "verfedgnn",
        "serve",
        str(folder),
        "--port",
        "0",
        "--party",
        run.parties[0].name,
    ]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    watchdog = threading.Timer(60, server.kill)
    watchdog.start()
    try:
        assert server.stdout is not None
        address = server.stdout.readline().split(" at ")[1].split()[0]
        with httpx.Client(base_url=address, timeout=180) as client:
            found = client.get("/v1/recommendations", params={"user": known, "k": 3}).json()[
                "recommendations"
            ]
            assert same_items(found, run.recommend(known, 3, party=run.parties[0].name))
            client.get("/v1/recommendations", params={"user": "somebody-secret"})
    finally:
        server.terminate()
        written = "".join(server.communicate(timeout=180))
        watchdog.cancel()
    assert "somebody-secret" not in written

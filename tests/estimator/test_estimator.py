"""The estimator's answers about a federation: accuracy, lift, and lists with stars."""

from __future__ import annotations

from typing import Any

import pytest

import verfedgnn as vf
from verfedgnn.data import synthetic_ratings

SHORT: dict[str, Any] = {"epochs": 5, "dim": 4}


@pytest.fixture(scope="module")
def fitted() -> vf.VerFedRecommender:
    table = synthetic_ratings(users=120, items=45, ratings=2500, seed=1)
    return vf.VerFedRecommender(**SHORT).fit(table, by="category")


def test_lift_answers_for_ratings_lists_and_newcomers(fitted: vf.VerFedRecommender) -> None:
    found = fitted.lift()
    assert found["metric"] == "rmse"
    assert found["lists"]["metric"] == "ndcg@20"
    for half in (found, found["lists"]):
        for table in (half, half["newcomers"]):
            assert [row["name"] for row in table["parties"]] == fitted.parties_
            assert {row["pays"] for row in table["parties"]} <= {"yes", "no", "cannot tell"}
    assert found.summary.endswith(".")
    assert fitted.metrics_["lift"] == found.to_dict()
    assert fitted.lift() == found, "it is computed once"


def test_evaluate_agrees_with_the_metrics_of_the_run(fitted: vf.VerFedRecommender) -> None:
    found = fitted.evaluate()
    assert found["test"] == pytest.approx(fitted.metrics_["test"])
    assert found["popularity"] == pytest.approx(fitted.metrics_["popularity"])
    assert set(fitted.evaluate(5)["test"]) == {"rmse", "mae", "recall@5", "ndcg@5", "hitrate@5"}
    assert fitted.score() == pytest.approx(-found["test"]["rmse"])


def test_recommend_gives_an_order_and_stars(fitted: vf.VerFedRecommender) -> None:
    user = str(fitted.run_.parties[0].ratings.user_ids[3])
    items = fitted.recommend(user, k=6)
    scores = [item.score for item in items]
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores), "shares of a catalogue"
    predicted = fitted.predict([user] * 6, [item.item for item in items])
    assert [item.rating for item in items] == pytest.approx(list(predicted), abs=1e-5)


def test_two_parties_train_with_the_default_settings() -> None:
    table = synthetic_ratings(users=60, items=30, ratings=900, seed=1)
    estimator = vf.VerFedRecommender(**SHORT, gate=False).fit(table, parties=2)
    assert estimator.config_.exchange.mode == "noised"


def test_a_ranking_has_an_order_and_no_stars() -> None:
    table = synthetic_ratings(users=60, items=30, ratings=900, seed=1)
    estimator = vf.VerFedRecommender("ranking", **SHORT, gate=False).fit(table, parties=3)
    assert all(item.rating is None for item in estimator.recommend(str(table.user_ids[0])))
    assert estimator.score() == estimator.evaluate()["test"]["ndcg@20"]


def test_nothing_is_answered_before_fit() -> None:
    for ask in (vf.VerFedRecommender().lift, vf.VerFedRecommender().evaluate):
        with pytest.raises(vf.RunError, match="call fit"):
            ask()

"""The estimator's answers about a federation: accuracy, lift, and lists with stars."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import verfedgnn as vf
from verfedgnn.data import synthetic_ratings
from verfedgnn.evaluation.verdict import WORDS
from verfedgnn.reports import round_progress
from verfedgnn.reports.round_progress import NotebookProgress, RoundProgress, watching
from verfedgnn.training.progress import Progress

pytestmark = pytest.mark.usefixtures("short_own_models")

SHORT: dict[str, Any] = {"epochs": 5, "dim": 6, "final": False}


@pytest.fixture(scope="module")
def fitted() -> vf.VerFedRecommender:
    table = synthetic_ratings(users=120, items=45, ratings=2500, seed=1)
    return vf.VerFedRecommender(**SHORT).fit(table, by="category")


def test_lift_answers_for_ratings_lists_and_newcomers(fitted: vf.VerFedRecommender) -> None:
    found = fitted.lift()
    assert found["metric"] == "rmse"
    assert found["lists"]["metric"] == "hitrate@20"
    for half in (found, found["lists"]):
        for table in (half, half["newcomers"]):
            assert [row["name"] for row in table["parties"]] == fitted.parties_
            assert {row["pays"] for row in table["parties"]} <= set(WORDS)
    assert found.headline.endswith(".")
    assert fitted.metrics_["lift"] == found.to_dict()
    assert vf.lift(fitted.run_).to_dict() == found.to_dict()


def test_a_lift_is_an_object_for_notebooks(fitted: vf.VerFedRecommender) -> None:
    found = fitted.lift()
    by_party = found.to_frame()
    assert len(by_party) == 16, (
        "three parties and all of them, for ratings and lists, known and new customers"
    )
    film = by_party[
        (by_party["party"] == "film") & (by_party["metric"] == "rmse") & (by_party["customers"] == "known")
    ]
    film = film.iloc[0]
    (row,) = [row for row in found["parties"] if row["name"] == "film"]
    assert film["federated"] == row["federated"]
    assert film["gain_percent"] == row["gain"]["percent"]
    assert film["pays"] == row["pays"]
    assert {"users", "alone", "federated", "low_percent", "high_percent", "pays"} <= set(by_party.columns)
    assert " ".join(repr(found).split()).startswith(found.headline)
    for page in (found._repr_html_(), fitted._repr_html_(), fitted.run_._repr_html_()):
        assert found.headline in page.replace("&nbsp;", " ")
        assert page.count("<svg") >= 1
        assert "film" in page


def test_a_notebook_shows_progress_and_clears_it() -> None:
    shown: list[str] = []
    page = SimpleNamespace(HTML=str, display=lambda text, display_id: SimpleNamespace(update=shown.append))
    with NotebookProgress(page) as bar:
        bar.shown = -1.0
        bar.round(Progress("film <b>", 3, 60, {"rmse": 0.9}, {"rmse": 0.8}, 2_000))
    assert shown[0].startswith(
        '<progress value="3" max="60"></progress> film &lt;b&gt;: 3/60 rounds  RMSE 0.9000'
    )
    assert shown[-1] == ""


def test_the_watcher_of_the_caller_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    event = Progress("federation", 1, 2, None, {}, 0)
    seen: list[Progress] = []
    for verbose in (True, False):
        with watching(verbose, seen.append) as watch:
            assert watch is not None
            watch(event)
    with watching(True) as watch:
        assert watch is None, "nothing is shown where there is neither a terminal nor a notebook"
    monkeypatch.setattr(round_progress, "_make_bar", lambda: RoundProgress(hidden=True))
    with watching(True, seen.append) as watch:
        assert watch is not None
        watch(event)
    assert seen == [event] * 3


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
    assert estimator.run_.config.noise_of(len(estimator.run_.parties)) == 0.25, (
        "two parties see each other's gradients"
    )


def test_nothing_is_answered_before_fit() -> None:
    for ask in (vf.VerFedRecommender().lift, vf.VerFedRecommender().evaluate):
        with pytest.raises(vf.RunError, match="call fit"):
            ask()


def test_similar_items_come_from_all_catalogues(fitted: vf.VerFedRecommender) -> None:
    item = str(fitted.run_.parties[0].ratings.item_ids[0])
    found = fitted.similar(item, k=44)
    assert {each.party for each in found} == set(fitted.parties_)
    assert item not in {each.item for each in found}
    scores = [each.score for each in found]
    assert scores == sorted(scores, reverse=True)
    with pytest.raises(vf.RunError, match="'nothing' is in no catalogue; known items look like"):
        fitted.similar("nothing")


def test_a_notebook_shows_the_parameters_and_the_run(fitted: vf.VerFedRecommender) -> None:
    assert "dim=6" in fitted._repr_html_()
    assert "<svg" in fitted._repr_html_()
    assert "<svg" not in vf.VerFedRecommender()._repr_html_()

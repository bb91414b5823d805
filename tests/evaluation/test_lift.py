"""Whether joining pays: the bootstrap, lift of ratings and lists, newcomers; ranking."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import verfedgnn as vf
from helpers import same_model
from verfedgnn.config.tree import FINAL_ROUNDS
from verfedgnn.core.rating_scale import upper_quarter
from verfedgnn.data import NEWCOMER, TEST, TRAIN, VALID
from verfedgnn.evaluation.chance import ERROR, gain, holm, p_value
from verfedgnn.evaluation.verdict import KNOWN, WORDS, judged_tables, narrow_lift, party_names
from verfedgnn.gnn.model import Model
from verfedgnn.runs.metrics_file import evaluate


def best(**values: Any) -> vf.Config:
    return vf.Config.preset("best").with_values({"epochs": 40, "dim": 8, "lists": False} | values)


def test_a_real_gain_is_seen_and_none_is_not_made_up() -> None:
    rng = np.random.default_rng(0)
    user = rng.integers(0, 200, 4000)
    error = rng.normal(size=4000)
    worse = error + 0.3 * rng.normal(size=4000)
    found = gain(user, worse**2, error**2)
    assert found is not None
    assert found.pays == "yes"
    assert found.low < found.value < found.high
    back = gain(user, error**2, worse**2)
    assert back is not None
    assert back.pays == "no"
    assert gain(user[:0], error[:0], error[:0]) is None


def test_the_interval_holds_as_often_as_it_says() -> None:
    """200 comparisons of equally good models: 95 % of the intervals hold 0, and 24 misses have a chance of 1 in 10,000."""
    rng = np.random.default_rng(1)
    missed = 0
    for seed in range(200):
        user = rng.integers(0, 80, 800)
        shift = rng.normal(size=(2, 80))  # errors of one user go together
        a, b = (shift[i][user] * 0.5 + rng.normal(size=800) for i in (0, 1))
        found = gain(user, a**2, b**2, seed=seed)
        assert found is not None
        missed += found.pays != "cannot tell"
    assert missed < 24


def test_an_ndcg_interval_holds_as_often_as_it_says() -> None:
    """200 comparisons of equally good lists, one NDCG per user: 24 misses have a chance of 1 in 10,000."""
    rng = np.random.default_rng(2)
    user = np.arange(60)
    missed = 0
    for seed in range(200):
        shared = rng.beta(1, 3, 60)
        a, b = (np.where(rng.random(60) < 0.7, shared, rng.beta(1, 3, 60)) for _ in (0, 1))
        found = gain(user, a, b, "ndcg@20", seed=seed)
        assert found is not None
        missed += found.pays != "cannot tell"
    assert missed < 24


def test_a_higher_ndcg_is_a_gain_and_a_higher_error_a_loss() -> None:
    user = np.arange(50)
    low, high = np.full(50, 0.2), np.full(50, 0.25) + 0.001 * np.arange(50)
    lists, ratings = (gain(user, low, high, metric) for metric in ("ndcg@20", "rmse"))  # type: ignore[arg-type]
    assert lists is not None
    assert ratings is not None
    assert (lists.pays, ratings.pays) == ("yes", "no")
    assert lists.value == pytest.approx(high.mean() - 0.2)
    assert lists.to_dict()["percent"] == pytest.approx(100 * (high.mean() / 0.2 - 1))
    assert ratings.value == pytest.approx(np.sqrt(0.2) - np.sqrt(high.mean()))


def draw_equal_lists(rng: np.random.Generator, runs: int, cells: int, users: int) -> np.ndarray:
    """Return the NDCG of three equally good lists of each user, in each cell of each run (3, runs, cells, users)."""
    taste = rng.beta(1, 3, (1, runs, cells, users))
    return np.where(rng.random((3, runs, cells, users)) < 0.7, taste, rng.beta(1, 3, (3, runs, cells, users)))


def test_a_run_of_many_verdicts_seldom_has_a_false_one() -> None:
    """400 runs of 16 verdicts without a true gain: 37 runs with a false word have a chance of 1 in 4,000 at an error rate of 5 %.

    The gain is over the better of two equal models, as in a lift. Without a correction every third run has a false word or more.
    """
    runs, users = 400, 60
    federated, *others = draw_equal_lists(np.random.default_rng(4), runs, 16, users)
    better = others[0].mean(-1, keepdims=True) > others[1].mean(-1, keepdims=True)
    change = federated - np.where(better, *others)
    value = change.mean(-1)
    error = change.std(-1, ddof=1) / users**0.5
    one = gain(np.arange(users), change[0, 0] * 0, change[0, 0], "ndcg@20")
    assert one is not None
    assert one.error == pytest.approx(error[0, 0], rel=0.1)
    wrong = alone = 0
    for values, errors in zip(value, error, strict=True):
        chances = [p_value(v, e, users - 1) for v, e in zip(values, errors, strict=True)]
        wrong += holm(chances).any()
        alone += min(chances) <= ERROR
    assert alone > runs / 3
    assert wrong < 37


def test_holms_correction_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]).tolist() == [True, False, False]
    assert holm([0.03, 0.01, 0.02]).tolist() == [True, True, True]
    assert holm([0.04]).tolist() == [True]
    assert holm([]).tolist() == []
    assert (p_value(0, 0, 9), p_value(1, 0, 9)) == (1.0, 0.0)
    assert p_value(-2.262, 1, 9) == pytest.approx(0.05, abs=1e-4)


def test_few_users_cannot_tell() -> None:
    found = gain(np.arange(19), np.full(19, 1.0), np.full(19, 0.5))
    assert found is not None
    assert found.low > 0
    assert found.pays == "cannot tell"


def test_nobody_is_worse_off(small_parties: list[vf.PartyData], tmp_path: Path) -> None:
    """Parties whose ratings have nothing in common: the gate leaves each with what it has alone."""
    rng = np.random.default_rng(3)
    odd = [
        vf.PartyData(p.name, replace(p.ratings, rating=rng.permutation(p.ratings.rating)))
        for p in small_parties
    ]
    run = vf.train([small_parties[0], *odd[1:]], best(), out=tmp_path / "run")
    assert run.alone is not None
    assert run.judged.alone is not None
    alone = evaluate(run.judged.prepared(), run.judged.alone)
    for served, own in zip(run.metrics["parties"], alone["parties"], strict=True):
        assert served["test"]["rmse"] < 1.02 * own["test"]["rmse"]
        for weights in served["gate"].values():
            assert list(weights) == ["means", "federated means", "EASE", "alone", "federated"]
            assert sum(weights.values()) == pytest.approx(1)
    again = vf.Run.load(tmp_path / "run")
    assert again.alone is not None
    same_model(again.alone[0], run.alone[0])


@pytest.fixture(scope="module")
def joined(small_parties: list[vf.PartyData]) -> vf.Run:
    """A default training of ratings and lists."""
    return vf.train(small_parties, best(lists=True, epochs=20))


def rows_of(table: dict[str, Any]) -> list[dict[str, Any]]:
    groups = [group for row in table["parties"] for group in row["by_own_ratings"]]
    return [table["overall"], *table["parties"], *groups]


def test_lift_tells_parties_and_customers_apart(joined: vf.Run) -> None:
    found = joined.metrics["lift"]
    for customers, table in judged_tables(found):
        for row in rows_of(table):
            assert row["pays"] in WORDS
            assert {"simple", "alone", "federated", "users"} < row.keys()
            assert ("means" in row) == (table["metric"] == "rmse")
            if row["gain"] is not None:
                assert row["gain"]["low"] <= row["gain"]["value"] <= row["gain"]["high"]
                better = min if table["metric"] == "rmse" else max
                assert row[row["reference"]] == better(row["simple"], row["alone"])
                change = abs(row[row["reference"]] - row["federated"])
                assert change == pytest.approx(abs(row["gain"]["value"]))
        assert sum(row["cases"] for row in table["parties"]) == table["overall"]["cases"]
        for row in table["parties"]:
            groups = row["by_own_ratings"]
            assert sum(group["cases"] for group in groups) in (0, row["cases"])
            assert customers == KNOWN or not groups, "new customers have no rating here"
    assert [table["metric"] for _, table in judged_tables(found)] == ["hitrate@20"] * 2 + ["rmse"] * 2


def test_known_customers_have_a_training_rating_and_new_ones_are_withheld(joined: vf.Run) -> None:
    for party, ratings, hits in zip(
        joined.judged.prepared(),
        joined.metrics["lift"]["newcomers"]["parties"],
        joined.metrics["lift"]["parties"],
        strict=True,
    ):
        trained = set(party.train.user.tolist())
        withheld = set(party.newcomers.user.tolist())
        assert withheld
        assert not withheld & (trained | set(party.valid.user.tolist()) | set(party.test.user.tolist()))
        assert ratings["cases"] == len(party.newcomers)
        assert hits["cases"] == sum(user in trained for user in party.test.user.tolist())


def test_a_run_serves_what_was_trained_on_all_ratings_and_judges_what_was_not(joined: vf.Run) -> None:
    """Every rating has reached the served model, and the figures are those of the judged one."""
    assert joined.judged is not joined
    for part, judged in zip(joined.parts, joined.judged.parts, strict=True):
        assert (part == TRAIN).all()
        assert {TRAIN, VALID, TEST, NEWCOMER} <= set(judged.tolist())
    for run in (joined, joined.lists):
        assert run is not None
        counts = Model(run.config.model, joined.parties[0].ratings.n_users).views(run.public)["totals"][:, 0]
        ratings = sum(np.bincount(p.ratings.user, minlength=len(counts)) for p in joined.parties)
        liked = [upper_quarter(p.ratings.scale) for p in joined.parties]
        weights = sum(
            np.bincount(p.ratings.user, np.where(p.ratings.rating >= low, 1, 0.5), len(counts))
            for p, low in zip(joined.parties, liked, strict=True)
        )
        assert counts.numpy() == pytest.approx(weights if run.config.ranks else ratings)
    assert joined.evaluate()["test"] == joined.judged.evaluate()["test"]
    cost = joined.metrics["final"]
    assert (cost["rounds"], cost["lists"]["rounds"]) == (FINAL_ROUNDS["ratings"], FINAL_ROUNDS["lists"])
    assert sum(cost["bytes"][way] for way in ("up", "down")) > 0
    gates = [(row["gate"], row["list_gate"]) for row in joined.judged.metrics["parties"]]
    assert [(row["gate"], row["list_gate"]) for row in joined.metrics["parties"]] == gates


def test_only_judging_serves_the_judged_models(small_parties: list[vf.PartyData]) -> None:
    run = vf.train(small_parties, best(epochs=3, final=False))
    assert run.judged is run
    assert "final" not in run.metrics
    assert "lift" in run.metrics


def test_a_private_run_repeats_at_home_what_it_chose(small_parties: list[vf.PartyData]) -> None:
    """No second federated training: the public parameters are those that were judged, the items have seen all ratings."""
    declared = [
        vf.PartyData(p.name, replace(p.ratings, scale_declared=True, catalogue=p.ratings.n_items))
        for p in small_parties
    ]
    run = vf.train(declared, vf.Config.preset("private", epochs=4, evaluate_every=2))
    assert torch.equal(run.public, run.judged.public)
    for served, judged in zip(run.models, run.judged.models, strict=True):
        assert not torch.equal(served.items, judged.items)
    assert all((part == TRAIN).all() for part in run.parts)


def test_a_lift_is_that_of_its_party_alone(joined: vf.Run) -> None:
    """All definitions are such that a party computes them from what it has, to the bit."""
    lift = joined.metrics["lift"]
    for name in party_names(lift):
        narrow = narrow_lift(lift, name)
        assert [table["overall"] for _, table in judged_tables(narrow)] == [
            {k: v for k, v in row.items() if k not in ("name", "by_own_ratings")}
            for _, table in judged_tables(lift)
            for row in table["parties"]
            if row["name"] == name
        ]


def test_what_a_default_training_lists_is_ordered_by_its_lists(joined: vf.Run) -> None:
    run = joined.judged
    assert run.lists is not None
    assert run.ranker is run.lists
    assert run.lists.config == run.config.for_lists()
    assert run.metrics["lists"]["public"] == run.lists.metrics["public"] != run.metrics["public"]
    for row, other in zip(run.metrics["parties"], run.lists.metrics["parties"], strict=True):
        assert row["list_gate"] == other["gate"]
        assert row["test"]["ndcg@20"] == other["test"]["ndcg@20"]
    by_stars = evaluate(run.prepared(), run.models)["test"]["ndcg@20"]
    assert run.metrics["test"]["ndcg@20"] > by_stars


def test_lists_are_no_worse_than_popularity_where_ratings_say_nothing_about_presence(
    small_parties: list[vf.PartyData],
) -> None:
    """Users rate at random and like every other item, odd users the odd ones: a model of who rated what learns nothing."""
    parties = [
        vf.PartyData(
            p.name,
            replace(
                p.ratings, rating=np.where(p.ratings.user % 2 == p.ratings.item % 2, 5, 1).astype(np.float32)
            ),
        )
        for p in small_parties
    ]
    run = vf.train(parties, vf.Config.preset("best", epochs=20).for_lists())
    assert run.metrics["test"]["rmse"] is None
    assert "valid_ndcg@20" in run.history[0]
    assert run.metrics["test"]["ndcg@20"] > 0.97 * run.metrics["popularity"]["ndcg@20"]


def test_what_a_party_gains_without_a_partner_is_what_it_gains_in_a_federation_of_the_others(
    tmp_path: Path, command: Callable[..., tuple[int, str, str]]
) -> None:
    """The run keeps the table, and shows it in the terminal and in the report, with a picture."""
    table = vf.read_ratings("synthetic", users=150, items=60, ratings=4_000)
    parties = vf.split_items(table, by="category")
    parties[1:] = [  # five users are at the first party only
        vf.PartyData(party.name, party.ratings.take(party.ratings.user >= 5)) for party in parties[1:]
    ]
    run = vf.train(parties, best(epochs=4, final=False), out=tmp_path / "run")
    code, printed, _ = command("lift", tmp_path / "run", "--partners")
    assert code == 0
    assert "gain without" in printed
    rows = json.loads((tmp_path / "run" / "metrics.json").read_text())["lift"]["partners"]
    assert {(row["party"], row["partner"]) for row in rows} == {
        (a.name, b.name) for a in parties for b in parties if a is not b
    }
    two = [vf.PartyData(p.name, p.ratings.select_users(np.arange(5, 150))) for p in parties[1:]]
    pair = vf.train(two, run.judged.config, parts=run.judged.parts[1:])
    known = dict(judged_tables(pair.metrics["lift"]))[KNOWN]
    alone = {row["name"]: row for row in known["parties"]}
    for row in rows:
        if row["partner"] == parties[0].name and (row["metric"], row["customers"]) == ("rmse", KNOWN):
            assert row["without"]["federated"] == alone[row["party"]]["federated"]
            assert row["with"]["federated"] != row["without"]["federated"]
    assert command("report", tmp_path / "run")[0] == 0
    report = (tmp_path / "run" / "report" / "report.html").read_text()
    assert "Which partner is worth it" in report
    assert "What joining gains without each partner" in report
    vf.train(two, best(epochs=2, final=False), out=tmp_path / "two")
    assert "three parties" in command("lift", tmp_path / "two", "--partners")[2]

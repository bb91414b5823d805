"""Whether joining pays: the bootstrap, lift of ratings and lists, newcomers; tuning; ranking."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import verfedgnn as vf
from helpers import same_model
from verfedgnn.config import load_config
from verfedgnn.evaluation.bootstrap import gain
from verfedgnn.evaluation.chance import ERROR, GROUPS, decide_verdicts, holm, p_value
from verfedgnn.evaluation.judged_party import count_elsewhere
from verfedgnn.evaluation.lift import lift
from verfedgnn.evaluation.verdict import verdict
from verfedgnn.evaluation.verdict_words import ORDER
from verfedgnn.runs.run_evaluation import evaluate
from verfedgnn_research.tuning import Range, parse_space, tune


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


def test_the_words_of_a_lift_are_corrected_together() -> None:
    def row(p: float, users: int = 100) -> dict[str, Any]:
        return {"users": users, "gain": {"p": p, "low_percent": 0.1, "high_percent": 9.0}, "pays": "yes"}

    parties = [
        row(0.02) | {"by_own_ratings": [row(0.04)]},
        row(0.0),
        row(0.0, users=5) | {"pays": "cannot tell"},
    ]
    found = {"metric": "rmse", "parties": parties, "overall": row(0.04)}
    decide_verdicts(found)
    assert found["verdicts"] == 3
    assert [each["pays"] for each in parties] == ["yes", "yes", "cannot tell"]
    parties[0]["gain"]["p"] = 0.03
    decide_verdicts(found)
    assert [each["pays"] for each in (*parties, found["overall"])] == [
        "likely better",
        "yes",
        "cannot tell",
        "likely better",
    ]
    assert parties[0]["by_own_ratings"][0]["pays"] == "yes"


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
    alone = evaluate(run.prepared(), run.alone)
    for served, own in zip(run.metrics["parties"], alone["parties"], strict=True):
        assert served["test"]["rmse"] < 1.02 * own["test"]["rmse"]
        for weights in served["gate"].values():
            assert list(weights) == ["means", "federated means", "EASE", "alone", "federated"]
            assert sum(weights.values()) == pytest.approx(1)
    again = vf.Run.load(tmp_path / "run")
    assert again.alone is not None
    same_model(again.alone[0], run.alone[0])


@pytest.fixture(scope="module")
def joined(small_parties: list[vf.PartyData]) -> tuple[vf.Run, dict[str, Any]]:
    """A default training of ratings and lists, and its lift."""
    run = vf.train(small_parties, best(lists=True, epochs=20))
    return run, lift(run)


def rows_of(table: dict[str, Any]) -> list[dict[str, Any]]:
    groups = [row for whole in (table, *table["parties"]) for name in GROUPS for row in whole.get(name, [])]
    return [table["overall"], *table["parties"], *groups]


def test_lift_tells_parties_and_users_apart(joined: tuple[vf.Run, dict[str, Any]]) -> None:
    run, found = joined
    for table in (found, found["lists"], found["newcomers"], found["lists"]["newcomers"]):
        cases = table["overall"]["cases"]
        for row in rows_of(table):
            assert row["pays"] in ORDER
            assert {"simple", "alone", "federated", "users"} < row.keys()
            assert "pooled" not in row, "a single model on all data is no bound of mixtures"
            if row["gain"] is not None:
                assert row["gain"]["low"] <= row["gain"]["value"] <= row["gain"]["high"]
                better = min if table["metric"] == "rmse" else max
                assert row[row["reference"]] == better(row["simple"], row["alone"])
                assert abs(row[row["reference"]] - row["federated"]) == pytest.approx(
                    abs(row["gain"]["value"])
                )
        assert sum(row["cases"] for row in table["parties"]) == cases
        for whole, row in ((table, table["overall"]), *((party, party) for party in table["parties"])):
            for groups in (whole[name] for name in GROUPS if whole.get(name)):
                assert sum(group["cases"] for group in groups) == row["cases"]
                assert max(group["cases"] for group in groups) < row["cases"], "everybody is judged twice"
    tests = sum(int((part == 2).sum()) for part in run.parts)
    assert found["overall"]["cases"] == tests
    assert found["overall"]["federated"] == pytest.approx(run.metrics["test"]["rmse"], abs=1e-6)
    lists = found["lists"]["overall"]
    assert lists["federated"] == pytest.approx(run.metrics["test"]["ndcg@20"])
    assert lists["simple"] == pytest.approx(run.metrics["popularity"]["ndcg@20"])
    for name in ("recall@20", "hitrate@20"):
        assert lists[name]["federated"] == pytest.approx(run.metrics["test"][name])
    assert (found["metric"], found["lists"]["metric"]) == ("rmse", "ndcg@20")
    assert found["newcomers"]["training"] == "second"
    assert found["by_own_ratings"]
    assert found["newcomers"]["by_other_ratings"]
    for party, row in zip(run.parties, found["parties"], strict=True):
        everybody = {int(user) for each in run.parties for user in each.ratings.user}
        here = {int(user) for user in party.ratings.user}
        assert sum(row["customers"]["by_other_parties"]) == len(here)
        assert row["customers"]["elsewhere_only"] == len(everybody - here)
    for row in found["parties"]:
        assert row["gate"].keys() == {"known", "newcomers"}
    assert found["summary"].endswith(".")


def test_what_a_default_training_lists_is_ordered_by_its_lists(joined: tuple[vf.Run, dict[str, Any]]) -> None:
    run, _ = joined
    assert run.lists is not None
    assert run.ranker is run.lists
    assert run.lists.config == run.config.for_lists()
    assert run.metrics["lists"]["public"] == run.lists.metrics["public"] != run.metrics["public"]
    for row, other in zip(run.metrics["parties"], run.lists.metrics["parties"], strict=True):
        assert row["list_gate"] == other["gate"]
        assert row["test"]["ndcg@20"] == other["test"]["ndcg@20"]
    by_stars = evaluate(run.prepared(), run.models)["test"]["ndcg@20"]
    assert run.metrics["test"]["ndcg@20"] > by_stars


@pytest.fixture(scope="module")
def newcomers(small_parties: list[vf.PartyData]) -> vf.Run:
    """A training whose own split holds out newcomers; users 0 and 1 of the first party are nowhere else."""
    only_here = [
        vf.PartyData(p.name, p.ratings if k == 0 else p.ratings.take(p.ratings.user > 1))
        for k, p in enumerate(small_parties)
    ]
    return vf.train(only_here, best(epochs=20, **{"split.kind": "newcomers"}))


def test_newcomers_are_new_here_and_known_elsewhere(newcomers: vf.Run) -> None:
    found = lift(newcomers)
    assert found["newcomers"]["training"] == "own"
    total = 0
    for p, row in enumerate(found["newcomers"]["parties"]):
        table = newcomers.parties[p].ratings
        test = newcomers.parts[p] == 2
        known = [
            set(party.ratings.user[part == 0].tolist())
            for party, part in zip(newcomers.parties, newcomers.parts, strict=True)
        ]
        assert not set(table.user[test].tolist()) & known[p]
        elsewhere = set().union(*known[:p], *known[p + 1 :])
        expected = [user for user in table.user[test].tolist() if user in elsewhere]
        assert row["cases"] == len(expected) > 0
        assert row["users"] == len(set(expected))
        total += len(expected)
    assert found["newcomers"]["overall"]["cases"] == total
    assert "by_own_ratings" not in found["newcomers"]
    assert all(row["other_parties"] > 0 for row in found["newcomers"]["by_other_parties"])
    assert all(row["from"] > 0 for row in found["newcomers"]["by_other_ratings"])


def test_other_parties_are_counted_by_training_ratings(newcomers: vf.Run) -> None:
    elsewhere = count_elsewhere(newcomers.prepared())
    for p, found in enumerate(elsewhere):
        for user in (0, 1, 5, 40, 119):
            others = [
                int((party.ratings.user[part == 0] == user).sum())
                for q, (party, part) in enumerate(zip(newcomers.parties, newcomers.parts, strict=True))
                if q != p
            ]
            assert found.parties[user] == sum(count > 0 for count in others)
            assert found.ratings[user] == sum(others)
    assert elsewhere[0].parties[:2].tolist() == [0, 0]


def test_joining_does_not_pay_where_the_served_model_is_worse(newcomers: vf.Run) -> None:
    """The same run, serving predictions that are a star too high."""
    spoilt = []
    for model in newcomers.models:
        ones = [torch.ones(len(rows), 1) for rows in (model.users, model.items)]
        spoilt.append(
            replace(
                model, users=torch.cat([model.users, ones[0]], 1), items=torch.cat([model.items, ones[1]], 1)
            )
        )
    found = lift(replace(newcomers, models=spoilt))
    for table in (found, found["newcomers"]):
        assert table["overall"]["pays"] == "no"
        assert table["overall"]["gain"]["value"] < 0
    assert verdict(found) == "no"
    assert "worse" in found["summary"]


def test_a_ranking_has_a_lift_of_its_own(small_parties: list[vf.PartyData]) -> None:
    config = vf.Config.preset("best", epochs=20, **{"split.kind": "newcomers"}).for_lists()
    run = vf.train(small_parties, config)
    found = lift(run)
    assert found["metric"] == found["newcomers"]["metric"] == "ndcg@20"
    assert "lists" not in found
    for row in found["parties"]:
        assert row["hitrate@20"].keys() == {"simple", "alone", "federated"}
    assert "predicted ratings" not in found["summary"]


def test_lift_without_a_gate_trains_the_parties_alone(small_parties: list[vf.PartyData]) -> None:
    values = {"gate": False, "epochs": 4, "dim": 8, "split.kind": "newcomers"}
    run = vf.train(small_parties, vf.Config.preset("best").with_values(values))
    assert run.alone is None
    found = lift(run)
    assert "lists" not in found
    assert found["overall"]["alone"] is not None
    assert found["overall"]["federated"] == pytest.approx(run.metrics["test"]["rmse"])


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


def test_tuning_goes_on_where_it_stopped(small_parties: list[vf.PartyData], tmp_path: Path) -> None:
    space = {"training.lr": Range(0.01, 0.3), "model.dim": [6, 8]}
    finished: list[int] = []
    options: dict[str, Any] = {
        "study": tmp_path / "study.db",
        "space": space,
        "watch": lambda t: finished.append(t.number),
    }
    first = tune(small_parties, best(epochs=10), trials=1, **options)
    assert finished == [1]
    second = tune(small_parties, best(epochs=10), trials=2, **options)
    assert finished == [1, 2]
    assert second.error <= first.error
    (tmp_path / "mine.toml").write_text(second.to_preset())
    assert second.to_preset().startswith("# Chosen by verfedgnn tune")
    assert load_config(tmp_path / "mine.toml") == second.config
    assert vf.Config.preset(str(tmp_path / "mine.toml")) == second.config
    run = vf.train(small_parties, second.config.with_values({"gate": False}))
    assert run.metrics["valid"]["rmse"] == pytest.approx(second.error, rel=1e-4)
    with pytest.raises(vf.ConfigError, match="other data, settings or ranges"):
        tune(small_parties, best(epochs=21), trials=3, **options)


def test_spaces_are_read_or_refused() -> None:
    space = parse_space(["training.lr=0.02:0.4", "model.dim=16|32", "model.gnn=gcn|gat"])
    assert space == {"training.lr": Range(0.02, 0.4), "model.dim": [16, 32], "model.gnn": ["gcn", "gat"]}
    for wrong in ("lr=1:2", "training.lr", "training.lr=2:1", "training.lr=a:b"):
        with pytest.raises(vf.ConfigError):
            parse_space([wrong])

"""Lift over several seeds: when the verdicts hold, the chance of false ones, and stopping and resuming."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import verfedgnn as vf
from verfedgnn.cli.report_commands import compute_lift
from verfedgnn.core.errors import Interrupted
from verfedgnn.evaluation.seeds import combine_lifts, lift_over_seeds
from verfedgnn.evaluation.verdict import deciding_figures, headline
from verfedgnn.reports.lift_plan import describe_plan, plan_lift
from verfedgnn.reports.lift_report import lift_document
from verfedgnn.reports.lift_view import seed_table
from verfedgnn.training import cost_forecast
from verfedgnn.training.progress import Progress
from verfedgnn.upkeep.forget import forget_users

CELLS = 16


def row(percent: float, error: float = 0.5, users: int = 60, **values: Any) -> dict[str, Any]:
    gain = {"percent": percent, "error_percent": error}
    return {
        "name": "shop",
        "cases": users,
        "users": users,
        "simple": 1.0,
        "alone": 0.9,
        "federated": 0.8,
        "gain": gain,
        **values,
    }


def combine(*percents: float, error: float = 0.5) -> dict[str, Any]:
    lifts = [{"metric": "rmse", "overall": row(p, error), "parties": [row(p, error)]} for p in percents]
    return combine_lifts(lifts, list(range(len(percents))))


def test_a_gain_must_hold_with_every_seed() -> None:
    assert combine(4.0, 4.2, 4.1)["overall"]["pays"] == "yes"
    assert combine(-4.0, -4.2, -4.1)["overall"]["pays"] == "no"
    assert combine(0.2, 8.0, 9.0)["overall"]["pays"] == "cannot tell", "the seeds differ too much"
    assert combine(-0.01, 6.0, 6.0, 6.0, 6.0, 6.0, error=0.1)["overall"]["pays"] == "cannot tell", (
        "not in every seed"
    )


def test_means_spread_and_every_seed_are_shown() -> None:
    found = combine(3.0, 4.0, 5.0)
    gain = found["overall"]["gain"]
    assert gain["percent"] == pytest.approx(4)
    assert gain["spread_percent"] == pytest.approx(1)
    assert gain["error_percent"] == pytest.approx((0.5**2 + 1) ** 0.5)
    assert "mean of 3 seeds" in deciding_figures(found)
    header, rows = seed_table(found) or ([], [])
    assert header[3:6] == ["seed 0", "seed 1", "seed 2"]
    assert rows[0][3:6] == ["+3.0 %", "+4.0 %", "+5.0 %"]
    assert "Gains by seed" in lift_document(found, "run").fragment()


@pytest.mark.parametrize(("customers", "test", "seed"), [(1, 1, 0.05), (1, 0.3, 0.3)])
def test_runs_over_seeds_seldom_have_a_false_verdict(customers: float, test: float, seed: float) -> None:
    """100 runs of 16 verdicts over 3 seeds without a true gain: 14 runs with a false word have a chance of 1 in 2,000 at 5 %.

    Gains of customers vary between customers, between the test ratings of a seed, and between seeds for all customers alike. The last
    cannot be seen in one seed, which is therefore nearly always wrong where it is large.
    """
    runs, users = 100, 60
    rng = np.random.default_rng(5)
    each = rng.normal(0, customers, (runs, CELLS, 1, users)) + rng.normal(0, test, (runs, CELLS, 3, users))
    each += rng.normal(0, seed, (runs, CELLS, 3, 1))
    value = each.mean(-1)
    error = each.std(-1, ddof=1) / users**0.5
    wrong = likely = 0
    for values, errors in zip(value, error, strict=True):
        lifts = [
            {
                "metric": "rmse",
                "overall": row(0.0) | {"gain": None},
                "parties": [row(*cell) for cell in zip(values[:, k], errors[:, k], strict=True)],
            }
            for k in range(3)
        ]
        words = [party["pays"] for party in combine_lifts(lifts, [0, 1, 2])["parties"]]
        wrong += "yes" in words or "no" in words
        likely += sum(word.startswith("likely") for word in words)
    assert wrong < 14
    assert likely < 0.07 * runs * CELLS, "about 1 interval in 20 excludes 0 by chance"


@pytest.fixture(scope="module")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    ratings = vf.data.synthetic_ratings(users=60, items=30, ratings=900, seed=2)
    config = vf.Config.preset("best").with_values({"epochs": 2, "dim": 8, "lists": False})
    folder = tmp_path_factory.mktemp("seeds") / "run"
    vf.train(vf.split_items(ratings, parties=2), config, out=folder)
    return folder


def test_an_interrupted_lift_resumes_and_leaves_no_ratings_behind(
    small_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {"party-0 alone": 10.0, "party-1 alone": 10.0}
    monkeypatch.setattr(cost_forecast, "own_seconds", lambda prepared, trainings: own)
    run = vf.Run.load(small_run)
    labels: list[str] = []
    planned = plan_lift(run, 2, small_run).steps
    run.metrics["seconds"] = 90.0
    said = describe_plan(run, plan_lift(run, 2, small_run))
    assert said == (
        "expected: about 5 min 30 s to judge this run and to train and judge 1 more seed (the federated training of this run took 1 min 30 s)"
    )

    def watch(event: Progress) -> None:
        labels.append(event.label)

    with pytest.raises(Interrupted):
        compute_lift(run, small_run, 2, watch=watch, stop=lambda: "seed 1, federation" in labels)
    assert (small_run / "seeds" / "0.json").is_file()
    assert (small_run / "seeds" / "1" / "parties").is_dir()
    rest = plan_lift(run, 2, small_run)
    assert all(step.startswith("seed 1, ") for step in rest.steps), "a finished seed is not trained again"
    rest.report("seed 1, federation", 0, now=0)
    assert rest.seconds_left(1, 2, now=0.1) == 2 * 90 + 4 * 10, "known before the first training has begun"
    compute_lift(run, small_run, 2, watch=watch)
    assert describe_plan(run, plan_lift(run, 2, small_run)) is None
    assert list(dict.fromkeys(labels)) == planned
    assert [path.name for path in sorted((small_run / "seeds").iterdir())] == ["0.json", "1.json"]
    saved = json.loads((small_run / "metrics.json").read_text("utf-8"))["lift"]
    assert saved == json.loads(json.dumps(lift_over_seeds(vf.Run.load(small_run), 2)))
    assert headline(saved)
    labels.clear()
    compute_lift(run, small_run, 1, watch=watch)
    assert not labels, "the lift of the first seed is kept"
    assert "seeds" not in run.metrics["lift"]


def test_forgetting_a_user_removes_unfinished_trainings_of_other_seeds(small_run: Path) -> None:
    (small_run / "seeds" / "7" / "parties").mkdir(parents=True)
    forget_users(small_run, [str(vf.Run.load(small_run).parties[0].ratings.user_ids[3])])
    assert not (small_run / "seeds" / "7").exists()


def test_a_lift_of_another_format_is_judged_again(small_run: Path) -> None:
    file = small_run / "metrics.json"
    metrics = json.loads(file.read_text("utf-8"))
    file.write_text(json.dumps(metrics | {"lift": {"parties": [], "summary": "old"}}), "utf-8")
    run = vf.Run.load(small_run)
    assert "lift" not in run.metrics
    assert run.metrics["old_lift"]

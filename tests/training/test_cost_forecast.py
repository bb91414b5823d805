"""What is announced before a training is near what is counted after it, and a trial changes nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import verfedgnn as vf
from verfedgnn.reports.phrases import total_bytes
from verfedgnn.reports.round_progress import TrainingPlan
from verfedgnn.training.cost_forecast import Cost, forecast

SMALL = {"model.dim": 8, "raters": 0, "gate": False, "lists": False, "patience": 0}


def test_announced_bytes_are_within_30_percent_of_the_counted_ones_on_real_data(
    real_data: Path, short_own_models: None
) -> None:
    """With the usual early stop; the announced number is that of the line *cost* at the end."""
    parties = vf.read_parties(str(real_data / "ml-100k"), parties=3, seed=0)
    config = vf.Config.preset("best")
    expected = forecast(parties, config)
    counted = total_bytes(vf.train(parties, config).metrics)
    assert sum(cost.bytes for cost in expected.values()) == pytest.approx(
        counted["up"] + counted["down"], rel=0.3
    )
    assert expected.keys() == {*TrainingPlan.of([party.name for party in parties], config).steps}


def test_a_trial_does_not_change_the_training(small_parties: list[vf.PartyData]) -> None:
    config = vf.Config.preset("best", epochs=2, **SMALL)
    before = vf.train(small_parties, config)
    assert forecast(small_parties, config) == {}, "two rounds are over sooner than a trial"
    assert forecast(small_parties, config.with_values({"epochs": 10_000}))["federation"].seconds > 0
    assert torch.equal(before.public, vf.train(small_parties, config).public)


def test_the_forecast_is_the_sum_over_all_steps() -> None:
    expected = {
        "federation": Cost(50.0, 8e6),
        "lists": Cost(100.0, 2e6),
        "federation, all ratings": Cost(10.0, 1e6),
        "lists, all ratings": Cost(20.0, 1e6),
        "a alone": Cost(10.0),
        "a alone, lists": Cost(10.0),
    }
    plan = TrainingPlan.of(["a"], vf.Config.preset("best"), expected)
    assert plan.describe_cost(2) == "expected: about 3 min 20 s, 6.0 MB for each party"


def test_a_sample_of_users_answers_first_where_the_training_is_long(
    command: Callable[..., tuple[int, str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    short_own_models: None,
) -> None:
    """The result is that of the training without a first answer."""
    train = [
        "train",
        "--data",
        tmp_path / "shops",
        "--set",
        "epochs=4",
        "--set",
        "final=false",
        "--out",
    ]
    command("data", "synth", "--users", 800, "--items", 150, "--overlap", 1, "--out", tmp_path / "shops")
    _, _, silent = command(*train, tmp_path / "plain")
    assert "first answer" not in silent
    monkeypatch.setattr("verfedgnn.training.cost_forecast.SHORT", 0)
    monkeypatch.setattr("verfedgnn.cli.train_command.LONG", 0.0)
    monkeypatch.setattr("verfedgnn.cli.train_command.FIRST_SECONDS", 1.0)
    code, _, err = command(*train, tmp_path / "sampled")
    assert code == 0
    assert "expected: about" in err
    assert re.search(
        r"first answer, from [\d,]+ of 800 users drawn at random.*: (Joining|The data|It makes)", err
    )
    assert err.index("first answer") < err.index("now the training with all users") < err.index("step 1 of 8")
    figures = [
        json.loads((tmp_path / name / "metrics.json").read_text())["lift"] for name in ("plain", "sampled")
    ]
    assert figures[0] == figures[1]

"""The expected cost of a training: bytes are nearly exact, and a trial changes nothing."""

from __future__ import annotations

import pytest
import torch

import verfedgnn as vf
from verfedgnn.reports.round_progress import TrainingPlan
from verfedgnn.training import cost_forecast
from verfedgnn.training.cost_forecast import CostForecast, TrainingCost, forecast

SMALL = {"model.dim": 8, "raters": 0, "gate": False, "lists": False, "patience": 0}


@pytest.mark.parametrize(
    "config",
    [vf.Config.preset("best", **SMALL), vf.Config.preset("paper", batch=0)],
    ids=["best", "paper"],
)
def test_bytes_are_those_of_the_whole_training(
    small_parties: list[vf.PartyData], config: vf.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within 5 %: sums of signs are packed by how many are not 0, and that varies."""
    monkeypatch.setattr(cost_forecast, "SHORT", 0)
    expected = forecast(small_parties, config)
    assert expected is not None
    run = vf.train(small_parties, config)
    assert expected.federated["federation"].rounds == run.metrics["rounds"]
    assert expected.bytes == pytest.approx(run.ledger.total(), rel=0.05)
    assert expected.federated["federation"].seconds > 0


def test_a_trial_does_not_change_the_training(small_parties: list[vf.PartyData]) -> None:
    config = vf.Config.preset("best", epochs=2, **SMALL)
    before = vf.train(small_parties, config)
    assert forecast(small_parties, config) is None, "two rounds are over sooner than a trial"
    assert forecast(small_parties, config.with_values({"epochs": 10_000})) is not None
    assert torch.equal(before.public, vf.train(small_parties, config).public)


def test_every_step_of_a_command_is_in_the_sum() -> None:
    expected = CostForecast(
        {
            "federation": TrainingCost(700, 50.0, 8e6),
            "lists": TrainingCost(700, 100.0, 2e6),
            "federation, all ratings": TrainingCost(100, 10.0, 1e6),
            "lists, all ratings": TrainingCost(100, 20.0, 1e6),
        },
        {"a alone": 6.0, "b alone": 3.0, "a alone, lists": 20.0, "b alone, lists": 10.0},
    )
    config = vf.Config.preset("best")
    plan = TrainingPlan.of(["a", "b"], config, expected)
    steps = plan.steps
    text = plan.describe_cost(config, 2)
    assert text.startswith(
        "expected: about 3 min 39 s for 1,600 rounds and 4 trainings of single parties, 6.0 MB a party"
    )
    assert "less if the validation error stops falling" in text
    assert {name for name in steps if "alone" not in name} == set(expected.federated)
    assert len(TrainingPlan.of(["a", "b"], config.with_values({"final": False})).steps) == len(steps) - 2
    assert plan.describe("b alone") == "step 6 of 8, b alone"
    assert plan.seconds_left("federation", 0.0, 0.0) == pytest.approx(219)
    assert plan.seconds_left("federation", 0.5, 50) == pytest.approx(
        50 + 2 * 169
    )  # twice as slow as expected
    assert plan.seconds_left("b alone, lists", 0.5, 219) == pytest.approx(5 * 219 / 214)
    assert TrainingPlan.of(["a", "b"], config).seconds_left("federation", 0.5, 50) is None

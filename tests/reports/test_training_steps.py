"""The plan of a command's trainings, and the time left for all of them."""

from __future__ import annotations

import pytest

import verfedgnn as vf
from verfedgnn.reports import round_progress
from verfedgnn.reports.round_progress import RoundProgress
from verfedgnn.reports.training_steps import StepClock, list_steps, strip_step
from verfedgnn.training.progress import Progress

SHOPS = ["film", "book", "album"]


def test_the_plan_names_every_training_that_runs() -> None:
    """The names are those of the progress reports of a real training with its lift."""
    parties = vf.split_items(vf.data.synthetic_ratings(users=60, items=30, ratings=900, seed=2), parties=2)
    names = [party.name for party in parties]
    for values in ({}, {"gate": False}, {"split.kind": "newcomers"}, {"lists": False}):
        config = vf.Config.preset("best").with_values({"epochs": 1, "dim": 8} | values)
        events: list[Progress] = []
        run = vf.train(parties, config, watch=events.append)
        assert [*dict.fromkeys(event.label for event in events)] == list_steps(names, config, lift=False)
        vf.lift(run, watch=events.append)
        assert {event.label for event in events} == set(list_steps(names, config, lift=True))
    assert len(list_steps(SHOPS, vf.Config.preset("best"), lift=True)) == 16


def test_training_in_python_shows_its_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    parties = vf.split_items(vf.data.synthetic_ratings(users=40, items=20, ratings=400, seed=2), parties=3)
    bar = RoundProgress(hidden=True)
    monkeypatch.setattr(round_progress, "_make_bar", lambda: bar)
    config = vf.Config.preset("paper", epochs=1)
    vf.train(parties, config, verbose=False)
    assert not bar.tasks
    vf.train(parties, config)
    assert list(bar.tasks) == ["federation"]


def test_other_seeds_are_steps_of_their_own() -> None:
    config = vf.Config.preset("best")
    one = list_steps(SHOPS, config, lift=True)
    assert list_steps(SHOPS, config, lift=True, seeds=2) == [*one, *(f"seed 1, {step}" for step in one)]
    assert strip_step("seed 12, newcomers, film alone, lists") == "film alone, lists"


def test_the_time_left_is_that_of_all_trainings() -> None:
    steps = list_steps(SHOPS, vf.Config.preset("best"), lift=True)
    clock = StepClock(steps, 3)
    clock.report("federation", 1, now=0)
    assert clock.seconds_left(1, 101, now=0.5) is None
    first = clock.seconds_left(51, 101, now=10)
    assert first == pytest.approx(10 + 20 * (sum(clock.weights.values()) - 1))
    now = 20.0
    for step in steps[1:8]:
        clock.report(step, 1, now=now)
        now += 20 * clock.weights[step]
    assert clock.describe(steps[8]) == "step 9 of 16, newcomers, federation"
    clock.report(steps[8], 1, now=now)
    measured = sum(clock.spent.values())
    assert clock.seconds_left(1, 101, now=now) == pytest.approx(measured)  # the second half repeats the first
    late = clock.seconds_left(51, 101, now=now + 40)
    assert late is not None
    assert (
        late > 40 + measured - 25
    )  # a training that takes longer than the first one has half of its rounds left

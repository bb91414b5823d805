"""The plan of a command's trainings, and the time left for all of them."""

from __future__ import annotations

import pytest

import verfedgnn as vf
from verfedgnn.reports import round_progress
from verfedgnn.reports.round_progress import RoundProgress
from verfedgnn.reports.training_steps import StepClock, list_steps
from verfedgnn.training.progress import Progress

SHOPS = ["film", "book", "album"]


def test_the_plan_names_every_training_that_runs() -> None:
    """The names are those of the progress reports of a real training."""
    parties = vf.split_items(vf.data.synthetic_ratings(users=60, items=30, ratings=900, seed=2), parties=2)
    names = [party.name for party in parties]
    for values in ({}, {"gate": False}, {"final": False}, {"lists": False}):
        config = vf.Config.preset("best").with_values({"epochs": 1, "dim": 8} | values)
        events: list[Progress] = []
        vf.train(parties, config, watch=events.append)
        assert [*dict.fromkeys(event.label for event in events)] == list_steps(names, config)
    assert len(list_steps(SHOPS, vf.Config.preset("best"))) == 10


def test_training_in_python_shows_its_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    parties = vf.split_items(vf.data.synthetic_ratings(users=40, items=20, ratings=400, seed=2), parties=3)
    bar = RoundProgress(hidden=True)
    monkeypatch.setattr(round_progress, "_make_bar", lambda: bar)
    config = vf.Config.preset("paper", epochs=1)
    vf.train(parties, config, verbose=False)
    assert not bar.tasks
    vf.train(parties, config)
    assert list(bar.tasks) == ["federation"]


def test_the_time_left_is_that_of_all_trainings() -> None:
    steps = list_steps(SHOPS, vf.Config.preset("best"))
    clock = StepClock(steps, 3)
    clock.report("federation", 1, now=0)
    assert clock.seconds_left(1, 101, now=0.5) is None
    first = clock.seconds_left(51, 101, now=10)
    assert first == pytest.approx(10 + 20 * (sum(clock.weights.values()) - 1))
    now = 20.0
    for step in steps[1:8]:
        clock.report(step, 1, now=now)
        now += 20 * clock.weights[step]
    assert clock.describe(steps[8]) == "step 9 of 10, book alone, lists"
    clock.report(steps[8], 1, now=now)
    own = 20 * clock.weights[steps[8]]
    left = clock.seconds_left(51, 101, now=now + 2)
    assert left == pytest.approx(2 + own)  # the second half, then the last one
    late = clock.seconds_left(51, 101, now=now + 40)
    assert late == pytest.approx(40 + own)  # a training that takes longer has half of its rounds left

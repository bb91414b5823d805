"""The plan of a command's trainings."""

from __future__ import annotations

import pytest

import verfedgnn as vf
from verfedgnn.reports import round_progress
from verfedgnn.reports.round_progress import RoundProgress, TrainingPlan
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
        assert [*dict.fromkeys(event.label for event in events)] == TrainingPlan.of(names, config).steps
    assert len(TrainingPlan.of(SHOPS, vf.Config.preset("best")).steps) == 10


def test_training_in_python_shows_its_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    parties = vf.split_items(vf.data.synthetic_ratings(users=40, items=20, ratings=400, seed=2), parties=3)
    bar = RoundProgress(hidden=True)
    monkeypatch.setattr(round_progress, "_make_bar", lambda: bar)
    config = vf.Config.preset("paper", epochs=1)
    vf.train(parties, config, verbose=False)
    assert not bar.tasks
    vf.train(parties, config)
    assert list(bar.tasks) == ["federation"]

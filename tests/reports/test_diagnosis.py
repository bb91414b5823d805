"""What figures mean, in sentences, and the next command as text."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

import verfedgnn as vf
from verfedgnn.cli.next_step import command_text, fresh_path
from verfedgnn.cli.train_command import TrainRequest
from verfedgnn.data.read_options import ReadOptions
from verfedgnn.reports.phrases import diagnose

BEST = vf.Config.preset("best")
FINE = {"rmse": 0.8, "ndcg@20": 0.3}


def metrics(parties: int = 3, **changes: Any) -> dict[str, Any]:
    """Return the metrics of a good run, with some values changed."""
    figures: dict[str, Any] = {
        "test": dict(FINE),
        "means": {"rmse": 1.0},
        "popularity": {"ndcg@20": 0.2},
        "lists": {},
    } | changes
    row = {"test": figures["test"], "popularity": figures["popularity"]}
    return figures | {"parties": [{"name": f"p{n}", **row} for n in range(parties)]}


def test_of_a_good_run_nothing_is_said() -> None:
    assert diagnose(metrics(), BEST) == []


CASES: dict[str, tuple[dict[str, Any], vf.Config, str]] = {
    "means win": (
        {"test": {"rmse": 0.999, "ndcg@20": 0.3}},
        BEST,
        "hardly better than the parties' user and item means (RMSE 0.9990, means 1.0000)",
    ),
    "means win clearly": (
        {"test": {"rmse": 1.1, "ndcg@20": 0.3}},
        BEST,
        "worse than the parties' user and item means",
    ),
    "means win over the paper": (
        {"test": {"rmse": 1.1, "ndcg@20": 0.3}},
        vf.Config.preset("paper"),
        "Preset best adds the means",
    ),
    "means win over noise": (
        {"test": {"rmse": 1.1, "ndcg@20": 0.3}},
        vf.Config.preset("private"),
        "larger --epsilon",
    ),
    "equal ratings": (
        {"test": {"rmse": 0.0, "ndcg@20": 0.3}, "means": {"rmse": 0.0}},
        BEST,
        "nothing to predict",
    ),
    "lists lose": (
        {"test": {"rmse": 0.8, "ndcg@20": 0.1}},
        BEST,
        "Lists are worse than the most popular items",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_figures_and_their_sentence(case: str) -> None:
    changes, config, words = CASES[case]
    (finding,) = diagnose(metrics(**changes), config)
    assert words in finding


def test_lists_by_stars() -> None:
    by_stars = metrics(test={"rmse": 0.8, "ndcg@20": 0.1})
    del by_stars["lists"]
    assert "--preset best" in diagnose(by_stars, BEST)[0] or 'preset="best"' in diagnose(by_stars, BEST)[0]


def test_a_command_is_quoted_and_its_folder_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    sources = ["film=my film.csv", "book=b.csv"]
    words = TrainRequest(data=sources, reading=ReadOptions(), out=fresh_path("run"), users="all").to_words()
    assert words[-2:] == ["--out", "run-2"]
    assert fresh_path("new") == Path("new")
    assert words[:-2] == ["train", "--data", "film=my film.csv", "--data", "book=b.csv", "--users", "all"]
    assert "'film=my film.csv'" in command_text(words)
    assert "film=my film.csv" in shlex.split(command_text(words))

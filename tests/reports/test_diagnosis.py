"""What figures mean and which step follows: a table of metrics and their diagnoses."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

import verfedgnn as vf
from verfedgnn.cli.next_step import TrainingWords, command_text, fresh_path, next_command
from verfedgnn.data.parties import count_kept
from verfedgnn.data.read_options import ReadOptions
from verfedgnn.reports.diagnosis import Customers, Step, diagnose, next_step

BEST = vf.Config.preset("best")
FINE = {"rmse": 0.8, "ndcg@20": 0.3}


def metrics(parties: int = 3, pays: str | None = None, **changes: Any) -> dict[str, Any]:
    """Return the metrics of a good run, with some values changed."""
    found: dict[str, Any] = {
        "test": dict(FINE),
        "means": {"rmse": 1.0},
        "popularity": {"ndcg@20": 0.2},
        "best_round": 700,
        "lists": {},
    } | changes
    row = {"test": found["test"], "popularity": found["popularity"]}
    found["parties"] = [{"name": f"p{n}", **row} for n in range(parties)]
    if pays is not None:
        overall = {"pays": pays, "gain": {"percent": -2.0 if "no" in pays else 2.0}}
        found["lift"] = {"metric": "rmse", "overall": overall, "parties": []}
    return found


def curve(*values: float) -> list[dict[str, Any]]:
    return [{"round": 100 * (n + 1), "valid_rmse": value} for n, value in enumerate(values)]


def test_a_good_run_is_judged_next() -> None:
    findings = diagnose(metrics(), BEST)
    assert [finding.name for finding in findings] == ["not judged"]
    assert next_step(findings) == Step("lift")


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str, Step]] = {
    "pays": ({"pays": "yes"}, {}, "Joining pays", Step("report")),
    "does not pay": ({"pays": "no"}, {}, "Joining does not pay", Step("check")),
    "likely better": ({"pays": "likely better"}, {}, "Joining is likely better", Step("report")),
    "no difference": ({"pays": "no difference"}, {}, "Joining makes no difference", Step("check")),
    "cannot tell": ({"pays": "cannot tell"}, {}, "too few to tell", Step("report")),
    "one party": ({"parties": 1}, {}, "one party", Step("serve")),
    "two parties": (
        {"parties": 2},
        {},
        "see the other's rounded gradients, with noise",
        Step("lift"),
    ),
    "means win": (
        {"test": {"rmse": 0.999, "ndcg@20": 0.3}},
        {},
        "hardly better than the parties' user and item means (RMSE 0.9990, means 1.0000)",
        Step("lift"),
    ),
    "means win, and joining does not pay": (
        {"test": {"rmse": 1.1, "ndcg@20": 0.3}, "pays": "no"},
        {},
        "worse than the parties' user and item means",
        Step("tune"),
    ),
    "means win over the paper": (
        {"test": {"rmse": 1.1, "ndcg@20": 0.3}},
        {"config": vf.Config.preset("paper")},
        "Preset best adds the means",
        Step("train", ("--preset", "best")),
    ),
    "means win over noise": (
        {"test": {"rmse": 1.1, "ndcg@20": 0.3}},
        {"config": vf.Config.preset("private")},
        "larger --epsilon",
        Step("lift"),
    ),
    "equal ratings": (
        {"test": {"rmse": 0.0, "ndcg@20": 0.3}, "means": {"rmse": 0.0}},
        {},
        "nothing to predict",
        Step("lift"),
    ),
    "lists lose": (
        {"test": {"rmse": 0.8, "ndcg@20": 0.1}},
        {},
        "Lists are worse than the most popular items",
        Step("lift"),
    ),
    "still improving": (
        {"best_round": 300},
        {"history": curve(1.0, 0.9, 0.8)},
        "still improving in the last round (RMSE 0.9000 to 0.8000)",
        Step("train", ("--set", "training.epochs=60")),
    ),
    "flat at the end": (
        {"best_round": 300},
        {"history": curve(1.0, 0.8001, 0.8)},
        "not judged",
        Step("lift"),
    ),
    "most left out": (
        {},
        {"customers": Customers(users=20, shared=20, left_out=80, given=100)},
        "leaves out 80 of 100 customers",
        Step("train", ("--users", "any")),
    ),
    "few shared": (
        {},
        {"customers": Customers(users=100, shared=10)},
        "90 of 100 customers are at one party only",
        Step("lift"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_figures_their_sentence_and_their_step(case: str) -> None:
    changes, options, words, step = CASES[case]
    findings = diagnose(metrics(**changes), options.pop("config", BEST), **options)
    assert words in " ".join(finding.text for finding in findings)
    assert next_step(findings) == step


def test_lists_by_stars_get_a_model_of_their_own() -> None:
    found = metrics(test={"rmse": 0.8, "ndcg@20": 0.1})
    del found["lists"]
    assert next_step(diagnose(found, BEST)) == Step("train", ("--preset", "best"))


def test_customers_are_counted() -> None:
    parties = vf.split_items(vf.data.synthetic_ratings(users=30, items=20, ratings=200, seed=2), parties=2)
    counted = Customers.count(parties)
    known = [set(party.ratings.user.tolist()) for party in parties]
    assert (counted.users, counted.shared, counted.left_out) == (
        len(known[0] | known[1]),
        len(known[0] & known[1]),
        0,
    )
    assert count_kept(["a note", "kept 1,025 of 3,000 users; 45 ratings of users were dropped"]) == (
        1025,
        3000,
    )
    assert count_kept(["a note"]) is None


WORDS = TrainingWords(
    (
        *(
            ("--data", "film=my film.csv"),
            ("--data", "book=b.csv"),
            ("--users", "all"),
            ("--preset", "paper"),
        ),
        *(("--set", "epochs=2"), ("--set", "ratio=0.5"), ("--epsilon", "4")),
    )
)


def test_an_option_replaces_an_earlier_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    words = WORDS.train(("--set", "training.epochs=4"), out="run")
    assert words[-3:] == ["--lift", "--out", "run-2"]
    assert "epochs=2" not in words
    words = WORDS.train(("--preset", "best"), out="new")
    assert words[words.index("--preset") + 1] == "best"
    assert "epochs=2" in words
    assert not {"--epsilon", "ratio=0.5"} & set(words), "they belong to the other preset"
    words = WORDS.train(("--users", "any"), out="new")
    assert words.count("--users") == 1
    assert "users=all" in WORDS.tune("mine.toml")
    assert WORDS.check() == ["data", "check", "film=my film.csv", "book=b.csv"]
    assert "'film=my film.csv'" in command_text(WORDS.check())
    assert shlex.split(command_text(WORDS.check()))[-2] == "film=my film.csv"


def test_options_are_kept_with_the_run_and_follow_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "b.csv").touch()
    (tmp_path / "run").mkdir()
    WORDS.save(tmp_path / "run")
    assert TrainingWords.load(tmp_path / "run") == WORDS
    monkeypatch.chdir(tmp_path / "run")
    moved = TrainingWords.load(tmp_path / "run")
    assert moved is not None
    assert moved.sources == ["film=my film.csv", "book=../b.csv"], "a file that is gone keeps its name"
    assert TrainingWords.load(tmp_path) is None


def test_a_password_is_not_kept() -> None:
    words = TrainingWords.of(["film=postgresql://me:secret@host/db"], ReadOptions(), parties=None)
    assert "secret" not in command_text(words.train(out="run"))


def test_a_step_that_needs_unknown_sources_is_skipped(tmp_path: Path) -> None:
    findings = diagnose(metrics(pays="no"), BEST)
    assert next_command(findings, tmp_path, None) == ["report", str(tmp_path)]
    assert next_command(findings, tmp_path, WORDS)[:2] == ["data", "check"]
    assert next_command(findings, None, WORDS)[-1] == str(fresh_path("runs/first"))

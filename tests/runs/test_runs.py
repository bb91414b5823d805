"""What a training leaves on disk: stop and resume, a kill, a full disk, and that nothing is lost or mixed up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import verfedgnn as vf
from helpers import config, same
from verfedgnn.core.array_files import Buffer, write_parts
from verfedgnn.core.errors import Interrupted
from verfedgnn.data import TEST, TRAIN, check_parties
from verfedgnn.runs.checkpoint import CHECKPOINT, CheckpointFile
from verfedgnn.runs.party_tables import safe_names
from verfedgnn.runs.run import begin_folder

pytestmark = pytest.mark.usefixtures("short_own_models")


@pytest.mark.parametrize("values", [{}, {"participation": 0.5}, {"model": "gat"}, {"mechanism": "laplace"}])
def test_stopped_and_resumed_is_as_if_never_stopped(
    small_parties: list[vf.PartyData], tmp_path: Path, values: dict[str, Any]
) -> None:
    chosen = config(**values)
    whole = vf.train(small_parties, chosen, out=tmp_path / "whole")
    countdown = iter(range(100))
    with pytest.raises(Interrupted, match=r"stopped after round 8 of 20.*vf.resume"):
        vf.train(small_parties, chosen, out=tmp_path / "cut", stop=lambda: next(countdown) == 7)
    resumed = vf.resume(tmp_path / "cut")
    same(whole, resumed)
    same(vf.Run.load(tmp_path / "whole"), vf.Run.load(tmp_path / "cut"))
    same(vf.resume(tmp_path / "cut"), resumed)


@pytest.mark.usefixtures("warm")
def test_killed_at_any_time_loses_nothing_but_the_rounds_since(
    small_parties: list[vf.PartyData], tmp_path: Path
) -> None:
    """SIGKILL while a checkpoint is written every round, several times over; the end is the same."""
    code = """
import sys, verfedgnn as vf, verfedgnn.training.loop
verfedgnn.training.loop.CHECKPOINT_SECONDS = 0.0
from verfedgnn.data import synthetic_ratings
parties = vf.split_items(synthetic_ratings(users=120, items=90, ratings=4000, seed=5), parties=3, seed=5)
config = vf.Config.preset("paper", batch=400, epochs=12)
print("ready", flush=True)
watch = lambda p: print(p.round, flush=True)
vf.train(parties, config, out=sys.argv[1], watch=watch) if sys.argv[2] == "new" else vf.resume(sys.argv[1], watch=watch)
"""
    out = tmp_path / "run"
    mode = "new"
    for pause in (0.13, 0.29):
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(out), mode], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip().isdigit() and int(line) > 1:  # the checkpoint of the first round is written
                break
        time.sleep(pause)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert (out / "metrics.json").exists() or (out / "checkpoint" / CHECKPOINT).exists()
        mode = "resume"
    killed = vf.resume(out)
    whole = vf.train(small_parties, vf.Config.preset("paper", batch=400, epochs=12))
    same(whole, killed)


def test_stopped_before_the_first_validation(small_parties: list[vf.PartyData], tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        vf.train(small_parties, config(), out=tmp_path / "run", stop=lambda: True)
    same(vf.resume(tmp_path / "run"), vf.train(small_parties, config()))


def test_killed_between_the_last_round_and_the_figures(
    small_parties: list[vf.PartyData], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, values in {"all rounds": {}, "patience": {"patience": 1, "epochs": 50, "lr": 1.0}}.items():
        with monkeypatch.context() as patch:
            patch.setattr(vf.Run, "complete_folder", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                vf.train(small_parties, config(**values), out=tmp_path / name)
        same(vf.resume(tmp_path / name), vf.train(small_parties, config(**values)))


def test_a_full_disk_is_one_line_and_the_run_goes_on_later(
    small_parties: list[vf.PartyData], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen, calls = config(), iter(range(1000))

    def full(write: Callable[[Buffer], object], *content: Any) -> None:
        if next(calls) == 2:
            raise OSError(28, "No space left on device")
        write_parts(write, *content)

    monkeypatch.setattr("verfedgnn.training.loop.CHECKPOINT_SECONDS", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr("verfedgnn.runs.checkpoint.write_parts", full)
        with pytest.raises(vf.RunError, match=r"No space left on device.*free some space"):
            vf.train(small_parties, chosen, out=tmp_path / "run")
    same(vf.resume(tmp_path / "run"), vf.train(small_parties, chosen))


def test_overwrite_waits_until_it_can_write(small_parties: list[vf.PartyData], tmp_path: Path) -> None:
    vf.train(small_parties, config(), out=tmp_path / "run")
    with pytest.raises(vf.ConfigError, match='device="cpu"'):
        vf.train(small_parties, config(), out=tmp_path / "run", overwrite=True, device="meta")
    assert vf.Run.load(tmp_path / "run")
    (tmp_path / "site").mkdir()
    for text in ('title = "my pages"', config().to_toml()):  # the second is for `--config`
        (tmp_path / "site" / "config.toml").write_text(text)
        with pytest.raises(vf.RunError, match="not a run folder"):
            vf.train(small_parties, config(), out=tmp_path / "site", overwrite=True)
    assert (tmp_path / "site" / "config.toml").exists()


def test_an_unfinished_checkpoint_leaves_the_last_good_one(
    small_parties: list[vf.PartyData], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = config()
    monkeypatch.setattr("verfedgnn.training.loop.CHECKPOINT_SECONDS", 0.0)
    calls = iter(range(1000))

    def dies(write: Callable[[Buffer], object], *content: Any) -> None:
        if next(calls) == 2:
            write(b"half")
            raise KeyboardInterrupt
        write_parts(write, *content)

    monkeypatch.setattr("verfedgnn.runs.checkpoint.write_parts", dies)
    with pytest.raises(KeyboardInterrupt):
        vf.train(small_parties, chosen, out=tmp_path / "run")
    monkeypatch.undo()
    found = CheckpointFile(tmp_path / "run" / "checkpoint").read()
    assert found is not None
    assert found.round == 2, "the third one was cut"
    same(vf.resume(tmp_path / "run"), vf.train(small_parties, chosen))


def test_given_parts_stay_with_the_run(small_parties: list[vf.PartyData], tmp_path: Path) -> None:
    """A split of one's own is used by every later step: resume, evaluate, lift."""
    parts = [np.arange(len(p.ratings)).astype(np.int8) % 3 for p in small_parties]
    chosen = config(gate=True, epochs=2, final=False)
    whole = vf.train(small_parties, chosen, parts=parts)
    with pytest.raises(Interrupted):
        vf.train(small_parties, chosen, parts=parts, out=tmp_path / "run", stop=lambda: True)
    run = vf.resume(tmp_path / "run")
    same(whole, run)
    assert vf.Run.load(tmp_path / "run").evaluate()["test"] == pytest.approx(whole.metrics["test"])
    known = vf.lift(run)["overall"]
    assert known["federated"] == pytest.approx(whole.metrics["test"]["rmse"], rel=0.01)
    assert known["cases"] <= sum(int((part == TEST).sum()) for part in parts)
    with pytest.raises(vf.DataError, match="every rating of every party"):
        vf.train(small_parties, config(), parts=parts[:2])


@pytest.fixture(scope="module")
def two_trainings(small_parties: list[vf.PartyData]) -> vf.Run:
    """Six rounds of ratings, six of lists, then the gates."""
    chosen = vf.Config.preset("best", epochs=6, dim=8, evaluate_every=2, final=False)
    return vf.train(small_parties, chosen)


@pytest.mark.parametrize("rounds", [3, 6, 7, 12, 13])
def test_a_stop_in_either_training_resumes_to_the_same_bits(
    small_parties: list[vf.PartyData], two_trainings: vf.Run, tmp_path: Path, rounds: int
) -> None:
    calls = 0

    def stop() -> bool:
        nonlocal calls
        calls += 1
        return calls >= rounds

    with pytest.raises(Interrupted):
        vf.train(small_parties, two_trainings.config, out=tmp_path / "run", stop=stop)
    run = vf.resume(tmp_path / "run")
    same(run, two_trainings)
    assert (tmp_path / "run" / "lists" / "metrics.json").is_file()
    same(run, vf.Run.load(tmp_path / "run"))


def test_finished_models_of_single_parties_are_not_trained_again(
    small_parties: list[vf.PartyData], two_trainings: vf.Run, tmp_path: Path
) -> None:
    seen: list[str] = []
    watch = lambda event: seen.append(event.label)  # noqa: E731
    stop = lambda: seen[-1] == "party-1 alone, lists"  # noqa: E731
    with pytest.raises(Interrupted, match="are not"):
        vf.train(small_parties, two_trainings.config, out=tmp_path / "run", watch=watch, stop=stop)
    before = {*seen}
    seen.clear()
    same(vf.resume(tmp_path / "run", watch=watch), two_trainings)
    assert before >= {"federation", "lists", "party-0 alone", "party-2 alone", "party-0 alone, lists"}
    assert {label for label in seen if "alone" in label} == {"party-1 alone, lists", "party-2 alone, lists"}
    assert seen.count("federation") == seen.count("lists") == 1, "only the finished trainings' last line"


@pytest.fixture
def short_final_trainings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rounds of ratings and two of lists."""
    monkeypatch.setattr("verfedgnn.config.tree.FINAL_ROUNDS", {"ratings": 3, "raters": 3, "lists": 2})


FINAL = {"epochs": 4, "dim": 8, "evaluate_every": 2}


@pytest.mark.usefixtures("short_final_trainings")
def test_a_stop_in_a_training_on_all_ratings_resumes_to_the_same_bits(
    small_parties: list[vf.PartyData], tmp_path: Path
) -> None:
    """The judged trainings take seven rounds: a stop before the first, in either and after the last one on all ratings."""
    chosen = vf.Config.preset("best", **FINAL)
    whole = vf.train(small_parties, chosen)
    assert whole.final_of is not None
    assert (whole.metrics["final"]["rounds"], whole.metrics["final"]["lists"]["rounds"]) == (3, 2)
    for rounds in (8, 9, 11, 12, 13):
        calls = iter(range(1, 1000))
        folder = tmp_path / str(rounds)
        with pytest.raises(Interrupted):
            vf.train(
                small_parties, chosen, out=folder, stop=lambda calls=calls, last=rounds: next(calls) >= last
            )
        assert (folder / "final" / "history.jsonl").is_file() == (rounds > 7)
        assert not (folder / "metrics.json").is_file()
        run = vf.resume(folder)
        same(run, whole)
        same(run, vf.Run.load(folder))


@pytest.mark.usefixtures("short_final_trainings")
@pytest.mark.parametrize("preset", ["best", "private"])
def test_a_saved_run_is_loaded_with_what_is_served_and_what_was_judged(
    small_parties: list[vf.PartyData], tmp_path: Path, preset: str
) -> None:
    values = FINAL if preset == "best" else {"epochs": 2, "evaluate_every": 1}
    run = vf.train(small_parties, vf.Config.preset(preset, **values))
    run.save(tmp_path / "saved")
    loaded = vf.Run.load(tmp_path / "saved")
    same(loaded, run)
    assert loaded.metrics == run.metrics
    assert loaded.judged is not loaded
    assert loaded.config.split.kind == "all"
    assert loaded.judged.config == run.judged.config
    for mine, theirs in zip(loaded.judged.parts, run.judged.parts, strict=True):
        assert (mine == theirs).all()
        assert (mine != TRAIN).any()
    assert all((part == TRAIN).all() for part in loaded.parts)
    assert loaded.evaluate()["test"] == run.judged.evaluate()["test"] == run.metrics["test"]
    user = str(small_parties[0].ratings.user_ids[3])
    assert loaded.recommend(user, k=9) == run.recommend(user, k=9) != loaded.judged.recommend(user, k=9)
    loaded.save(tmp_path / "again")
    same(vf.Run.load(tmp_path / "again"), run)


@pytest.mark.usefixtures("short_final_trainings")
@pytest.mark.parametrize("preset", ["best", "private"])
def test_every_rating_has_reached_what_is_served(small_parties: list[vf.PartyData], preset: str) -> None:
    """Under preset private, only what a party computes at home is repeated on all ratings."""
    values = FINAL if preset == "best" else {"epochs": 2, "evaluate_every": 1}
    run = vf.train(small_parties, vf.Config.preset(preset, **values))
    for model, before, party, part in zip(
        run.models, run.judged.models, run.parties, run.judged.parts, strict=True
    ):
        changed = (model.items != before.items).any(1).numpy()
        assert changed[party.ratings.item[part != TRAIN]].all()
    assert torch.equal(run.public, run.judged.public) == (preset == "private")
    final = run.metrics["final"]
    assert (final["rounds"], final["bytes"]["up"] > 0) == ((0, False) if preset == "private" else (3, True))


def test_a_loaded_run_serves_the_lists_that_were_judged(
    small_parties: list[vf.PartyData], tmp_path: Path
) -> None:
    """Weights between items are stored in half precision; the figures are those of the stored weights."""
    run = vf.train(
        small_parties, vf.Config.preset("best", epochs=20, dim=8, final=False), out=tmp_path / "run"
    )
    loaded = vf.Run.load(tmp_path / "run")
    assert loaded.evaluate()["test"] == run.metrics["test"]
    users = torch.arange(120)
    for mine, theirs in zip(run.ranker.models, loaded.ranker.models, strict=True):
        assert torch.equal(mine.score(users), theirs.score(users))
    user = str(small_parties[0].ratings.user_ids[3])
    assert loaded.recommend(user, k=9) == run.recommend(user, k=9)


def test_a_run_is_saved_only_as_a_new_folder(small_parties: list[vf.PartyData], tmp_path: Path) -> None:
    run = vf.train(small_parties, config(epochs=1))
    run.save(tmp_path / "run")
    same(run, vf.Run.load(tmp_path / "run"))
    with pytest.raises(vf.RunError, match="exists already"):
        run.save(tmp_path / "run")


def test_file_names_of_parties_never_collide() -> None:
    table = vf.read_ratings("synthetic")
    names = ["a-2", "a!", "a", "A", "é", "ü", "x" * 100]
    files = safe_names([vf.PartyData(name, table) for name in names])
    assert len({name.lower() for name in files}) == len(names)
    with pytest.raises(vf.DataError, match="printable"):
        check_parties([vf.PartyData("x" * 101, table)])


def test_metrics_file_keeps_its_contract(small_parties: list[vf.PartyData], tmp_path: Path) -> None:
    vf.train(small_parties, config(), out=tmp_path / "run")
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    for path in (
        "test.rmse",
        "valid.rmse",
        "rounds",
        "seconds",
        "bytes.up",
        "bytes.down",
        "bytes.per_party_per_round",
    ):
        value: Any = metrics
        for key in path.split("."):
            value = value[key]
        assert value > 0
    assert {"gradients", "neighbourhoods"} <= set(metrics["privacy"])
    assert [p["name"] for p in metrics["parties"]] == ["party-0", "party-1", "party-2"]
    assert metrics["rounds"] == 20
    assert all(0.85 < p["test"]["rmse"] < 1.1 for p in metrics["parties"])
    assert sorted(os.listdir(tmp_path / "run")) == sorted(
        [
            ".lock",
            "checkpoint",
            "config.toml",
            "history.jsonl",
            "ledger.json",
            "metrics.json",
            "model",
            "parties",
        ]
    )


def test_a_full_disk_leaves_no_half_run(
    small_parties: list[vf.PartyData], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    config = vf.Config.preset("paper", epochs=1)
    with monkeypatch.context() as patch:
        patch.setattr("verfedgnn.runs.run.write_party_tables", full)
        with pytest.raises(vf.RunError, match="free some space, then repeat the command"):
            vf.train(small_parties, config, out=tmp_path / "run")
    vf.train(small_parties, config, out=tmp_path / "run")
    assert (tmp_path / "run" / "metrics.json").is_file()
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "notes.txt").write_text("not ours")
    monkeypatch.setattr("verfedgnn.runs.run.write_party_tables", full)
    with pytest.raises(vf.RunError):
        begin_folder(tmp_path / "theirs", config, small_parties, [])
    assert [file.name for file in (tmp_path / "theirs").iterdir()] == ["notes.txt"]

"""Runs of two nights: the list of runs, how tonight differs from yesterday, and whether it may replace it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import verfedgnn as vf
from verfedgnn.core.files import switch_link
from verfedgnn.data import TEST, TRAIN
from verfedgnn.evaluation.run_difference import (
    compare_runs,
    difference,
    judge_challenger,
    match_parties,
)
from verfedgnn.runs.nights import read_best
from verfedgnn.runs.prepared_data import split_ratings
from verfedgnn.runs.run_folder import FORGOTTEN, list_runs
from verfedgnn.upkeep.forget import forget

pytestmark = pytest.mark.usefixtures("short_own_models")

Command = Callable[..., tuple[int, str, str]]
SHORT = vf.Config.preset("best", epochs=6, dim=8, evaluate_every=2, fractions=(0.6, 0.2, 0.2))


def yesterday_of(parties: list[vf.PartyData]) -> list[vf.PartyData]:
    """Return the parties before a tenth of the ratings, some users and an item of each party came."""
    before = []
    for party in parties:
        table = party.ratings.take(np.arange(len(party.ratings)) % 10 != 0)
        table = table.take((table.user % 12 != 0) & (table.item != 0))
        table = table.select_users(np.unique(table.user)).select_items(np.unique(table.item))
        before.append(vf.PartyData(party.name, table))
    return vf.align_users(before)


@pytest.fixture(scope="module")
def nights(small_parties: list[vf.PartyData], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs monday and tuesday, tuesday after monday, and the link current to monday."""
    folder = tmp_path_factory.mktemp("nights")
    vf.train(yesterday_of(small_parties), SHORT, out=folder / "monday")
    vf.train(small_parties, SHORT, out=folder / "tuesday", after=folder / "monday")
    os.utime(folder / "monday" / "metrics.json", (1.8e9, 1.8e9))
    (folder / "current").symlink_to("monday")
    return folder


@pytest.fixture(scope="module")
def runs(nights: Path) -> tuple[vf.Run, vf.Run]:
    return vf.Run.load(nights / "monday"), vf.Run.load(nights / "tuesday")


# -- the list of runs ----------------------------------------------------------------------------------------------------


def test_runs_are_listed_with_their_figures(
    nights: Path, runs: tuple[vf.Run, vf.Run], command: Command
) -> None:
    code, out, _ = command("runs", nights, "--json")
    found = {row["folder"]: row for row in json.loads(out)}
    assert code == 0
    assert set(found) == {"monday", "tuesday"}
    for name, run in zip(found, runs if next(iter(found)) == "monday" else runs[::-1], strict=True):
        assert found[name]["rmse"] == run.metrics["test"]["rmse"]
        assert found[name]["ndcg"] == run.metrics["test"]["ndcg@20"]
        assert run.lists is not None
        trainings = (run.judged, run.judged.lists, run, run.lists)
        assert found[name]["bytes"] == sum(each.ledger.total() for each in trainings if each is not None)
        assert found[name]["finished"]
        assert found[name]["parties"] == [party.name for party in run.parties]
    assert found["monday"]["date"] == "2027-01-15T08:00:00+00:00"
    code, out, _ = command("runs", nights)
    assert "monday" in out
    assert "current" not in out, "a link is no other run"


def test_an_unfinished_run_is_listed_as_such(nights: Path, tmp_path: Path, command: Command) -> None:
    shutil.copytree(nights / "tuesday", tmp_path / "member" / "run")
    (tmp_path / "member" / "run" / "metrics.json").unlink()
    (row,) = list_runs(tmp_path)
    assert (row.folder, row.finished, row.rmse) == ("member/run", False, None)
    assert "not finished" in command("runs", tmp_path)[1]
    (tmp_path / "member" / "run" / "metrics.json").write_text("{")
    assert command("runs", tmp_path)[0] == 2


def test_a_spent_budget_is_listed(nights: Path, tmp_path: Path) -> None:
    shutil.copytree(nights / "monday", tmp_path / "private")
    file = tmp_path / "private" / "metrics.json"
    metrics = json.loads(file.read_text())
    metrics["privacy"]["gradients"] |= {"mechanism": "skellam", "composed": {"epsilon": 7.5, "delta": 1e-6}}
    file.write_text(json.dumps(metrics))
    assert [run.epsilon for run in list_runs(tmp_path)] == [7.5]
    assert [run.epsilon for run in list_runs(nights)] == [None, None], "ternary gradients have no epsilon"


# -- differences ---------------------------------------------------------------------------------------------------------


def test_ratings_are_matched_by_ids(runs: tuple[vf.Run, vf.Run]) -> None:
    before, after = runs
    for party in match_parties(before, after):
        old, new = before.parties[party.before].ratings, after.parties[party.after].ratings
        then = {
            (str(old.user_ids[u]), str(old.item_ids[v])): (row, part)
            for row, (u, v, part) in enumerate(
                zip(old.user, old.item, before.judged.parts[party.before], strict=True)
            )
        }
        for row, (u, v) in enumerate(zip(new.user, new.item, strict=True)):
            expected = then.get((str(new.user_ids[u]), str(new.item_ids[v])), (-1, -1))
            assert (party.earlier_rating[row], party.earlier_part[row]) == expected


def test_a_difference_says_what_came_and_went(
    runs: tuple[vf.Run, vf.Run], small_parties: list[vf.PartyData]
) -> None:
    found = difference(*runs)
    assert found["configuration"] == []
    for row, old, new in zip(found["data"]["parties"], runs[0].parties, small_parties, strict=True):
        assert row["ratings"]["added"] == len(new.ratings) - len(old.ratings)
        assert row["ratings"]["removed"] == row["ratings"]["changed"] == 0
        assert row["items"]["added"] == 1
    backwards = difference(*runs[::-1])
    for row, back in zip(found["data"]["parties"], backwards["data"]["parties"], strict=True):
        assert row["users"]["added"] == back["users"]["removed"] >= 10
    judged = runs[1].judged
    changed = replace(judged, config=judged.config.with_values({"lr": 0.5}))
    (setting,) = difference(runs[0], changed)["configuration"]
    assert (setting["setting"], setting["after"]) == ("training.lr", 0.5)


def test_figures_are_those_of_the_runs_where_the_data_is_the_same(runs: tuple[vf.Run, vf.Run]) -> None:
    run = runs[1]
    figures = compare_runs(run, run, match_parties(run, run), TEST)
    for metric in ("rmse", "ndcg@20"):
        overall = figures[metric]["overall"]
        assert overall["before"] == overall["after"] == pytest.approx(run.metrics["test"][metric])
        assert overall["better"] == "cannot tell"


def test_only_test_ratings_of_both_are_judged(runs: tuple[vf.Run, vf.Run]) -> None:
    before, after = runs
    cases = difference(before, after)["figures"]["rmse"]["overall"]["cases"]
    parties = match_parties(before, after)
    assert 0 < cases == sum(int(((p.part == TEST) & (p.earlier_part == TEST)).sum()) for p in parties)
    leaking = replace(before.judged, parts=[np.full_like(part, TRAIN) for part in before.parts])
    figures = difference(leaking, after)["figures"]["rmse"]
    assert figures["overall"]["cases"] == 0
    assert figures["overall"]["gain"] is None


def test_a_worse_run_is_worse(runs: tuple[vf.Run, vf.Run]) -> None:
    before, after = runs
    models = [replace(model, vectors=model.users * 0.8) for model in after.judged.models]
    figures = difference(before, replace(after.judged, models=models))["figures"]
    assert figures["rmse"]["overall"]["better"] == "no"


def test_parties_that_came_and_went(runs: tuple[vf.Run, vf.Run]) -> None:
    before, after = runs
    judged = before.judged
    fewer = replace(
        judged, parties=judged.parties[:2], models=judged.models[:2], parts=judged.parts[:2], lists=None
    )
    found = difference(fewer, after)
    assert found["data"]["parties_added"] == [after.parties[2].name]
    assert len(found["figures"]["ndcg@20"]["parties"]) == 2


def test_the_command_prints_every_table(nights: Path, command: Command) -> None:
    code, out, _ = command("diff", nights / "monday", nights / "tuesday")
    assert code == 0
    for text in ("Test ratings of both runs", "removed", "Both runs have the same settings"):
        assert text in out
    code, out, _ = command("diff", nights / "current", nights / "tuesday", "--json")
    assert set(json.loads(out)) == {"configuration", "data", "figures"}


# -- champion and challenger ---------------------------------------------------------------------------------------------


def test_a_run_that_is_not_worse_is_promoted(nights: Path, tmp_path: Path, command: Command) -> None:
    shutil.copytree(nights, tmp_path, symlinks=True, dirs_exist_ok=True)
    link = tmp_path / "current"
    code, out, _ = command(
        "promote", tmp_path / "tuesday", "--over", link, "--link", link, "--tolerance", "5", "--json"
    )
    assert code == 0
    assert json.loads(out)["promoted"]
    assert os.readlink(link) == "tuesday"
    new = json.loads(out)["figures"]["new"]["rmse"]["overall"]
    assert new["cases"] > 0, "ratings that only the challenger has are judged too"


def test_a_run_is_compared_with_the_one_that_is_served(
    nights: Path, tmp_path: Path, command: Command
) -> None:
    """Mistakes would switch the link to a run that was never compared with the served one."""
    shutil.copytree(nights, tmp_path, symlinks=True, dirs_exist_ok=True)
    link = tmp_path / "current"
    tuesday = tmp_path / "tuesday"
    code, _, err = command("promote", tuesday, "--over", tuesday, "--link", link)
    assert code == 2
    assert "are the same run, so there is nothing to compare" in " ".join(err.split())
    shutil.copytree(tuesday, tmp_path / "wednesday")
    code, _, err = command("promote", tmp_path / "wednesday", "--over", tuesday, "--link", link)
    assert code == 2
    assert f"leads to monday, but {tmp_path / 'wednesday'} would be compared" in " ".join(err.split())
    assert os.readlink(link) == "monday"


def test_a_run_with_users_who_were_forgotten_in_the_served_one_is_not_promoted(
    nights: Path, tmp_path: Path, command: Command
) -> None:
    """Its training had begun before the users were forgotten."""
    shutil.copytree(nights, tmp_path, symlinks=True, dirs_exist_ok=True)
    link = tmp_path / "current"
    user = str(vf.Run.load(link).parties[0].ratings.user_ids[0])
    forget(link, [user])
    words = ("promote", tmp_path / "tuesday", "--over", link, "--link", link, "--tolerance", "100")
    code, _, err = command(*words)
    assert (code, "has 1 user forgotten in" in " ".join(err.split())) == (2, True), err
    assert user not in err
    assert os.readlink(link) == "monday"
    forget(tmp_path / "tuesday", [user])
    assert command(*words)[0] == 0


def test_a_user_who_is_forgotten_while_two_runs_are_compared_is_not_promoted(
    nights: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(nights, tmp_path, symlinks=True, dirs_exist_ok=True)
    link = tmp_path / "current"
    user = str(vf.Run.load(link).parties[0].ratings.user_ids[0])

    def judge(*given: Any, **options: Any) -> dict[str, Any]:
        forget(link, [user])
        return judge_challenger(*given, **options)

    monkeypatch.setattr("verfedgnn.evaluation.run_difference.judge_challenger", judge)
    words = ("promote", tmp_path / "tuesday", "--over", link, "--link", link, "--tolerance", "100")
    code, _, err = command(*words)
    assert (code, "has 1 user forgotten in" in " ".join(err.split())) == (2, True), err
    assert os.readlink(link) == "monday"


def test_a_run_is_not_promoted_over_one_that_is_served_no_more(
    nights: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run was promoted meanwhile; users may have been forgotten in it."""
    shutil.copytree(nights, tmp_path, symlinks=True, dirs_exist_ok=True)
    link = tmp_path / "current"
    shutil.copytree(tmp_path / "tuesday", tmp_path / "wednesday")

    def judge(*given: Any, **options: Any) -> dict[str, Any]:
        switch_link(link, tmp_path / "wednesday")
        return judge_challenger(*given, **options)

    monkeypatch.setattr("verfedgnn.evaluation.run_difference.judge_challenger", judge)
    words = ("promote", tmp_path / "tuesday", "--over", link, "--link", link, "--tolerance", "100")
    code, _, err = command(*words)
    assert (code, "leads to wednesday, but" in " ".join(err.split())) == (2, True), err
    assert os.readlink(link) == "wednesday"


def test_a_run_without_the_run_before_it_brings_no_forgotten_user_back(
    nights: Path, small_parties: list[vf.PartyData], tmp_path: Path, command: Command
) -> None:
    """It was trained without --after, and the user was in its data neither. The night after it, the user is."""
    shutil.copytree(nights, tmp_path, symlinks=True, dirs_exist_ok=True)
    link = tmp_path / "current"
    user = str(vf.Run.load(link).parties[0].ratings.user_ids[0])
    forget(tmp_path / "tuesday", [user])
    (tmp_path / "tuesday" / FORGOTTEN).unlink()
    forget(link, [user])
    words = ("promote", tmp_path / "tuesday", "--over", link, "--link", link, "--tolerance", "100")
    assert command(*words)[0] == 0
    wednesday = vf.train(small_parties, vf.Config.preset("means"), after=link)
    assert user not in wednesday.parties[0].ratings.user_ids


def spoil(folder: Path, share: float) -> None:
    """Multiply the user vectors that the judged models of a run predict ratings with."""
    for file in (folder / "model").glob("[!_]*.safetensors"):
        arrays = safetensors.numpy.load(file.read_bytes())
        file.write_bytes(safetensors.numpy.save(arrays | {"users": arrays["users"] * np.float32(share)}))


@pytest.mark.parametrize("text", ["{", "[]", '{"rmse": 3}'])
def test_best_runs_that_cannot_be_read_are_named(
    nights: Path, tmp_path: Path, command: Command, text: str
) -> None:
    shutil.copytree(nights, tmp_path, symlinks=True, dirs_exist_ok=True)
    (tmp_path / "monday" / "best-promoted.json").write_text(text)
    code, _, err = command("promote", tmp_path / "tuesday", "--over", tmp_path / "current")
    assert (code, "best-promoted.json cannot be read" in " ".join(err.split())) == (2, True), err


def test_a_worse_run_is_refused_with_the_reason(nights: Path, tmp_path: Path, command: Command) -> None:
    shutil.copytree(nights, tmp_path, symlinks=True, dirs_exist_ok=True)
    spoil(tmp_path / "tuesday", 0.8)
    link = tmp_path / "current"
    code, out, err = command("promote", tmp_path / "tuesday", "--over", link, "--link", link)
    assert code == 5
    assert "kept" in out
    assert "RMSE on the test ratings of both runs is worse" in err
    assert os.readlink(link) == "monday"
    assert command("promote", tmp_path / "tuesday", "--over", link, "--tolerance", "100")[0] == 0


def test_tolerated_losses_of_several_nights_do_not_add_up(
    nights: Path, tmp_path: Path, command: Command
) -> None:
    """Each night loses a little on the night before; the best promoted run stays the reference until a run is as good."""
    link = tmp_path / "current"
    link.symlink_to("0")
    for night, share in enumerate((1.01, 1.06, 1.075, 1.0)):
        shutil.copytree(nights / "tuesday", tmp_path / str(night))
        spoil(tmp_path / str(night), share)

    def promote(night: int) -> tuple[int, str]:
        code, _, err = command(
            "promote", tmp_path / str(night), "--over", link, "--link", link, "--tolerance", "1"
        )
        return code, " ".join(err.split())

    def best() -> str:
        return read_best(link.resolve())["rmse"].name

    assert promote(1)[0] == 0
    assert (os.readlink(link), best()) == ("1", "0")
    code, err = promote(2)
    assert code == 5
    assert "RMSE on the test ratings of both runs" not in err, "compared with the night before, it would pass"
    assert "RMSE compared with the best promoted run is worse" in err
    assert promote(3)[0] == 0
    assert (os.readlink(link), best()) == ("3", "3"), "the best run so far"
    assert promote(1)[0] == 0
    shutil.rmtree(tmp_path / "3")
    code, err = promote(2)
    assert code == 2
    assert "is the best run that was promoted, and it is gone" in err


def test_a_run_without_many_of_the_ratings_is_refused(runs: tuple[vf.Run, vf.Run]) -> None:
    """A file that was cut short leaves a run whose figures may still look good."""
    found = judge_challenger(runs[1], runs[0], tolerance=100, max_lost=5)
    assert not found["promoted"]
    assert any("ratings of party" in reason for reason in found["reasons"])
    assert judge_challenger(runs[1], runs[0], tolerance=100, max_lost=50)["promoted"]


def test_a_load_with_turned_stars_cannot_judge_itself(runs: tuple[vf.Run, vf.Run]) -> None:
    """Its own test ratings are as wrong as its training ratings, so shared ratings have the champion's values."""
    champion, tonight = runs
    turned = []
    for party in tonight.parties:
        table = party.ratings
        rating = (sum(table.scale) - table.rating).astype(table.rating.dtype)
        turned.append(vf.PartyData(party.name, replace(table, rating=rating)))
    bad = judge_challenger(champion, replace(tonight.judged, parties=turned), tolerance=100)
    good = judge_challenger(champion, tonight, tolerance=100)
    assert bad["figures"]["shared"] == good["figures"]["shared"]
    assert bad["figures"]["new"] != good["figures"]["new"]


def test_a_leak_is_refused(runs: tuple[vf.Run, vf.Run]) -> None:
    """A champion with another seed was trained on ratings that the challenger tests, and would look too good."""
    champion, challenger = runs
    other = champion.config.with_values({"seed": 1})
    parts = [split_ratings(party, champion.judged.config.split, other.seed) for party in champion.parties]
    with pytest.raises(vf.RunError, match="training or validation ratings of the champion"):
        judge_challenger(replace(champion.judged, config=other, parts=parts), challenger)


def test_too_few_users_give_no_verdict(runs: tuple[vf.Run, vf.Run]) -> None:
    champion, challenger = runs
    few = [
        np.where(party.ratings.user < 5, part, TRAIN)
        for party, part in zip(challenger.parties, challenger.judged.parts, strict=True)
    ]
    with pytest.raises(vf.RunError, match="a verdict needs 20"):
        judge_challenger(champion, replace(challenger.judged, parts=few))


def test_a_link_is_switched_at_once(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    link = tmp_path / "current"
    switch_link(link, tmp_path / "a")
    switch_link(link, tmp_path / "b")
    assert link.resolve() == tmp_path / "b"
    with pytest.raises(vf.RunError, match="is not a link"):
        switch_link(tmp_path / "a", tmp_path / "b")

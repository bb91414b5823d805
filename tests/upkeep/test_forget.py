"""Forgetting users: nothing of them stays in the run folder, and the model is repaired without them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import verfedgnn as vf
from verfedgnn.core.errors import RunError
from verfedgnn.data import TRAIN
from verfedgnn.data.synthetic import synthetic_tables, write_tables
from verfedgnn.runs.added_items import AddedItem, added_file, read_added
from verfedgnn.upkeep import forget as forgetting
from verfedgnn.upkeep.forget import EXCHANGED
from verfedgnn.upkeep.new_items import NewItems

Command = Callable[..., tuple[int, str, str]]
USER = "u0007"
ROW = 7


@pytest.fixture(scope="module")
def trained(small_parties: list[vf.PartyData], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("forget") / "run"
    run = vf.train(
        small_parties, vf.Config.preset("best", epochs=20, list_epochs=1, evaluate_every=10), out=folder
    )
    rated = {str(user): (5.0, None) for user in run.parties[0].ratings.user_ids[ROW : ROW + 3]}
    NewItems(folder, run, run.parties[0].name).add({"new": AddedItem("new", ratings=rated)})
    return folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def traces(folder: Path) -> list[str]:
    """Return the files in which the id is found."""
    return [str(p) for p in folder.rglob("*") if p.is_file() and USER.encode() in p.read_bytes()]


def test_nothing_of_the_user_stays(folder: Path, command: Command) -> None:
    assert vf.Run.load(folder).parties[0].ratings.user_ids[ROW] == USER
    before = vf.Run.load(folder, added=False)
    assert traces(folder), "the attack finds the id before"
    code, out, _ = command("forget", folder, "--user", USER, "--json")
    assert code == 0
    assert traces(folder) == []
    after = vf.Run.load(folder)
    for party in after.parties:
        assert not (party.ratings.user == ROW).any()
    assert len(read_added(added_file(folder, "party-0"))["new"].ratings) == 2
    with pytest.raises(RunError, match="not in training"):
        after.recommend(USER)
    record = json.loads(out)
    assert record["ratings"][before.parties[0].name] == int((before.parties[0].ratings.user == ROW).sum())
    assert USER not in (folder / "forget.json").read_text()
    for place in (folder, folder / "lists"):
        for path in (place / "checkpoint").rglob("*.safetensors"):
            for name, value in safetensors.numpy.load(path.read_bytes()).items():
                if not EXCHANGED.isdisjoint(name.split(".")):
                    assert not value.any(), (path, name)


@pytest.mark.filterwarnings("ignore::verfedgnn.core.errors.RunWarning")
@pytest.mark.parametrize(
    "line",
    [
        '{"item": "bad", "ratings": {"USER": [5, 99999999999999999999]}}\n',
        '{"item": "cut", "ratings": {"USER": [',
    ],
)
def test_a_line_of_added_items_that_cannot_be_read_goes_too(folder: Path, line: str) -> None:
    file = added_file(folder, "party-0")
    file.write_bytes(file.read_bytes() + line.replace("USER", "u0020").encode())
    forgetting.forget_users(folder, ["u0020"])
    assert b"u0020" not in file.read_bytes()
    assert list(read_added(file)) == ["new"]


def test_nothing_that_was_sent_stays_of_a_training_by_blocks_of_users(
    small_parties: list[vf.PartyData], tmp_path: Path
) -> None:
    """A block has fewer rows than the federation has users, and a released gradient is flat."""
    config = vf.Config.preset("best", epochs=4, raters=0, lists=False, user_blocks=2)
    vf.train(small_parties, config, out=tmp_path / "run")

    def exchanged() -> dict[str, bool]:
        return {
            f"{path.stem} {name}": bool(value.any())
            for path in (tmp_path / "run" / "checkpoint").rglob("*.safetensors")
            for name, value in safetensors.numpy.load(path.read_bytes()).items()
            if not EXCHANGED.isdisjoint(name.split("."))
        }

    before = exchanged()
    assert {name.split(" ")[1].split(".")[0] for name, any_ in before.items() if any_} >= EXCHANGED - {
        "pulls"
    }
    forgetting.forget_users(tmp_path / "run", [USER])
    assert exchanged() == dict.fromkeys(before, False)
    vf.train(small_parties, config, start_from=tmp_path / "run")


def test_the_user_is_average_and_only_rated_items_change(folder: Path) -> None:
    before = vf.Run.load(folder, added=False)
    forgetting.forget_users(folder, [USER])
    after = vf.Run.load(folder, added=False)
    for old, new, party in zip(before.models, after.models, before.parties, strict=True):
        others = np.arange(len(old.users)) != ROW
        assert np.allclose(new.users[ROW], old.users[others].mean(0), atol=1e-5)
        assert (new.users[others] == old.users[others]).all()
        rated = np.isin(np.arange(len(old.items)), party.ratings.item[party.ratings.user == ROW])
        assert (new.items[~rated] == old.items[~rated]).all()
        assert (new.items[rated] != old.items[rated]).any()
    worse = after.evaluate()["test"]["rmse"] - before.evaluate()["test"]["rmse"]
    assert worse < 0.03, "the repaired model is about as good"


def test_ratings_of_a_forgotten_user_have_no_influence_on_the_items_they_rated(folder: Path) -> None:
    changed = folder.with_name("changed")
    shutil.copytree(folder, changed)
    parties, parts = forgetting.read_party_tables(changed / "parties")
    table = parties[0].ratings
    mine = (table.user == ROW) & (parts[0] == TRAIN)
    table.rating[mine] = 6 - table.rating[mine]  # the opposite opinion
    forgetting.write_party_tables(changed / "parties", parties, parts)
    for place in (folder, changed):
        forgetting.forget_users(place, [USER])
    same, other = (vf.Run.load(place, added=False).models[0].items for place in (folder, changed))
    assert (same == other).all()


@pytest.mark.parametrize("step", ["_forget_added", "_repair_models", "_clear_checkpoints", "_write_record"])
def test_a_kill_at_any_step_is_finished_later(
    folder: Path, step: str, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(forgetting, step, die)
        with pytest.raises(KeyboardInterrupt):
            forgetting.forget_users(folder, [USER])
    assert USER not in (folder / forgetting.JOURNAL).read_text()
    code, _, err = command("forget", folder, "--quiet")
    assert code == 0, err
    assert traces(folder) == []
    assert not (folder / forgetting.JOURNAL).exists()
    vf.Run.load(folder)


def test_a_training_that_continues_the_run_does_not_know_the_user(
    folder: Path, small_parties: list[vf.PartyData], tmp_path: Path
) -> None:
    forgetting.forget_users(folder, [USER])
    config = vf.Config.preset("best", epochs=2, list_epochs=1)
    again = vf.train(small_parties, config, start_from=folder, out=tmp_path / "next")
    assert again.parties[0].ratings.user_ids[ROW] == USER, "the party has the user in its data again"


def test_unknown_users_are_refused(folder: Path, command: Command, tmp_path: Path) -> None:
    ids = tmp_path / "ids.txt"
    ids.write_text(f"{USER}\nnobody\n")
    code, _, err = command("forget", folder, "--user-file", ids)
    assert (code, "1 user not in" in err) == (2, True)
    assert traces(folder), "nothing was changed"
    assert "nothing to forget" in command("forget", folder)[2]


def test_a_night_names_forgotten_users_who_are_still_in_the_data(
    tmp_path: Path, command: Callable[..., tuple[int, str, str]]
) -> None:
    write_tables(synthetic_tables(3, 0.3, users=40, items=20, ratings=400), tmp_path)
    data = [word for name in ("film", "book", "album") for word in ("--data", tmp_path / f"{name}.parquet")]
    run = tmp_path / "run"
    short = [word for pair in ("epochs=2", "gate=false", "lists=false") for word in ("--set", pair)]
    assert command("train", *data, *short, "--out", run)[0] == 0
    users = vf.Run.load(run).parties[0].ratings
    known = users.user_ids[users.user[0]]
    assert command("forget", run, "--user", known)[0] == 0
    code, _, err = command("train", *data, "--from", run)
    assert code == 0, err
    said = " ".join(err.split())
    assert f"film has ratings of 1 user(s) who were forgotten in {run}; they take part again" in said
    assert known not in said

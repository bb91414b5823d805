"""Forgetting users: nothing of them stays in the run folder, and the model is repaired without them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch

import verfedgnn as vf
from verfedgnn.core.errors import RunError
from verfedgnn.core.files import lock_folder
from verfedgnn.core.item_item import ItemScores
from verfedgnn.data.synthetic import synthetic_tables, write_tables
from verfedgnn.federation.agreement import MARK
from verfedgnn.runs.added_items import AddedItem, added_file, read_added
from verfedgnn.runs.forget_record import gather_forgotten, note_forgotten, read_forgotten_users
from verfedgnn.runs.party_model import read_model, write_model
from verfedgnn.runs.party_tables import read_party_tables, write_party_tables
from verfedgnn.runs.prepared_data import prepare as prepare_data
from verfedgnn.runs.run import write_json
from verfedgnn.runs.run_folder import FORGET_JOURNAL, SPLIT_SECRET, empty_run
from verfedgnn.upkeep import forget as forgetting
from verfedgnn.upkeep.new_items import NewItems

pytestmark = pytest.mark.usefixtures("short_own_models")

Command = Callable[..., tuple[int, str, str]]
USER = "u0007"
ROW = 7


@pytest.fixture(scope="module")
def trained(small_parties: list[vf.PartyData], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("forget") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("verfedgnn.config.tree.FINAL_ROUNDS", {"ratings": 3, "raters": 3, "lists": 2})
        run = vf.train(small_parties, vf.Config.preset("best", epochs=20, evaluate_every=10), out=folder)
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
    assert any("which items these users rated" in text for text in record["remains"])
    assert not list(folder.rglob("checkpoint")), "a finished run needs none"


@pytest.mark.parametrize("preset", ["means", "private", "paper"])
def test_a_user_is_forgotten_in_a_run_of_every_preset(
    small_parties: list[vf.PartyData], tmp_path: Path, preset: str
) -> None:
    """Of preset `means`, whose lists share nothing, the run stayed half repaired for ever."""
    declared = [
        vf.PartyData(each.name, each.ratings.with_catalogue(each.ratings.n_items)) for each in small_parties
    ]
    vf.train(declared, vf.Config.preset(preset, epochs=1), out=tmp_path / "run")
    forgetting.forget(tmp_path / "run", [USER])
    assert traces(tmp_path / "run") == []
    run = vf.Run.load(tmp_path / "run")
    for each in (run, run.lists):
        for model in [] if each is None else [*each.models, *(each.alone or [])]:
            assert torch.allclose(model.users[ROW], model.users[np.arange(120) != ROW].mean(0), atol=1e-4)


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
    forgetting.forget(folder, ["u0020"])
    assert b"u0020" not in file.read_bytes()
    assert list(read_added(file)) == ["new"]


def test_the_user_is_average_and_only_rated_items_change(folder: Path) -> None:
    before = vf.Run.load(folder, added=False)
    forgetting.forget(folder, [USER])
    after = vf.Run.load(folder, added=False)
    assert after.judged is not after
    for kept, repaired in ((before, after), (before.judged, after.judged)):
        for old, new, party in zip(kept.models, repaired.models, before.parties, strict=True):
            others = np.arange(len(old.users)) != ROW
            assert np.allclose(new.users[ROW], old.users[others].mean(0), atol=1e-5)
            assert (new.users[others] == old.users[others]).all()
            rated = np.isin(np.arange(len(old.items)), party.ratings.item[party.ratings.user == ROW])
            assert (new.items[~rated] == old.items[~rated]).all()
            assert (new.items[rated] != old.items[rated]).any()
            assert (new.embeddings[~rated] == old.embeddings[~rated]).all()
            assert (new.embeddings[rated] != old.embeddings[rated]).any(1).all(), "no trace of the ratings"
    worse = after.evaluate()["test"]["rmse"] - before.evaluate()["test"]["rmse"]
    assert worse < 0.03, "the repaired model is about as good"


def test_ratings_of_a_forgotten_user_have_no_influence_on_the_items_they_rated(folder: Path) -> None:
    changed = folder.with_name("changed")
    shutil.copytree(folder, changed)
    parties, parts = forgetting.read_party_tables(changed / "parties")
    table = parties[0].ratings
    mine = table.user == ROW
    table.rating[mine] = 6 - table.rating[mine]  # the opposite opinion
    forgetting.write_party_tables(changed / "parties", parties, parts)
    for place in (folder, changed):
        forgetting.forget(place, [USER])
    same, other = (vf.Run.load(place, added=False) for place in (folder, changed))
    for mine_too, theirs in ((same, other), (same.judged, other.judged), (same.ranker, other.ranker)):
        assert (mine_too.models[0].items == theirs.models[0].items).all()


@pytest.mark.parametrize("step", ["_forget_added", "_rewrite_models", "_reset_public", "append_record"])
def test_a_kill_at_any_step_is_finished_later(
    folder: Path, step: str, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(forgetting, step, die)
        with pytest.raises(KeyboardInterrupt):
            forgetting.forget(folder, [USER])
    assert USER not in (folder / FORGET_JOURNAL).read_text()
    code, _, err = command("forget", folder, "--quiet")
    assert code == 0, err
    assert traces(folder) == []
    assert not (folder / FORGET_JOURNAL).exists()
    vf.Run.load(folder)


def test_later_trainings_leave_a_forgotten_user_out(
    folder: Path, small_parties: list[vf.PartyData], tmp_path: Path
) -> None:
    """The list goes on from run to run, and survives `overwrite`."""
    forgetting.forget(folder, [USER])
    config = vf.Config.preset("best", epochs=2, gate=False, lists=False)
    trained = vf.train(small_parties, config, after=folder, out=tmp_path / "next")
    ids = {"next": trained.parties[0].ratings.user_ids}
    run = vf.train(small_parties, config, after=tmp_path / "next", out=tmp_path / "third")
    ids["third"] = run.parties[0].ratings.user_ids
    run = vf.train(small_parties, config, out=tmp_path / "third", overwrite=True)
    ids["overwritten"] = run.parties[0].ratings.user_ids
    assert [name for name, users in ids.items() if USER in users] == []
    assert {len(users) for users in ids.values()} == {small_parties[0].ratings.n_users - 1}
    assert run.parties[0].ratings.notes[-1] == "1 forgotten user: left out"
    assert traces(tmp_path / "next") == traces(tmp_path / "third") == []


@pytest.mark.parametrize("federated", [True, False])
def test_a_forgotten_user_stays_out_of_runs_of_the_other_kind(
    small_parties: list[vf.PartyData], tmp_path: Path, federated: bool
) -> None:
    """A company that trained alone joins a federation, which compares ids in small letters, or leaves one."""
    folder = tmp_path / "run"
    folder.mkdir()
    if federated:
        (folder / MARK).write_text("agreement alignment")
    ids = small_parties[0].ratings.user_ids.astype("U20")
    ids[ROW] = "Alice@Example.org"
    note_forgotten(folder, ids[ROW : ROW + 1])
    data = [vf.PartyData(each.name, replace(each.ratings, user_ids=ids)) for each in small_parties]
    (left, *_), *_ = read_forgotten_users(folder).leave_out(data)
    assert "Alice@Example.org" not in left.ratings.user_ids
    aligned = np.array(["bob", "alice@example.org"])
    assert gather_forgotten(tmp_path / "key.pem", folder).find(aligned).tolist() == [False, True]


@pytest.mark.parametrize(
    ("before", "after"),
    [("7", "00007"), ("00007", "7"), ("alice", "Alice@example.org"), ("bob7", "Bob 007"), ("cleo", "CLEO")],
)
def test_ids_that_are_read_otherwise_do_not_bring_a_forgotten_user_back(
    tmp_path: Path, before: str, after: str
) -> None:
    """The run was read with another `ids` than tonight's file."""
    note_forgotten(tmp_path, np.array([before]))
    found = read_forgotten_users(tmp_path).find(np.array([after, "dora@example.org", "8", ""]))
    assert found.tolist() == [True, False, False, False]


@pytest.mark.parametrize(
    ("gone", "stays"), [("007", "7"), ("7", "007"), ("BOB", "bob"), ("ann", "ann@example.org")]
)
def test_who_differs_only_in_spelling_from_a_forgotten_user_is_not_forgotten(
    folder: Path, small_parties: list[vf.PartyData], gone: str, stays: str
) -> None:
    """Attack: register as BOB and be forgotten, and bob was left out of all later trainings."""
    parties, parts = read_party_tables(folder / "parties")
    ids = small_parties[0].ratings.user_ids.astype("U20")
    ids[ROW : ROW + 2] = gone, stays
    named = [vf.PartyData(each.name, replace(each.ratings, user_ids=ids)) for each in parties]
    write_party_tables(folder / "parties", named, parts)
    forgetting.forget(folder, [gone])
    data = [vf.PartyData(each.name, replace(each.ratings, user_ids=ids)) for each in small_parties]
    (left, *_), *_ = read_forgotten_users(folder).leave_out(data)
    assert {*ids.tolist()} - {*left.ratings.user_ids.tolist()} == {gone}


def test_a_link_that_is_switched_meanwhile_changes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A night promoted its run during `forget current`, whose tables then replaced those of the new run."""
    other, link = folder.with_name("other"), folder.with_name("current")
    shutil.copytree(folder, other)
    link.symlink_to("run")
    cut = forgetting._forget_added

    def switch(*given: Any) -> None:
        link.unlink()
        link.symlink_to("other")
        cut(*given)

    monkeypatch.setattr(forgetting, "_forget_added", switch)
    forgetting.forget(link, [USER])
    assert traces(folder) == []
    assert not (folder / FORGET_JOURNAL).exists()
    assert not (other / "forget.json").exists()
    assert traces(other), "the other run is as it was"


def test_a_run_that_is_promoted_at_this_moment_does_not_keep_the_user_unnoticed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user was forgotten in the run that was served before, and stayed in the one that is served now."""
    other, link = folder.with_name("other"), folder.with_name("current")
    shutil.copytree(folder, other)
    link.symlink_to("run")

    def promote(place: Path) -> Any:
        link.unlink()
        link.symlink_to("other")
        return lock_folder(place)

    monkeypatch.setattr(forgetting, "lock_folder", promote)
    with pytest.raises(RunError, match="current leads to other by now; repeat the command"):
        forgetting.forget(link, [USER])
    assert not (folder / "forget.json").exists()


def test_a_kill_while_a_run_is_overwritten_does_not_bring_a_forgotten_user_back(
    folder: Path, small_parties: list[vf.PartyData], monkeypatch: pytest.MonkeyPatch
) -> None:
    note_forgotten(folder, np.array([USER]))
    config = vf.Config.preset("paper", epochs=1)

    def die(folder: Path) -> NoReturn:
        empty_run(folder)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("verfedgnn.training.train.empty_run", die)
        with pytest.raises(KeyboardInterrupt):
            vf.train(small_parties, config, out=folder, overwrite=True)
    run = vf.train(small_parties, config, out=folder)
    assert USER not in run.parties[0].ratings.user_ids


def test_a_user_who_is_forgotten_while_a_training_reads_its_data_stays_forgotten(
    folder: Path, small_parties: list[vf.PartyData], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list was read before the lock, and written over the longer one."""

    def prepare(*given: Any, **options: Any) -> Any:
        note_forgotten(folder, np.array([USER]))
        return prepare_data(*given, **options)

    monkeypatch.setattr("verfedgnn.training.train.prepare", prepare)
    with pytest.raises(RunError, match="users were forgotten in"):
        vf.train(small_parties, vf.Config.preset("paper", epochs=1), out=folder, overwrite=True)
    assert read_forgotten_users(folder).find(np.array([USER])).all()
    assert vf.Run.load(folder)


def test_the_secret_of_a_split_test_stays(folder: Path, small_parties: list[vf.PartyData]) -> None:
    """Otherwise customers would change their buckets in every night."""
    (folder / SPLIT_SECRET).write_text("secret")
    vf.train(small_parties, vf.Config.preset("paper", epochs=1), out=folder, overwrite=True)
    assert (folder / SPLIT_SECRET).read_text() == "secret"


def test_a_run_in_memory_does_not_bring_a_forgotten_user_back(folder: Path, tmp_path: Path) -> None:
    run = vf.Run.load(folder)
    note_forgotten(folder, np.array([USER]))
    for place in (folder, tmp_path / "copy"):
        with pytest.raises(RunError, match="1 user of this run forgotten in"):
            run.save(place, overwrite=True)
    assert vf.Run.load(folder)
    assert traces(tmp_path / "copy") == []


@pytest.mark.parametrize("loaded", [True, False])
def test_a_run_that_is_saved_elsewhere_brings_no_forgotten_user_back(
    folder: Path, small_parties: list[vf.PartyData], tmp_path: Path, loaded: bool
) -> None:
    """The copy had no list, and so the training after it left nobody out."""
    forgetting.forget(folder, [USER])
    config = vf.Config.preset("paper", epochs=1)
    run = vf.Run.load(folder) if loaded else vf.train(small_parties, config, after=folder)
    run.save(tmp_path / "copy")
    assert USER not in vf.train(small_parties, config, after=tmp_path / "copy").parties[0].ratings.user_ids


def test_unknown_users_are_refused(folder: Path, command: Command, tmp_path: Path) -> None:
    ids = tmp_path / "ids.txt"
    ids.write_text(f"{USER}\nnobody\n")
    code, _, err = command("forget", folder, "--user-file", ids)
    assert (code, "1 user not in" in err) == (2, True)
    assert traces(folder), "nothing was changed"
    assert "nothing to forget" in command("forget", folder)[2]


def test_a_run_whose_users_are_all_to_be_forgotten_is_left_alone(folder: Path) -> None:
    """Nobody would be left to be the average, and the run would stay half repaired for ever."""
    users = vf.Run.load(folder).parties[0].ratings.user_ids.tolist()
    with pytest.raises(RunError, match="delete the folder"):
        forgetting.forget(folder, users)
    assert not (folder / FORGET_JOURNAL).exists()


def test_a_night_says_that_it_leaves_forgotten_users_out(tmp_path: Path, command: Command) -> None:
    write_tables(synthetic_tables(3, 0.3, users=40, items=20, ratings=400), tmp_path)
    data = [word for name in ("film", "book", "album") for word in ("--data", tmp_path / f"{name}.parquet")]
    run = tmp_path / "run"
    short = [word for pair in ("epochs=2", "gate=false", "lists=false") for word in ("--set", pair)]
    assert command("train", *data, *short, "--out", run)[0] == 0
    users = vf.Run.load(run).parties[0].ratings
    known = users.user_ids[users.user[0]]
    assert command("forget", run, "--user", known)[0] == 0
    code, _, err = command("train", *data, *short, "--after", run, "--out", tmp_path / "next", "--quiet")
    assert code == 0, err
    assert "left out 1 forgotten user; remove them from your own data, too" in " ".join(err.split())
    assert known not in err
    assert known not in vf.Run.load(tmp_path / "next").parties[0].ratings.user_ids


def test_a_new_spelling_of_ids_does_not_bring_a_forgotten_user_back(tmp_path: Path, command: Command) -> None:
    for name in ("film", "book"):
        rows = [f"{user:05},{name}{item},{1 + (user + item) % 5}" for user in range(40) for item in range(9)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["user,item,rating", *rows]))
    data = [word for name in ("film", "book") for word in ("--data", tmp_path / f"{name}.csv")]
    short = [word for pair in ("epochs=2", "gate=false", "lists=false") for word in ("--set", pair)]
    run, after = tmp_path / "run", tmp_path / "next"
    assert command("train", *data, *short, "--out", run)[0] == 0
    assert command("forget", run, "--user", "00007")[0] == 0
    code, _, err = command("train", *data, *short, "--read", "ids=number", "--after", run, "--out", after)
    assert code == 0, err
    assert "left out 1 forgotten user; remove them from your own data, too" in " ".join(err.split())
    ids = set(vf.Run.load(after).parties[0].ratings.user_ids.tolist())
    assert ids == {str(user) for user in range(40)} - {"7"}


def test_mail_addresses_without_their_domains_bring_no_forgotten_user_back(tmp_path: Path) -> None:
    """In Python, too; and of the namesakes of a forgotten user, nobody goes."""
    users = [f"ann{number}@example.org" for number in range(40)]
    for name in ("film", "book"):
        rows = [f"{user},{name}{i},{1 + (n + i) % 5}" for n, user in enumerate(users) for i in range(9)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["user,item,rating", *rows]))
    data = {name: tmp_path / f"{name}.csv" for name in ("film", "book")}
    config = vf.Config.preset("paper", epochs=1)
    run = tmp_path / "run"
    vf.train(vf.read_parties(data), config, out=run)
    note_forgotten(run, np.array([users[7], users[8], "ann9@elsewhere.org"]))
    book = data["book"]
    book.write_text(book.read_text().replace(users[8], "ann8@home.org"))
    trained = vf.train(vf.read_parties(data, ids="mail"), config, after=run, out=tmp_path / "next")
    ids = trained.parties[0].ratings.user_ids
    assert {f"ann{number}" for number in range(40)} - {*ids.tolist()} == {"ann7"}
    (eight,) = np.flatnonzero(ids == "ann8")
    counts = [int((party.ratings.user == eight).sum()) for party in trained.parties]
    assert counts == [0, 9], "the address that was forgotten is that of the film service"
    vf.train(vf.read_parties(data, ids="mail"), config, after=run).save(tmp_path / "saved")
    with pytest.raises(RunError, match="2 users of this run forgotten in"):
        vf.train(vf.read_parties(data, ids="mail"), config).save(run, overwrite=True)
    assert b"example" not in b"".join(each.read_bytes() for each in (tmp_path / "next/parties").iterdir())


def test_a_user_of_a_model_with_weights_between_items_only_is_forgotten(folder: Path) -> None:
    """The gate may choose EASE alone, and then every vector is 0."""
    for file in (each for each in folder.rglob("party-0.safetensors") if "lists" in each.parts):
        model = read_model(file)
        count = len(model.users)
        pointers, history = torch.arange(count + 1), torch.zeros(count, dtype=torch.int32)
        scores = ItemScores(torch.eye(2), torch.tensor([0, 2]), pointers, history, len(model.items))
        write_model(file, replace(model, vectors=torch.zeros_like(model.users), item_scores=scores))
    rated = {"u0001": (5.0, None)}
    NewItems(folder, vf.Run.load(folder, added=False), "party-0").add({"n": AddedItem("n", ratings=rated)})
    forgetting.forget(folder, [USER])
    assert traces(folder) == []


def journal_of(folder: Path) -> None:
    """Leave a request unfinished, as a kill would."""
    write_json(folder / FORGET_JOURNAL, {"users": [1], "items": {}, "ratings": {}, "who": ["x"]})


def test_a_forget_that_was_killed_counts_in_the_next_training(
    folder: Path, small_parties: list[vf.PartyData], monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(forgetting, "_remove_copies", die)
        with pytest.raises(KeyboardInterrupt):
            forgetting.forget(folder, [USER])
    run = vf.train(small_parties, vf.Config.preset("paper", epochs=1), after=folder)
    assert USER not in run.parties[0].ratings.user_ids


@pytest.mark.parametrize("name", ["report", ".lock", "added", "final", "lists/last-release"])
@pytest.mark.parametrize("words", [(), ("--user", USER)])
def test_nothing_is_touched_in_a_run_with_a_link_to_another_place(
    folder: Path, command: Command, tmp_path: Path, name: str, words: tuple[str, ...]
) -> None:
    """Attack: a run from somebody else whose folders are links to the files of the person who runs the command."""
    thesis = tmp_path / "home" / "Documents" / "thesis.txt"
    thesis.parent.mkdir(parents=True)
    thesis.write_text("precious")
    outside = tmp_path / "created"
    link = folder / name
    shutil.rmtree(link, ignore_errors=True)
    link.unlink(missing_ok=True)
    link.symlink_to(outside if name == ".lock" else tmp_path / "home")
    journal_of(folder)
    code, _, err = command("forget", folder, *words)
    assert (code, "a link to a place outside the run" in err) == (2, True), err
    assert thesis.read_text() == "precious"
    assert not outside.exists()
    assert (folder / FORGET_JOURNAL).exists(), "nothing was begun"
    with pytest.raises(RunError, match="a link to a place outside the run"):
        vf.Run.load(tmp_path / "run")


def test_a_link_in_a_circle_does_not_wait_for_its_own_lock(folder: Path, command: Command) -> None:
    shutil.rmtree(folder / "added")
    (folder / "added").symlink_to(".")
    code, _, err = command("forget", folder, "--user", USER)
    assert (code, "a folder around the link" in " ".join(err.split())) == (2, True), err


@pytest.mark.parametrize("file", ["ledger.json", "model/_public.safetensors"])
def test_a_pipe_in_a_run_is_named(folder: Path, command: Command, file: str) -> None:
    """Reading it never ended, also at a server that follows a link."""
    (folder / file).unlink()
    os.mkfifo(folder / file)
    for words in (("evaluate", folder), ("forget", folder, "--user", USER)):
        code, _, err = command(*words)
        assert (code, "is a pipe" in " ".join(err.split())) == (2, True), err


@pytest.mark.parametrize("text", ["[]", "3", '{"test": [1]}', '{"parties": 1}'])
def test_figures_that_cannot_be_read_are_named(folder: Path, command: Command, text: str) -> None:
    (folder / "metrics.json").write_text(text)
    code, _, err = command("runs", folder.parent)
    assert (code, f"the run {folder} cannot be read" in " ".join(err.split())) == (2, True), err
    if not text.startswith("{"):
        with pytest.raises(RunError, match="cannot be read"):
            vf.Run.load(folder)


@pytest.mark.parametrize("text", ["{", "3", '["x"]'])
def test_a_record_that_cannot_be_read_is_named(folder: Path, command: Command, text: str) -> None:
    (folder / "forget.json").write_text(text)
    code, _, err = command("forget", folder, "--user", USER)
    assert (code, "forget.json cannot be read" in " ".join(err.split())) == (2, True), err
    (folder / "forget.json").unlink()
    assert command("forget", folder)[0] == 0
    assert traces(folder) == []


def test_links_are_found_by_whatever_opens_a_folder_for_changes(
    folder: Path, small_parties: list[vf.PartyData], tmp_path: Path
) -> None:
    """Also by a training that overwrites or resumes a run, and by a server that loaded the run before the link was there."""
    run = vf.Run.load(folder, added=False)
    new = NewItems(folder, run, run.parties[0].name)
    (tmp_path / "home").mkdir()
    shutil.rmtree(folder / "added")
    (folder / "added").symlink_to(tmp_path / "home")
    config = vf.Config.preset("paper", epochs=1)
    with pytest.raises(RunError, match="a link to a place outside"):
        new.add({"new": AddedItem("new", ratings={USER: (5.0, None)})})
    with pytest.raises(RunError, match="a link to a place outside"):
        vf.train(small_parties, config, out=folder, overwrite=True)
    with pytest.raises(RunError, match="a link to a place outside"):
        run.save(folder, overwrite=True)
    (folder / "metrics.json").unlink()
    with pytest.raises(RunError, match="a link to a place outside"):
        vf.resume(folder, verbose=False)
    assert not list((tmp_path / "home").iterdir())
    assert (folder / "parties").is_dir()


@pytest.mark.parametrize("file", ["config.toml", "forgotten.json"])
def test_no_file_of_a_run_is_opened_through_a_link(
    folder: Path, small_parties: list[vf.PartyData], tmp_path: Path, file: str
) -> None:
    """Attack: a run of somebody else leads to a file of the person who trains after, over or with it."""
    (tmp_path / "mine").write_text("private")
    (folder / file).unlink(missing_ok=True)
    (folder / file).symlink_to(tmp_path / "mine")
    (folder / "metrics.json").unlink()
    config, link = vf.Config.preset("paper", epochs=1), "a link to a place outside"
    with pytest.raises(RunError, match=link):
        vf.resume(folder, verbose=False)
    with pytest.raises(RunError, match=link):
        vf.train(small_parties, config, out=folder, overwrite=True)
    with pytest.raises(RunError, match=link):
        vf.train(small_parties, config, after=folder)


def test_a_folder_in_use_is_left_alone(
    folder: Path, small_parties: list[vf.PartyData], command: Command
) -> None:
    journal_of(folder)
    (folder / "report" / "1").mkdir(parents=True)
    with lock_folder(folder):
        for words in ((), ("--user", USER)):
            assert "in use by another process" in command("forget", folder, *words)[2]
        with pytest.raises(RunError, match="in use"):
            vf.train(small_parties, vf.Config.preset("paper", epochs=1), out=folder, overwrite=True)
    assert (folder / "report" / "1").is_dir()


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"users": [1]}',
        '{"party": "x"}',
        '{"other": 1}',
        '{"users": [9999], "items": {}, "ratings": {}, "who": []}',
        '{"users": ["x"], "items": {}, "ratings": {}, "who": []}',
        '{"users": [1], "items": [], "ratings": {}, "who": []}',
        '{"users": [1], "items": {"party-0": [9999]}, "ratings": {}, "who": []}',
        '{"users": [1], "items": {}, "ratings": {}, "who": []}',
        '{"users": [-1], "items": {}, "ratings": {}, "who": ["x"]}',
        '{"users": [0.5], "items": {}, "ratings": {}, "who": ["x"]}',
        '{"users": [1], "items": {}, "ratings": {"a": NaN}, "who": ["x"]}',
        '{"users": [], "items": {}, "ratings": {}, "who": ["x"]}',
        '{"users": [' + "9" * 30 + '], "items": {}, "ratings": {}, "who": ["x"]}',
    ],
)
def test_a_journal_that_cannot_be_read_is_named(folder: Path, command: Command, text: str) -> None:
    (folder / FORGET_JOURNAL).write_text(text)
    code, _, err = command("forget", folder)
    assert (code, "cannot be read" in err) == (2, True), err


def test_no_spelling_finds_the_row_of_a_forgotten_user(folder: Path) -> None:
    """A space is spelled as the empty id that is left of the user."""
    forgetting.forget(folder, [USER])
    run = vf.Run.load(folder)
    run.parties = [vf.PartyData(each.name, replace(each.ratings, ids="lower")) for each in run.parties]
    with pytest.raises(RunError, match="1 user not in training"):
        run.find_users(np.array([" "]))


def test_a_user_is_forgotten_by_an_id_as_the_data_has_it(folder: Path) -> None:
    """The run has the id without the domain, and a party knows the mail address."""
    parties, parts = read_party_tables(folder / "parties")
    parties = [vf.PartyData(each.name, replace(each.ratings, ids="mail")) for each in parties]
    write_party_tables(folder / "parties", parties, parts)
    record = forgetting.forget(folder, [USER, f"{USER.upper()}@a.org"])
    assert record is not None
    assert len(record["users"]) == 1
    assert traces(folder) == []
    assert read_forgotten_users(folder).find(np.array([USER, f"{USER}@a.org", "u0008"])).tolist() == [
        True,
        True,
        False,
    ]
    with pytest.raises(RunError, match="1 user not in"):
        forgetting.forget(folder, [f"{USER}@a.org"])


@pytest.mark.parametrize("file", ["model/_public", "lists/model/party-0", "final/model/alone/party-0"])
def test_a_damaged_model_is_named_before_anything_is_done(folder: Path, file: str) -> None:
    path = folder / f"{file}.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RunError, match=r"a model of .* cannot be read"):
        forgetting.forget(folder, [USER])
    assert not (folder / FORGET_JOURNAL).exists()


def test_a_journal_of_all_users_is_refused(folder: Path) -> None:
    users = len(vf.Run.load(folder).parties[0].ratings.user_ids)
    journal = {"users": [*range(users)], "items": {}, "ratings": {}, "who": ["x"]}
    (folder / FORGET_JOURNAL).write_text(json.dumps(journal))
    with pytest.raises(RunError, match="no other users"):
        forgetting.forget(folder)


def test_an_unfinished_training_is_not_changed(folder: Path, command: Command) -> None:
    (folder / "metrics.json").unlink()
    for words in ((), ("--user", USER)):
        code, _, err = command("forget", folder, *words)
        assert (code, "is not finished and still holds every user" in " ".join(err.split())) == (2, True), err
    assert traces(folder)


def test_what_a_kill_or_a_report_left_is_removed(folder: Path, command: Command) -> None:
    """Parts of files, and a checkpoint."""
    for name in (
        "parties/.party-0.parquet.part",
        "checkpoint/.checkpoint.safetensors.part",
        "checkpoint/checkpoint.safetensors",
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(USER)
    assert command("report", folder, "--quiet")[0] == 0
    forgetting.forget(folder, [USER])
    assert traces(folder) == []
    assert not (folder / "report").exists()


def test_a_server_that_knows_the_user_still_cannot_bring_them_back(folder: Path) -> None:
    run = vf.Run.load(folder, added=False)
    new = NewItems(folder, run, run.parties[0].name)
    forgetting.forget(folder, [USER])
    report = new.add({"newer": AddedItem("newer", ratings={USER: (5.0, None)})})
    assert report.unknown_users == 1
    assert traces(folder) == []


def test_files_about_users_are_not_written_into_a_run(folder: Path, command: Command) -> None:
    """`forget` would not find the users in them."""
    for words in (
        ("recommend", folder, "--all", "--out", folder / "all.parquet"),
        ("report", folder, "--out", folder / "mine"),
        ("evaluate", folder, "--predictions", folder / "cases.parquet"),
    ):
        code, _, err = command(*words)
        assert (code, "is inside the run folder" in " ".join(err.split())) == (2, True), err

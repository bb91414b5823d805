"""Forgetting at a party of a federation: no file keeps a row of the user, and tomorrow's data do not bring them back."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow.parquet as pq
import pytest
import safetensors.numpy
import torch
from numpy.typing import NDArray

import verfedgnn as vf
from hub import SERVER, Killed, Trial
from verfedgnn.config import load_config
from verfedgnn.core.errors import RunError, RunWarning
from verfedgnn.data.synthetic import synthetic_ratings
from verfedgnn.federation import party_service
from verfedgnn.federation.doctor import examine
from verfedgnn.federation.party_service import align_party, complete_run
from verfedgnn.federation.stores import PartyStore
from verfedgnn.gnn.model import Model
from verfedgnn.protocol.messages import Finished, RoundReply, kind_of
from verfedgnn.runs.forget_record import ForgottenUsers, gather_forgotten, note_forgotten, write_party_run
from verfedgnn.runs.run_folder import LAST_RELEASE
from verfedgnn.upkeep.forget import forget

pytestmark = pytest.mark.usefixtures("short_own_models")

USERS = 60
PARTY = "party-1"
SHORT: dict[str, Any] = {"evaluate_every": 2, "dim": 6, "raters": 4}
SINGLE = vf.Config.preset("best", **SHORT, epochs=1, gate=False, lists=False)


@dataclass(frozen=True)
class Trained:
    """A federation after its training, and the folder of a party as a kill in the training of lists left it."""

    trial: Trial
    folder: Path
    unfinished: Path
    user: str
    row: int


@pytest.fixture(scope="module")
def parties() -> list[vf.PartyData]:
    """Three parties, none of which has as many items as users."""
    return vf.split_items(synthetic_ratings(users=USERS, items=40, ratings=900, seed=3), parties=3, seed=3)


@pytest.fixture(scope="module")
def trained(parties: list[vf.PartyData], tmp_path_factory: pytest.TempPathFactory) -> Trained:
    place = tmp_path_factory.mktemp("forget")
    config = vf.Config.preset("best", **SHORT, epochs=4)
    patch = pytest.MonkeyPatch()
    patch.setattr("verfedgnn.config.tree.FINAL_ROUNDS", {"ratings": 3, "raters": 3, "lists": 2})
    trial = Trial(place, parties, config, alignment="keyed", min_parties=3)
    kinds: list[object] = []

    def die_in_lists(data: bytes) -> bytes:
        kinds.append(kind_of(data))
        if Finished in kinds and kinds[kinds.index(Finished) :].count(RoundReply) == 3:
            raise Killed
        return data

    folder = place / f"run-{PARTY}"
    killed = trial.start(PARTY, die_in_lists, restart=False)
    for name in (SERVER, "party-0", "party-2"):
        trial.start(name)
    killed.join(180)
    unfinished = shutil.copytree(folder, place / "unfinished")
    trial.start(PARTY)
    trial.join()
    patch.undo()
    assert not trial.errors
    table = trial.runs[PARTY].parties[0].ratings
    row = int(np.bincount(table.user).argmax())  # who rated most has something in every release
    return Trained(trial, folder, Path(unfinished), str(table.user_ids[row]), row)


def rows_of(run: Path, row: int) -> dict[str, NDArray[Any]]:
    """Return the user's row of every array with an axis of users, in every file of a run folder."""
    found = {}
    for path in sorted(run.rglob("*.safetensors")):
        stage = next(place for place in path.parents if (place / "config.toml").is_file())
        model = Model(load_config(stage / "config.toml").model, USERS)
        for name, value in safetensors.numpy.load(path.read_bytes()).items():
            label = f"{path.relative_to(run)} {name}"
            if (
                value.ndim == 1 and value.size >= model.size - 4
            ):  # a released gradient may lack the shared weights
                whole = np.zeros(model.size, value.dtype)
                whole[: min(value.size, model.size)] = value[: model.size]
                views = model.views(torch.from_numpy(whole))
                found |= {f"{label} {each}": views[each][row].numpy() for each in model.per_user}
            elif name == "history_pointers":
                found[label] = np.diff(value)[row]
            elif USERS in value.shape:
                found[label] = np.take(value, row, axis=value.shape.index(USERS))
    return found


def texts_of(run: Path) -> str:
    """Return all texts in a run folder, those in tables included."""
    found = []
    for path in (each for each in run.rglob("*") if each.is_file()):
        found.append(path.read_bytes().decode("latin-1"))
        if path.suffix == ".parquet":
            found.append(json.dumps(pq.read_table(path).to_pydict(), default=str))
    return "\n".join(found)


def test_no_file_of_a_party_keeps_a_row_of_a_forgotten_user(trained: Trained, tmp_path: Path) -> None:
    """Attack: find the number of ratings and the items of a forgotten user in what the party sent last."""
    run = Path(shutil.copytree(trained.folder, tmp_path / "run"))
    last = Path("lists", LAST_RELEASE)
    shutil.copytree(trained.unfinished / last, run / last)  # what a kill at the end may leave
    before = rows_of(run, trained.row)
    models = [f"{name}model" for name in ("", "lists/", "final/", "final/lists/")]
    for place in ("checkpoint/models", "lists/checkpoint", "final/checkpoint", *models, last):
        assert any(name.startswith(f"{place}/") for name in before), "the attack finds rows before"
    assert trained.user in texts_of(run)
    forget(run, [trained.user])
    after = rows_of(run, trained.row)
    kept = [name for name in after if before[name].any() and np.array_equal(before[name], after[name])]
    assert kept == []
    assert after["model/_public.safetensors public users"].any(), "the average user"
    assert trained.user not in texts_of(run)
    tables = [pq.read_table(path) for path in (run / "parties").glob("*.parquet")]
    numbers = [table["user"].to_pylist() for table in tables if {"user", "rating"} <= set(table.column_names)]
    assert numbers
    assert trained.row not in numbers[0]
    assert not list(run.rglob(LAST_RELEASE))


def test_last_releases_are_deleted_when_a_training_finishes(trained: Trained) -> None:
    kept = [str(path.relative_to(trained.unfinished)) for path in trained.unfinished.rglob(LAST_RELEASE)]
    assert kept == [f"lists/{LAST_RELEASE}"], (
        "only a training that is not finished may have to repeat a release"
    )
    assert not list(trained.trial.folder.glob(f"run-*/**/{LAST_RELEASE}"))


def test_a_last_release_that_a_kill_left_is_deleted_with_the_results(
    trained: Trained, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(trained.folder, tmp_path / "run"))
    (run / "final" / LAST_RELEASE).mkdir()
    PartyStore(run, trained.trial.identities[PARTY]).remove_results()
    assert not list(run.rglob(LAST_RELEASE))


def test_an_unfinished_training_of_a_party_is_finished_first(trained: Trained) -> None:
    with pytest.raises(RunError, match="not finished and still holds every user"):
        forget(trained.unfinished, [trained.user])


def test_tomorrows_data_do_not_bring_a_forgotten_user_back(
    trained: Trained,
    parties: list[vf.PartyData],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The next training starts from nothing, in another folder. The user is still in the data, spelled in another way."""
    run = trained.folder
    kept = shutil.copytree(run, tmp_path / "kept")
    try:
        forget(run, [trained.user])
        caplog.set_level("INFO", logger="verfedgnn.federation")
        for night in ("tomorrow", "later"):  # the second one has the list without the first run folder
            table = next(party.ratings for party in parties if party.name == PARTY)
            spelled = replace(table, user_ids=np.strings.add(" ", np.strings.upper(table.user_ids)))
            again = [vf.PartyData(PARTY, spelled) if each.name == PARTY else each for each in parties]
            trial = Trial(tmp_path / night, again, SINGLE, alignment="keyed", min_parties=3)
            for name, identity in trial.identities.items():
                identity.key_file = trained.trial.identities[name].key_file
            caplog.clear()
            trial.run()
            assert not trial.errors
            ids = trial.runs[PARTY].parties[0].ratings.user_ids
            assert f" {trained.user.upper()}" not in ids
            assert len(trial.runs[PARTY].parties[0].ratings.known_users) == USERS - 1
            assert trained.user in trial.runs["party-0"].parties[0].ratings.user_ids, "it forgot nobody"
            said = "left out 1 forgotten user; remove them from your own data, too"
            assert caplog.text.count(said) == 1
            assert trained.user not in caplog.text
            shutil.rmtree(run, ignore_errors=True)
        identity = trained.trial.identities[PARTY]
        findings = examine(identity, tmp_path / "none", lambda: spelled)
        texts = [finding.text for finding in findings if finding.outcome == "warning"]
        assert "`party` leaves out 1 forgotten user; remove them from your own data, too" in texts
        listed = next(finding.text for finding in findings if "ratings by" in finding.text)
        assert f"{USERS - 1} users" in listed
    finally:
        shutil.rmtree(run, ignore_errors=True)
        shutil.move(kept, run)


def test_an_agreed_spelling_does_not_bring_a_forgotten_user_back(
    parties: list[vf.PartyData], tmp_path: Path
) -> None:
    """The run holds ids as they are spelled, the data as they are written, and the list of forgotten users either."""
    written = np.array([f"{user:05}" for user in range(USERS)])
    zeros = [vf.PartyData(each.name, replace(each.ratings, user_ids=written)) for each in parties]
    first = Trial(tmp_path / "first", zeros, SINGLE, alignment="keyed", min_parties=3, ids="number")
    first.run()
    assert not first.errors
    forget(tmp_path / "first" / f"run-{PARTY}", ["42"])
    note_forgotten(tmp_path / "first" / f"run-{PARTY}", written[7:8])
    again = Trial(tmp_path / "again", zeros, SINGLE, alignment="keyed", min_parties=3, ids="number")
    for name, identity in again.identities.items():
        identity.key_file = first.identities[name].key_file
    again.run()
    assert not again.errors
    ids = again.runs[PARTY].parties[0].ratings.user_ids
    assert {str(user) for user in range(USERS)} - {*ids.tolist()} == {"7", "42"}
    findings = examine(again.identities[PARTY], tmp_path / "none", lambda: zeros[1].ratings)
    texts = [finding.text for finding in findings]
    assert "`party` leaves out 2 forgotten users; remove them from your own data, too" in texts


def test_mail_addresses_without_their_domains_bring_no_forgotten_user_back(tmp_path: Path) -> None:
    """The party itself left the domains out as it read, and then compared names with the address that was forgotten."""
    users = ["ann@example.org", "bob@example.org", "cleo@example.org"]
    (tmp_path / "film.csv").write_text("user,item,rating\n" + "".join(f"{user},1,4\n" for user in users))
    note_forgotten(tmp_path, np.array([users[0], "bob@elsewhere.org"]))
    forgotten = gather_forgotten(tmp_path / "key.pem", tmp_path)
    table = vf.read_ratings(tmp_path / "film.csv", ids="mail")
    (party,), _, gone = forgotten.leave_out([vf.PartyData("film", table)])
    assert (party.ratings.user_ids.tolist(), gone) == (["bob", "cleo"], 1)


def test_an_agreed_spelling_and_a_namesake_do_not_bring_a_forgotten_user_back(
    parties: list[vf.PartyData], tmp_path: Path
) -> None:
    """Who has a namesake is listed by the exact id in the run, which the data do not have until they are spelled as agreed."""
    names = np.array([f"user-{user}" for user in range(USERS)], "U20")
    names[7:9] = "bob7", "bob07"
    table = replace(parties[1].ratings, user_ids=np.strings.add(names, "@example.org"))
    trial = Trial(tmp_path, parties, SINGLE, alignment="none", min_parties=3, ids="mail")
    identity, run = trial.identities[PARTY], tmp_path / "yesterday"
    run.mkdir()
    write_party_run(run, gather_forgotten(identity.key_file, run), identity.key_file)
    note_forgotten(run, names[7:8], np.delete(names, 7))
    store = PartyStore(tmp_path / "run", identity)
    align_party(store, Mock(), table)
    aligned = store.load()[0].party.ratings.user_ids
    assert {*names.tolist()} - {*aligned.tolist()} == {"bob7"}
    texts = [finding.text for finding in examine(identity, tmp_path / "none", lambda: table)]
    assert "`party` leaves out 1 forgotten user; remove them from your own data, too" in texts


@pytest.mark.parametrize(
    ("before", "after"), [("film/run", "old/run"), ("film", "films"), ("film/run", None)]
)
def test_a_run_that_is_moved_or_deleted_brings_no_forgotten_user_back(
    parties: list[vf.PartyData], tmp_path: Path, before: str, after: str | None
) -> None:
    """The list beside the key learnt who was forgotten in the next training only, from the place where the run had been."""
    run, user = tmp_path / "film/run", parties[0].ratings.user_ids[:1]
    run.mkdir(parents=True)
    (tmp_path / "old").mkdir()
    write_party_run(run, gather_forgotten(tmp_path / "film/key.pem", run), tmp_path / "film/key.pem")
    if after is not None:
        (tmp_path / before).rename(tmp_path / after)
        run = tmp_path / after if before == "film/run" else tmp_path / after / "run"
    note_forgotten(run, user)
    shutil.rmtree(run)
    key = next(tmp_path.glob("film*/")) / "key.pem"
    assert gather_forgotten(key, tmp_path / "tomorrow").find(user).all()


def test_a_party_with_a_new_key_takes_its_list_along(tmp_path: Path) -> None:
    """As in Deploying: without the list, whoever was forgotten under the key before came back."""
    old, new, run = (tmp_path / name for name in ("film", "film-2", "film/run"))
    run.mkdir(parents=True)
    new.mkdir()
    write_party_run(run, gather_forgotten(old / "key.pem", run), old / "key.pem")
    note_forgotten(run, np.array(["ann"]))
    shutil.copy(old / "key.forgotten.json", new)
    note_forgotten(run, np.array(["bob"]))
    found = gather_forgotten(new / "key.pem", new / "run").find(np.array(["ann", "bob", "cleo"]))
    assert found.tolist() == [True, True, False]


def test_users_are_not_aligned_after_a_run_that_does_not_exist(trained: Trained, tmp_path: Path) -> None:
    """With --align-only, a mistake in --after brought back whom that run had forgotten."""
    store = PartyStore(tmp_path / "run", trained.trial.identities[PARTY])
    ratings = trained.trial.runs[PARTY].parties[0].ratings
    with pytest.raises(RunError, match="does not exist"):
        align_party(store, Mock(spec=[]), ratings, after=tmp_path / "none")


def test_a_kill_after_the_alignment_leaves_no_run_without_a_list(
    parties: list[vf.PartyData], tmp_path: Path
) -> None:
    """Whoever was forgotten in such a run came back once it was deleted."""
    identity = Trial(tmp_path, parties, SINGLE, alignment="none", min_parties=3).identities[PARTY]
    store = PartyStore(tmp_path / "run", identity)
    save = store.save_alignment

    def save_and_die(*given: Any) -> None:
        save(*given)
        raise Killed

    store.save_alignment = save_and_die  # type: ignore[method-assign]
    with pytest.raises(Killed):
        align_party(store, Mock(), parties[1].ratings)
    user = np.array(["ann"])
    note_forgotten(store.folder, user)
    shutil.rmtree(store.folder)
    assert gather_forgotten(identity.key_file).find(user).all()


def test_a_party_whose_list_cannot_be_written_is_told(tmp_path: Path) -> None:
    """Without the list, whoever was forgotten in a run came back in the next one, unless that named the run before."""
    place = tmp_path / "no folder"
    place.touch()
    with pytest.warns(RunWarning, match=r"film.forgotten.json cannot be written .* --after"):
        gather_forgotten(place / "film.pem", tmp_path)


def test_a_list_that_cannot_be_read_stops_nobody_from_being_forgotten(tmp_path: Path) -> None:
    """A copy of the run, at a user who may not enter the folder of the key, kept its users."""
    write_party_run(tmp_path, gather_forgotten(tmp_path / "film.pem", tmp_path), tmp_path / "film.pem")
    (tmp_path / "film.forgotten.json").write_text("damaged")
    with pytest.warns(RunWarning, match=r"film.forgotten.json cannot be read or written: keep") as told:
        note_forgotten(tmp_path, np.array(["ann"]))
    assert len(told) == 1
    assert ForgottenUsers.read(tmp_path / "forgotten.json").find(np.array(["ann"])).all()


def test_who_forgets_where_the_list_of_the_party_is_not_is_told(tmp_path: Path) -> None:
    """After the key had moved, or on another machine, a user was forgotten and came back once the run was deleted, without a word."""
    before, now, run, user = tmp_path / "before", tmp_path / "now", tmp_path / "run", np.array(["ann"])
    for each in (before, run):
        each.mkdir()
    write_party_run(run, gather_forgotten(before / "film.pem", run), before / "film.pem")
    before.rename(now)
    with pytest.warns(RunWarning, match=r"film.forgotten.json cannot be read or written: keep .* --after"):
        note_forgotten(run, user)
    assert gather_forgotten(now / "film.pem", run).find(user).all()
    shutil.rmtree(run)
    assert gather_forgotten(now / "film.pem").find(user).all()


def test_a_run_of_somebody_else_adds_nobody_to_the_list_of_a_party(tmp_path: Path) -> None:
    """It may name any file; only a run of the party has the key of the party's list."""
    run, key_file = tmp_path / "run", tmp_path / "key.pem"
    run.mkdir()
    gather_forgotten(key_file)
    write_party_run(run, ForgottenUsers({"aa": []}), key_file)
    before = (tmp_path / "key.forgotten.json").read_bytes()
    with pytest.warns(RunWarning, match="key.forgotten.json cannot be read or written"):
        note_forgotten(run, np.array(["ann"]))
    assert (tmp_path / "key.forgotten.json").read_bytes() == before


def test_a_user_who_is_forgotten_during_a_training_is_named_at_its_end(
    parties: list[vf.PartyData],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    trial = Trial(tmp_path, parties, SINGLE, alignment="none", min_parties=3)
    key_file = trial.identities[PARTY].key_file
    other = tmp_path / "yesterday"

    def forget_meanwhile(store: PartyStore, device: str) -> vf.Run:
        if store.identity.name == PARTY:
            other.mkdir()
            note_forgotten(other, parties[0].ratings.user_ids[:1])
            gather_forgotten(key_file, other)
        return complete_run(store, device)

    monkeypatch.setattr(party_service, "complete_run", forget_meanwhile)
    trial.run()
    assert not trial.errors
    said = "this run has 1 user forgotten since the alignment; forget them in"
    assert caplog.text.count(said) == 1


def test_a_list_that_cannot_be_read_is_named(trained: Trained, tmp_path: Path) -> None:
    run = Path(shutil.copytree(trained.folder, tmp_path / "run"))
    mixed = '{"hashes": {"aa": [1, "x"]}}'
    for text in ("{", "[]", '{"hashes": {"zz": []}}', '{"hashes": 1}', '{"other": 1}', mixed):
        (run / "forgotten.json").write_text(text)
        with pytest.raises(RunError, match="nobody knows who was forgotten"):
            forget(run, [trained.user])

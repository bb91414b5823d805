"""Alignment, then training: parties with partly different users train the same as on one machine."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from test_federation import assert_same, killed_at, trial
from test_federation import settings as training_settings
from test_party_alignment import need

import verfedgnn as vf
from hub import SERVER, Killed, Trial
from verfedgnn.serving.catalogue import Catalogue
from verfedgnn.serving.run_answers import write_table
from verfedgnn.upkeep.forget import forget

pytestmark = pytest.mark.usefixtures("short_own_models")


def spelled(parties: list[vf.PartyData], share: float = 0.6) -> list[vf.PartyData]:
    """Give each party its own share of the users, in its own order and spelling."""
    out = []
    for number, party in enumerate(parties):
        table = party.ratings
        rated = np.unique(table.user)
        rng = np.random.default_rng(number)
        rows = np.sort(rng.permutation(rated)[: round(share * len(rated))])[:: 1 if number % 2 else -1]
        chosen = table.select_users(np.ascontiguousarray(rows))
        write = (str.upper, str.lower, str.title)[number % 3]
        users = np.array([f" {write(str(user))}" for user in chosen.user_ids])
        out.append(vf.PartyData(party.name, replace(chosen, user_ids=users)))
    return out


def on_one_machine(federated: Trial, **options: Any) -> vf.Run:
    """Train on one machine with the rows and the split that the federation had."""
    parties = [federated.runs[name].parties[0] for name in federated.parties]
    tables = [party.ratings for party in parties]
    names = [np.strings.lower(np.strings.strip(table.user_ids)) for table in tables]
    shared = np.sort(np.stack(names), axis=0)[-1]
    for own in names:
        assert ((own == shared) | (own == "")).all()
    pooled = [vf.PartyData(p.name, replace(p.ratings, user_ids=shared)) for p in parties]
    parts = [federated.runs[name].judged.parts[0] for name in federated.parties]
    return vf.train(pooled, federated.agreement.config, parts=parts, **options)


@pytest.mark.parametrize("method", ["keyed", "ecdh"])
@pytest.mark.parametrize(("rule", "share"), [("any", 0.3), (2, 0.6), ("all", 0.9)])
def test_align_then_train(
    tmp_path: Path, small_parties: list[vf.PartyData], method: str, rule: Any, share: float
) -> None:
    """With every rule, public parameters and models equal those of one machine, bit for bit."""
    need(method)
    federated = trial(
        tmp_path, spelled(small_parties, share), training_settings(users=rule, epochs=4), alignment=method
    )
    federated.run()
    run = on_one_machine(federated)
    assert_same(federated, run)
    assert run.metrics["users"] == federated.runs["party-0"].metrics["users"] == len(run.models[0].users)


REPEATABLE = {"unprotected": ["noise"], "epochs": 6, "evaluate_every": 3, "dim": 6}


@pytest.mark.parametrize(
    ("preset", "values"),
    [
        ("best", {"gate": False, "raters": 3}),
        ("private", {}),
        ("best", {"biases": False, "raters": 0, "lists": False, "final": False}),
    ],
)
def test_every_preset_trains_the_same_with_partial_overlap(
    tmp_path: Path, small_parties: list[vf.PartyData], preset: str, values: dict[str, Any]
) -> None:
    config = vf.Config.preset(preset, **REPEATABLE, **values)
    federated = trial(tmp_path, spelled(small_parties, 0.3), config, alignment="keyed")
    federated.run()
    assert_same(federated, on_one_machine(federated))


def test_a_party_killed_in_training_changes_nothing(
    tmp_path: Path, small_parties: list[vf.PartyData]
) -> None:
    federated = trial(tmp_path, spelled(small_parties, 0.3), alignment="keyed")
    federated.run({"party-1": killed_at(9), SERVER: killed_at(30)})
    assert_same(federated, on_one_machine(federated))


def test_a_party_serves_and_exports_its_own_users_only(
    tmp_path: Path, small_parties: list[vf.PartyData]
) -> None:
    federated = trial(tmp_path, spelled(small_parties, 0.3), alignment="keyed")
    federated.run()
    run = federated.runs["party-1"]
    table = run.parties[0].ratings
    own = table.known_users
    assert 0 < len(own) < table.n_users == run.metrics["users"]
    assert set(np.unique(table.user)) == set(own)
    users, _ = run.embeddings()["party-1"].arrays()
    assert len(users) == len(own)
    known = str(table.user_ids[own[0]])
    assert run.recommend(known, 2)
    with pytest.raises(vf.RunError, match="1 user not in training, first ''"):
        run.recommend("")
    with pytest.raises(vf.RunError, match=f"look like '{known}'"):
        run.predict(["", known], [str(table.item_ids[0])] * 2)
    catalogue = Catalogue(run, "run")
    assert catalogue.users.find("") is None
    assert len(catalogue.users.find_prefix("", 1000)) == len(own)
    write_table(catalogue, tmp_path / "all.parquet", 1)
    listed = pq.read_table(tmp_path / "all.parquet")["user"].to_pylist()
    assert sorted(listed) == sorted(table.user_ids[own].tolist())


def test_members_need_not_agree_on_the_run_before(
    tmp_path: Path, small_parties: list[vf.PartyData], caplog: pytest.LogCaptureFixture
) -> None:
    """After a `forget`, one party names an older night, is killed and corrects itself; another names none. All of them train.

    Nothing of the earlier runs is trained on, so the result is that of one machine, and the forgotten user stays out.
    """
    config = vf.Config.preset("best", **REPEATABLE, gate=False, lists=False, raters=3)
    nights = [trial(tmp_path / name, spelled(small_parties, 0.3), config, alignment="keyed") for name in "ab"]
    for night in nights:
        night.run()
        assert not night.errors
    table = nights[1].runs["party-1"].parties[0].ratings
    user = str(table.user_ids[table.known_users[0]])
    forget(tmp_path / "b" / "run-party-1", [user])
    tonight = trial(tmp_path / "c", spelled(small_parties, 0.5), config, alignment="keyed")
    assert user in tonight.parties["party-1"].ratings.user_ids
    tonight.align_options = {
        "party-0": {"after": tmp_path / "a" / "run-party-0"},
        "party-1": {"after": tmp_path / "b" / "run-party-1"},
    }
    count = iter(range(1, 1_000_000))

    def correct(data: bytes) -> bytes:
        if next(count) == 9:
            tonight.align_options["party-0"] = {"after": tmp_path / "b" / "run-party-0"}
            raise Killed
        return data

    tonight.run({"party-0": correct})
    assert not tonight.errors
    assert_same(tonight, on_one_machine(tonight))
    assert user not in tonight.runs["party-1"].parties[0].ratings.user_ids
    assert caplog.text.count("left out 1 forgotten user; remove them from your own data, too") == 1


def test_a_wrong_file_is_named(
    tmp_path: Path, small_parties: list[vf.PartyData], caplog: pytest.LogCaptureFixture
) -> None:
    config = vf.Config.preset("best", **REPEATABLE | {"epochs": 1}, gate=False, lists=False)
    first = trial(tmp_path / "first", small_parties, config)
    first.run()
    assert not first.errors
    own = [party.name for party in small_parties]
    swapped = dict(zip(own, [small_parties[0], small_parties[2], small_parties[1]], strict=True))
    second = trial(
        tmp_path / "second", [vf.PartyData(name, each.ratings) for name, each in swapped.items()], config
    )
    second.align_options["party-1"] = {"after": tmp_path / "first" / "run-party-1"}
    second.run()
    assert not second.errors
    said = f"100 % of party-1's items are new since {tmp_path / 'first' / 'run-party-1'}; is this the right file?"
    assert caplog.text.count(said) == 1
    assert caplog.text.count("is this the right file?") == 1


def test_a_federation_without_overlap_ends_at_every_party(
    tmp_path: Path, small_parties: list[vf.PartyData]
) -> None:
    """Every party gets the reason and stops; none waits for the others."""
    strangers = [
        vf.PartyData(p.name, replace(p.ratings, user_ids=np.strings.add(p.name, p.ratings.user_ids)))
        for p in small_parties
    ]
    federated = trial(tmp_path, strangers, alignment="keyed")
    parties = [federated.start(name) for name in (SERVER, *federated.parties)][1:]
    for thread in parties:
        thread.join(180)
    federated.stopping = True
    federated.join()
    assert set(federated.errors) == set(federated.parties)
    for errors in federated.errors.values():
        assert "no user is at two parties" in str(errors[0])


@pytest.mark.parametrize("who", [SERVER, "party-0", "party-1"])
def test_killed_while_aligning(tmp_path: Path, small_parties: list[vf.PartyData], who: str) -> None:
    """Instead of its first message, of the third (the second of its second life) and of the sixth (the third of its third)."""
    federated = trial(tmp_path, spelled(small_parties), training_settings(epochs=2), alignment="keyed")
    federated.run({who: killed_at(1, 3, 6)})
    assert not federated.errors
    tables = [federated.runs[name].parties[0].ratings for name in federated.parties]
    assert len({table.n_users for table in tables}) == 1
    rows = zip(*(np.strings.lower(table.user_ids) for table in tables), strict=True)
    assert all(len({str(user).strip() for user in row} - {""}) == 1 for row in rows)


def test_who_comes_without_alignment_makes_all_align_again(
    tmp_path: Path, small_parties: list[vf.PartyData]
) -> None:
    """One party lost its folder before training began; the others find their users anew with it."""
    parties = spelled(small_parties)
    federated = trial(tmp_path, parties, alignment="keyed")
    for name in (SERVER, "party-0", "party-1"):
        federated.start(name)
    federated.start("party-2", killed_at(5), restart=False).join(180)  # aligned, and gone before it joins
    federated_folder = tmp_path / "run-party-2"
    assert (federated_folder / "federation.txt").is_file()
    shutil.rmtree(federated_folder)
    federated.start("party-2")
    federated.join()
    assert not federated.errors
    assert isinstance(federated, Trial)
    assert len({federated.runs[name].parties[0].ratings.n_users for name in federated.parties}) == 1

"""Alignment, then training: parties with partly different users train the same as on one machine."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from test_federation import assert_same, killed_at, trial
from test_federation import settings as training_settings
from test_party_alignment import need

import verfedgnn as vf
from hub import SERVER, Trial
from verfedgnn.federation.party_store import PartyStore
from verfedgnn.gnn.model import Model
from verfedgnn.privacy.identifiers import normalise_ids
from verfedgnn.privacy.rating_dp import rating_epsilon
from verfedgnn.protocol.round.replica import Replica
from verfedgnn.protocol.round.start_state import PublicStart, shrinkage
from verfedgnn.protocol.wire.framing import kind_of
from verfedgnn.protocol.wire.messages import Welcome, decode
from verfedgnn.runs.start_from import claim_ancestor
from verfedgnn.serving.catalogue import Catalogue
from verfedgnn.serving.recommendation_table import write_table
from verfedgnn.upkeep.forget import forget_users


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
    parts = [federated.runs[name].parts[0] for name in federated.parties]
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
    run = on_one_machine(federated, stack=False)
    assert_same(federated, run)
    assert run.metrics["users"] == federated.runs["party-0"].metrics["users"] == len(run.models[0].users)


REPEATABLE = {"unprotected": ["noise"], "epochs": 6, "list_epochs": 0.5, "evaluate_every": 3, "dim": 4}


@pytest.mark.parametrize(
    ("preset", "values"),
    [
        ("best", {"gate": False, "raters": 3}),
        ("private", {}),
        ("ranking", {}),
    ],
)
def test_every_preset_trains_the_same_with_partial_overlap(
    tmp_path: Path, small_parties: list[vf.PartyData], preset: str, values: dict[str, Any]
) -> None:
    config = vf.Config.preset(preset, **REPEATABLE, **values)
    federated = trial(tmp_path, spelled(small_parties, 0.3), config, alignment="keyed")
    federated.run()
    assert_same(federated, on_one_machine(federated, stack=False))


def test_a_party_killed_in_training_changes_nothing(
    tmp_path: Path, small_parties: list[vf.PartyData]
) -> None:
    federated = trial(tmp_path, spelled(small_parties, 0.3), alignment="keyed")
    federated.run({"party-1": killed_at(9), SERVER: killed_at(30)})
    assert_same(federated, on_one_machine(federated, stack=False))


def test_a_stack_computes_the_same_with_partial_overlap(
    tmp_path: Path, small_parties: list[vf.PartyData]
) -> None:
    """A stack computes all users, a party of its own only those with ratings: equal up to rounding."""
    federated = trial(
        tmp_path,
        spelled(small_parties, 0.3),
        training_settings(mechanism="none", masking=False),
        alignment="keyed",
    )
    federated.run()
    stacked = on_one_machine(federated, stack=True)
    torch.testing.assert_close(federated.public("party-0"), stacked.public, rtol=1e-4, atol=1e-5)


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
    users, _ = run.embeddings("party-1").arrays()
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


def test_a_second_training_with_more_users_keeps_the_rows(
    tmp_path: Path, small_parties: list[vf.PartyData]
) -> None:
    """Each party brings more users than before: known ones keep their rows, new ones follow, padding stays empty."""
    first = trial(tmp_path / "first", spelled(small_parties, 0.3), alignment="keyed")
    first.run()
    second = trial(tmp_path / "second", spelled(small_parties, 0.5), alignment="keyed")
    for name in second.parties:
        second.align_options[name] = {"known": PartyStore.read_rows(tmp_path / "first" / f"run-{name}")}
    second.align_options["party-0"]["pad_to"] = 70
    second.run()
    assert not second.errors
    for name in second.parties:
        before = first.runs[name].parties[0].ratings
        after = second.runs[name].parties[0].ratings
        assert after.n_users > before.n_users
        kept = before.known_users[np.isin(before.user_ids[before.known_users], after.user_ids)]
        assert len(kept)
        assert (after.user_ids[kept] == before.user_ids[kept]).all()
    real = {
        form
        for name in second.parties
        for form in normalise_ids(second.parties[name].ratings.user_ids).tolist()
    }
    old = {
        form
        for name in first.parties
        for form in normalise_ids(first.parties[name].ratings.user_ids).tolist()
    }
    padding = 70 - second.parties["party-0"].ratings.n_users
    assert second.runs["party-0"].metrics["users"] == len(real | old) + padding


def continued(folder: Path, parties: list[vf.PartyData], config: vf.Config) -> tuple[Trial, Trial]:
    """Run a federation, and prepare a second one that starts from it with other tables."""
    first = trial(folder / "first", spelled(parties, 0.3), config, alignment="keyed")
    first.run()
    assert not first.errors
    second = trial(folder / "second", spelled(parties, 0.5), config, alignment="keyed")
    second.start_from = folder / "first" / f"run-{SERVER}"
    for name in second.parties:
        second.align_options[name] = {"start_from": folder / "first" / f"run-{name}"}
    return first, second


def test_a_training_continued_with_more_users_equals_one_machine(
    tmp_path: Path, small_parties: list[vf.PartyData]
) -> None:
    """Ratings and lists, bit for bit, also with kills; every member records the run that it starts from."""
    config = vf.Config.preset("best", **REPEATABLE, reads=2, raters=3)
    first, second = continued(tmp_path, small_parties, config)
    second.run({"party-1": killed_at(9), SERVER: killed_at(30)})
    assert not second.errors
    on_one_machine(first, stack=False, out=tmp_path / "local")
    run = on_one_machine(second, stack=False, start_from=tmp_path / "local")
    assert_same(second, run)
    fresh = on_one_machine(second, stack=False)
    assert not torch.equal(run.public, fresh.public)
    ancestor = {"public": first.runs["party-0"].metrics["public"], "rounds": 6, "same_split": True}
    records = [second.runs[name].metrics["from"] for name in second.parties]
    served = json.loads((tmp_path / "second" / f"run-{SERVER}" / "metrics.json").read_text())
    local = {key: value for key, value in run.metrics["from"].items() if key != "drift"}
    assert [*records, served["from"], local] == [ancestor] * 5


def test_an_agreement_for_nights_without_a_start_is_named(
    tmp_path: Path, small_parties: list[vf.PartyData], caplog: pytest.LogCaptureFixture
) -> None:
    """A tenth of the rounds from nothing gives a bad model; the coordinator says so at once."""
    config = vf.Config.preset("best", **REPEATABLE, gate=False, raters=3).for_night()
    _, second = continued(tmp_path, small_parties, config)
    said = "this agreement is for nights, but the training starts from nothing; stop it and pass --from"
    assert caplog.text.count(said) == 1
    second.align_options.pop("party-0")
    second.run()
    assert not second.errors
    assert caplog.text.count(said) == 1, "the night itself has a start"
    assert caplog.text.count("a party of the last training starts without --from") == 1, "party-0 only"


def test_a_private_training_that_continues_another_spends_both_budgets(
    tmp_path: Path, small_parties: list[vf.PartyData]
) -> None:
    """Attack: spend the budget twice, in two trainings that look cheap. Every party's ledger begins where the last one ended."""
    config = vf.Config.preset("private", **REPEATABLE, gate=False)
    first, second = continued(tmp_path, small_parties, config)
    second.run({"party-1": killed_at(9)})
    assert not second.errors
    on_one_machine(first, stack=False, out=tmp_path / "local")
    run = on_one_machine(second, stack=False, start_from=tmp_path / "local")
    assert_same(second, run)
    for name in second.parties:
        before, after = (federated.runs[name].metrics["privacy"] for federated in (first, second))
        assert after["gradients"] == run.metrics["privacy"]["gradients"]
        assert after["gradients"]["releases"] == 2 * before["gradients"]["releases"]
        assert after["validation"]["releases"] == 2 * before["validation"]["releases"]
        counts = {"rounds": after["gradients"]["releases"], "validations": after["validation"]["releases"]}
        ledger = replace(second.services[name].ledger, config=config.with_values({"unprotected": []}))
        assert ledger._spent(ledger.entries) == rating_epsilon(ledger.config, **counts, delta=1e-6)
        assert second.runs[name].metrics["from"]["spent"]["gradients"] == before["gradients"]["releases"]
    other = config.with_values({"gradients.noise_multiplier": 20.0})
    third = trial(tmp_path / "third", spelled(small_parties, 0.5), other, alignment="keyed")
    third.start_from = tmp_path / "first" / f"run-{SERVER}"
    for member in (SERVER, "party-0"):
        folder = tmp_path / "first" / f"run-{member}"
        with pytest.raises(vf.ConfigError, match="budgets do not compose"):
            claim_ancestor(tmp_path / "third" / member, folder, third.agreement.training_config)


def test_a_forgotten_user_is_new_to_every_member(
    tmp_path: Path, small_parties: list[vf.PartyData], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request travels as a row number in the next start. Its old public row is not used, and all members record that."""
    replicas: list[tuple[torch.Tensor, torch.Tensor]] = []
    load = PublicStart.load_into

    def note(start: PublicStart, replica: Replica, forgotten: Sequence[int] = ()) -> None:
        load(start, replica, forgotten)
        replicas.append((replica.parameters.clone(), replica.accumulator.clone()))

    monkeypatch.setattr(PublicStart, "load_into", note)
    config = vf.Config.preset("best", **REPEATABLE, lists=False, raters=3)
    first, second = continued(tmp_path, small_parties, config)
    folder = tmp_path / "first" / "run-party-1"
    table = first.runs["party-1"].parties[0].ratings
    row = int(table.known_users[0])
    user = str(table.user_ids[row])
    record = forget_users(folder, [user])
    assert record["rows"] == [row]
    mine = second.parties["party-1"].ratings
    left = mine.select_users(np.flatnonzero(mine.user_ids != user))
    second.parties["party-1"] = vf.PartyData("party-1", left)
    second.run()
    assert not second.errors
    assert len(replicas) == 4
    for parameters, sums in replicas:
        assert torch.equal(parameters, replicas[0][0])
        assert torch.equal(sums, replicas[0][1])
    model = Model(config.model, second.runs["party-1"].metrics["users"])
    started = model.views(replicas[0][0])["users"]
    before = Model(config.model, table.n_users).views(first.public("party-0"))["users"]
    kept = torch.isclose(started[: table.n_users], shrinkage(model, "users") * before).all(1)
    assert (~kept).nonzero().flatten().tolist() == [row], "only the forgotten row is drawn again"
    assert not model.views(replicas[0][1])["users"][row].any()
    served = json.loads((tmp_path / "second" / f"run-{SERVER}" / "metrics.json").read_text())
    records = [*(run.metrics for run in second.runs.values()), served]
    assert [metrics["from"]["forgotten"] for metrics in records] == [[row]] * 4


def test_a_coordinator_that_keeps_a_forgotten_row_is_refused(
    tmp_path: Path, small_parties: list[vf.PartyData], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = vf.Config.preset("best", **REPEATABLE, lists=False, raters=3)
    first, second = continued(tmp_path, small_parties, config)
    table = first.runs["party-1"].parties[0].ratings
    forget_users(tmp_path / "first" / "run-party-1", [str(table.user_ids[table.known_users[0]])])
    load = PublicStart.load_into
    monkeypatch.setattr(PublicStart, "load_into", lambda start, replica, forgotten=(): load(start, replica))
    assert "does not start from the run that this party starts from" in first_error(second)


def test_members_that_do_not_start_from_the_same_training_are_refused(
    tmp_path: Path, small_parties: list[vf.PartyData]
) -> None:
    config = vf.Config.preset("best", **REPEATABLE, gate=False, lists=False)
    _, second = continued(tmp_path, small_parties, config)
    second.start_from = None  # the coordinator starts from nothing, the parties do not
    assert "does not start from the run that this party starts from" in first_error(second)
    third = trial(tmp_path / "third", spelled(small_parties, 0.5), config, alignment="keyed")
    third.start_from = tmp_path / "first" / f"run-{SERVER}"  # the parties start from nothing
    assert "the parties keep 0 rows; give every party --from" in first_error(third)


def first_error(federated: Trial) -> str:
    """Start all members, stop them after the first error of a party, and return that error."""
    for name in (SERVER, *federated.parties):
        federated.start(name)
    deadline = time.monotonic() + 180
    while not federated.errors and time.monotonic() < deadline:
        time.sleep(0.02)
    federated.stopping = True
    federated.join()
    return str(next(iter(federated.errors.values()))[0])


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
    federated.start("party-2", killed_at(4), restart=False).join(180)  # aligned, and gone before it joins
    federated_folder = tmp_path / "run-party-2"
    assert (federated_folder / "federation.txt").is_file()
    import shutil

    shutil.rmtree(federated_folder)
    federated.start("party-2")
    federated.join()
    assert not federated.errors
    assert isinstance(federated, Trial)
    assert len({federated.runs[name].parties[0].ratings.n_users for name in federated.parties}) == 1


def test_one_party_leaves_and_another_joins(tmp_path: Path) -> None:
    """The new agreement starts from the last public parameters; who was there before keeps its own, the newcomer has none."""
    table = vf.data.synthetic_ratings(users=60, items=60, ratings=1500, seed=1)
    parties = vf.split_items(table, parties=4, seed=1)
    config = training_settings(epochs=2, evaluate_every=1)
    first = trial(tmp_path / "first", parties[:3], config, alignment="keyed")
    first.run()
    second = trial(tmp_path / "second", parties[1:], config, alignment="keyed")
    second.start_from = tmp_path / "first" / f"run-{SERVER}"
    stayed = [party.name for party in parties[1:3]]
    for name in stayed:
        second.align_options[name] = {"start_from": tmp_path / "first" / f"run-{name}"}
    second.run()
    assert not first.errors
    assert not second.errors
    copies = {
        to: message.parameters
        for _, to, data in second.hub.seen
        if kind_of(data) is Welcome and isinstance(message := decode(data), Welcome)
    }
    received = copies.pop(parties[3].name)
    assert received is not None
    assert copies == dict.fromkeys(stayed), "who was there before has the parameters"
    old = first.public(stayed[0])
    model = Model(config.model, 60)
    for name, values in model.views(torch.from_numpy(received.copy())).items():
        assert torch.equal(values, shrinkage(model, name) * model.views(old)[name])
    assert ["from" in run.metrics for run in second.runs.values()] == [name in stayed for name in second.runs]

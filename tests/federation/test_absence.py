"""Parties that stay away for good: the agreed deadline, and the agreed decision."""

from __future__ import annotations

import json
import logging
import re
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_federation import PATIENT, Fault, die, in_round, local, settings, trial

import verfedgnn as vf
from hub import SERVER, Clock, Trial, wait_until
from verfedgnn.federation import COORDINATOR_KEY
from verfedgnn.federation.agreement import FILE, save_agreement
from verfedgnn.federation.roster import AgreementWatch, MemberIdentity, remove_party
from verfedgnn.federation.transport import TransportEvent
from verfedgnn.protocol.messages import RoundReply, Welcome, encode, kind_of


def lose_in_round(
    folder: Path,
    parties: list[vf.PartyData],
    number: int,
    config: vf.Config | None = None,
    fault: Fault | None = None,
) -> Trial:
    """Return a federation of which all parties are required and the first one has died for good; the last has the fault."""
    federated = trial(folder, parties, config or settings(), timeouts=PATIENT)
    gone, *rest = federated.parties
    for name in (SERVER, *rest):
        federated.start(name, fault if name == rest[-1] else None)
    federated.start(gone, in_round(number, die), restart=False)
    wait_until(
        lambda: SERVER in federated.services and federated.services[SERVER].stage.lacks_since is not None
    )
    return federated


def let_the_deadline_pass(clock: Clock) -> None:
    clock.ahead += PATIENT.absent + 1


def test_after_the_deadline_the_others_finish_with_the_best_model(
    tmp_path: Path, small_parties: list[vf.PartyData], clock: Clock
) -> None:
    federated = lose_in_round(tmp_path, small_parties, 5)
    gone, *rest = federated.parties
    let_the_deadline_pass(clock)
    federated.end_without(gone, clock)
    metrics = json.loads((tmp_path / f"run-{SERVER}" / "metrics.json").read_text())
    assert re.fullmatch(rf"{gone} absent from \d\d:\d\d, for more than 600 s", metrics["ended"])
    assert metrics["best_round"] == 3
    expected = local(small_parties, settings(epochs=3))
    for name in rest:
        assert torch.equal(federated.public(name), expected.public)
    # The party fetches the same result when it is back; the decision survives a restart of the coordinator.
    federated.threads.clear()
    federated.stopping = False
    federated.start(SERVER)
    federated.start(gone)
    federated.join()
    assert torch.equal(federated.public(gone), expected.public)


def test_a_reply_after_the_deadline_is_no_offence(
    tmp_path: Path, small_parties: list[vf.PartyData], clock: Clock
) -> None:
    begun: list[Trial] = []

    def reply_late(reply: RoundReply) -> bytes:
        wait_until(lambda: bool(begun) and begun[0].services[SERVER].stage.record.ended is not None)
        return encode(reply)

    federated = lose_in_round(tmp_path, small_parties, 5, fault=in_round(5, reply_late))
    let_the_deadline_pass(clock)
    begun.append(federated)
    federated.end_without(small_parties[0].name, clock)
    assert not federated.errors
    assert not federated.services[SERVER].offences


def test_a_revoked_party_is_locked_out_and_the_others_go_on(
    tmp_path: Path, small_parties: list[vf.PartyData]
) -> None:
    """Attack: go on with a leaked key after it was revoked. The coordinator hears nothing of it, and the quorum finishes."""
    federated = trial(tmp_path, small_parties, settings(), min_parties=2)
    save_agreement(tmp_path / FILE, federated.agreement)
    (tmp_path / COORDINATOR_KEY).touch()  # only the coordinator can revoke
    gone, *rest = federated.parties
    revoked = threading.Event()

    def revoke(reply: RoundReply) -> bytes:
        """Revoke the party before its reply of a round leaves, and wait until the coordinator has noticed."""
        remove_party(tmp_path, gone)
        wait_until(lambda: gone in federated.services[SERVER].revoked)
        revoked.set()
        return encode(reply)

    federated.run({gone: in_round(5, revoke)})
    service = federated.services[SERVER]
    assert revoked.is_set()
    assert service.coordinator.round == 9
    assert service.stage.record.ended is None
    assert service.coordinator.updates[-1].parties == [1, 2]
    assert torch.equal(*(federated.public(name) for name in rest))
    assert list(federated.errors) == [gone]
    assert "was revoked" in str(federated.errors[gone][0])
    metrics = json.loads((tmp_path / f"run-{SERVER}" / "metrics.json").read_text())
    assert [party["has_result"] for party in metrics["parties"]] == [False, True, True]


def test_a_renewed_certificate_with_the_same_key_locks_nobody_out(
    tmp_path: Path, small_parties: list[vf.PartyData]
) -> None:
    federated = trial(tmp_path, small_parties, settings())
    save_agreement(tmp_path / FILE, federated.agreement)
    watch = AgreementWatch(federated.identities[SERVER])
    assert watch.find_revoked() == []
    save_agreement(tmp_path / FILE, federated.agreement)
    assert watch.find_revoked() == []
    (tmp_path / FILE).write_text("not an agreement")
    assert watch.find_revoked() == []
    others = federated.agreement.with_values(parties=federated.agreement.parties[1:])
    save_agreement(tmp_path / FILE, others)
    assert watch.find_revoked() == [small_parties[0].name]


def test_a_training_without_a_validation_ends_with_the_reason_everywhere(
    tmp_path: Path, small_parties: list[vf.PartyData], clock: Clock
) -> None:
    federated = lose_in_round(tmp_path, small_parties, 2)
    let_the_deadline_pass(clock)
    federated.join()
    gone, *rest = federated.parties
    for name in (SERVER, *rest):
        (error,) = federated.errors[name]
        assert f"before the first validation: {gone} absent from" in str(error)


def test_lists_are_skipped_if_a_party_stays_away(
    tmp_path: Path, small_parties: list[vf.PartyData], clock: Clock
) -> None:
    config = vf.Config.preset("best", epochs=6, evaluate_every=2, dim=6, raters=0, unprotected=["noise"])
    federated = lose_in_round(tmp_path, small_parties, 5, config)
    gone, *rest = federated.parties
    let_the_deadline_pass(clock)
    federated.end_without(gone, clock)
    assert {name: federated.runs[name].lists for name in rest} == dict.fromkeys(rest)
    metrics = json.loads((tmp_path / f"run-{SERVER}" / "metrics.json").read_text())
    assert metrics["lists"]["rounds"] == 0
    assert metrics["lists"]["ended"] == metrics["ended"]


# -- a second process under a party's name ----------------------------------------------------------------------------------


def test_a_fresh_folder_does_not_join_in_a_partys_name(
    tmp_path: Path, small_parties: list[vf.PartyData], clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """With equal lists of users, nothing else would tell the new folder from the one that took part."""
    caplog.set_level(logging.INFO, "verfedgnn.federation")
    federated = lose_in_round(tmp_path, small_parties, 5)
    gone, other, _ = federated.parties
    shutil.rmtree(tmp_path / f"run-{gone}")
    federated.hub.wires[SERVER].events.put(TransportEvent("second", other))
    federated.start(gone)
    wait_until(lambda: gone in federated.errors)
    assert "use its previous --out" in str(federated.errors[gone][0])
    let_the_deadline_pass(clock)
    federated.end_without(gone, clock)
    assert "another process wanted to join under this party's name" in caplog.text


# -- before the first round --------------------------------------------------------------------------------------------------


def keyed(folder: Path, parties: list[vf.PartyData], **values: Any) -> Trial:
    return trial(folder, parties, settings(epochs=1), alignment="keyed", **values)


def assert_all_end(federated: Trial, text: str) -> None:
    federated.run()
    for name in (SERVER, *federated.parties):
        assert text in str(federated.errors[name][0]), federated.errors
    assert not any(kind_of(data) is Welcome for _, _, data in federated.hub.seen)


def test_too_few_common_users_are_refused_with_the_counts(
    tmp_path: Path, small_parties: list[vf.PartyData]
) -> None:
    """One wrong export: three of its users are those of the others."""
    first, *rest = small_parties
    table = first.ratings
    ids = np.array([f"x{n}" if n > 2 else user for n, user in enumerate(table.user_ids)])
    wrong = vf.PartyData(first.name, replace(table, user_ids=ids))
    federated = keyed(tmp_path, [wrong, *rest], min_overlap=0.1)
    assert_all_end(federated, f"too few common users: {first.name} shares 3 of 120")


def test_a_party_that_shares_nobody_learns_how_its_ids_differ_and_agreed_ids_mend_it(
    tmp_path: Path, small_parties: list[vf.PartyData]
) -> None:
    first, *rest = small_parties
    padded = np.array([f"{user[0]}000{user[1:]}" for user in first.ratings.user_ids])
    parties = [vf.PartyData(first.name, replace(first.ratings, user_ids=padded)), *rest]
    refused = keyed(tmp_path / "as written", parties, min_overlap=0.1)
    assert_all_end(refused, f"too few common users: {first.name} shares 0 of 120")
    cause = str(refused.errors[first.name][0])
    assert "have leading zeros or a .0" in cause
    assert 'agree on ids = "number" in federation.toml' in cause
    agreed = keyed(tmp_path / "agreed", parties, min_overlap=0.1, ids="number")
    agreed.run()
    assert not agreed.errors
    assert all(run.parties[0].ratings.n_users == 120 for run in agreed.runs.values())


def test_another_agreement_is_named_while_users_are_aligned(
    tmp_path: Path, small_parties: list[vf.PartyData]
) -> None:
    federated = keyed(tmp_path, small_parties)
    name = small_parties[0].name
    identity = federated.identities[name]
    other = federated.agreement.with_values(min_users=2)
    federated.identities[name] = MemberIdentity(other, identity.key_file)
    for member in (SERVER, *federated.parties):
        federated.start(member)
    wait_until(lambda: name in federated.errors)
    federated.stopping = True
    federated.join()
    assert "its federation file is not the coordinator's; run `verfedgnn federation accept`" in str(
        federated.errors[name][0]
    )

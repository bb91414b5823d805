"""Alignment of users between parties: equal users get equal rows, and parties learn their own rows only."""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_federation import assert_same, killed_at, trial
from test_federation import settings as training_settings

import verfedgnn as vf
from hub import SERVER, Hub, Trial, Wire, agree
from verfedgnn.federation.coordinator_service import CoordinatorService
from verfedgnn.federation.party_store import PartyStore
from verfedgnn.federation.transport.interface import TransportEvent
from verfedgnn.privacy.identifiers import normalise_ids, select_unambiguous
from verfedgnn.protocol.user_alignment.coordinator_side import CoordinatorAlignment
from verfedgnn.protocol.user_alignment.party_side import PartyAlignment
from verfedgnn.protocol.user_alignment.probes import PROBES
from verfedgnn.protocol.wire.alignment_messages import (
    Aligned,
    AlignHello,
    AlignStart,
    Pseudonyms,
    Sealed,
    UserRows,
)
from verfedgnn.protocol.wire.framing import kind_of
from verfedgnn.protocol.wire.messages import Hello, Message, Welcome, decode, encode
from verfedgnn.serving.catalogue import Catalogue
from verfedgnn.serving.recommendation_table import write_table

NAMES = ["film", "book", "music", "games"]


class Anybody:
    """Vouches for every key."""

    def sign(self, purpose: str, key: str) -> str:
        return "00"

    def check(self, purpose: str, party: int, key: str, signature: str) -> None:
        pass


def meet(
    tables: Sequence[Sequence[str]],
    method: Any,
    rule: Any = "any",
    log: list[tuple[str, Message]] | None = None,
    known: Sequence[Any] | None = None,
    **options: Any,
) -> list[PartyAlignment]:
    """Align parties with these users through encoded messages, and return their sides."""
    names = NAMES[: len(tables)]
    before = known or [None] * len(names)
    parties = {
        name: PartyAlignment(
            name,
            np.array(ids, np.str_),
            method,
            "a",
            Anybody(),
            known=None if old is None else np.array(old),
            rule=rule,
            **options,
        )
        for name, ids, old in zip(names, tables, before, strict=True)
    }
    coordinator = CoordinatorAlignment(names, method, "a", rule)
    up = deque((name, party.hello()) for name, party in parties.items())
    while up:
        sender, message = up.popleft()
        for to, answer in coordinator.handle(sender, decode(encode(message))):
            if log is not None:
                log.append((to, answer))
            if type(answer).__name__ != "Waiting":
                up.extend((to, reply) for reply in parties[to].handle(decode(encode(answer))))
    return list(parties.values())


def need(method: str) -> None:
    if method == "ecdh":
        pytest.importorskip("private_set_intersection", reason="the extra 'psi' is not installed")


def by_form(party: PartyAlignment, table: Sequence[str]) -> dict[str, int]:
    """Rows by normalised id, of users who take part."""
    assert party.rows is not None
    forms = normalise_ids(np.array(table, np.str_)).tolist()
    return {form: int(row) for form, row in zip(forms, party.rows, strict=True) if row >= 0}


ids = st.lists(st.text("abcAB @.", min_size=1, max_size=4), min_size=1, max_size=12, unique=True)


@settings(max_examples=60)
@given(tables=st.lists(ids, min_size=2, max_size=4), rule=st.sampled_from(["any", "all", 2]))
def test_equal_users_get_equal_rows(tables: list[list[str]], rule: Any) -> None:
    """Against Python's sets, on normalised ids; ambiguous ones are left out."""
    forms = [select_unambiguous(np.array(table, np.str_))[0].tolist() for table in tables]
    times = Counter(form for table in forms for form in table)
    fewest = {"any": 1, "all": len(tables), 2: 2}[rule]
    expected = {form for form, many in times.items() if many >= fewest}
    taking_part = [expected & set(table) for table in forms]
    if not all(taking_part) or max(times.values()) < 2:
        with pytest.raises(
            vf.DataError, match=r"no user is at two parties|none of this party's users|no user whose id"
        ):
            meet(tables, "keyed", rule)
        return
    parties = meet(tables, "keyed", rule)
    rows: dict[str, int] = {}
    for party, table, own in zip(parties, tables, taking_part, strict=True):
        found = by_form(party, table)
        assert set(found) == own
        assert all(rows.setdefault(form, row) == row for form, row in found.items())
        assert party.users == len(expected)
    assert sorted(rows.values()) == list(range(len(expected)))


TABLES = [
    ["Ann@Example.org", "bob", "carl", "dora", "eve"],
    ["EVE", " ann@example.org", "Bob ", "fred"],
    ["gina", "bob", "mailto:ann@example.org", "eve"],
]


@pytest.mark.parametrize("method", ["keyed", "ecdh"])
@pytest.mark.parametrize(("rule", "users"), [("any", 7), ("all", 3), (2, 3)])
def test_spelling_does_not_matter(method: str, rule: Any, users: int) -> None:
    need(method)
    parties = meet(TABLES, method, rule)
    film, book, music = (by_form(party, table) for party, table in zip(parties, TABLES, strict=True))
    for form in ("ann@example.org", "bob", "eve"):
        assert film[form] == book[form] == music[form]
    assert {party.users for party in parties} == {users}
    assert len(film) == (5 if rule == "any" else 3)


@pytest.mark.parametrize("parties", [1, 2, 4])
def test_ecdh_works_with_fewer_and_more_parties_than_keyholders(parties: int) -> None:
    need("ecdh")
    tables = [["ann", "bob", f"own-{party}"] for party in range(parties)]
    found = [by_form(*each) for each in zip(meet(tables, "ecdh"), tables, strict=True)]
    assert len({(rows["ann"], rows["bob"]) for rows in found}) == 1
    assert len({row for rows in found for row in rows.values()}) == 2 + parties


def test_parties_receive_their_own_rows_and_the_number_of_rows_only() -> None:
    """The coordinator's answer has one row for each pseudonym sent, and nothing about other parties."""
    log: list[tuple[str, Message]] = []
    meet(TABLES, "keyed", log=log)
    answers = {to: message for to, message in log if isinstance(message, UserRows)}
    assert set(UserRows.model_fields) == {"session", "users", "rows"}
    assert [len(answers[name].rows) for name in NAMES[:3]] == [5 + PROBES, 4 + PROBES, 4 + PROBES]
    assert all((answer.rows >= 0).all() for answer in answers.values())


@pytest.mark.parametrize("method", ["keyed", "ecdh"])
def test_padding_hides_the_number_of_users(method: str) -> None:
    """Random pseudonyms get rows under any, which stay empty, and none under 2."""
    need(method)
    tables = [["ann", "bob"], ["ann", "carl", "dora"]]
    any_users, two = (meet(tables, method, rule, pad_to=5) for rule in ("any", 2))
    assert [party.hello().users for party in any_users] == [5 + PROBES, 5 + PROBES]
    assert {party.users for party in any_users} == {9}
    assert {party.users for party in two} == {1}
    assert [len(party.rows) for party in two] == [2, 3]  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["keyed", "ecdh"])
def test_users_who_come_later_get_new_rows(method: str) -> None:
    need(method)
    tables = [["ann", "bob"], ["bob", "carl"]]
    old = [by_form(*each) for each in zip(meet(tables, method), tables, strict=True)]
    known = [["" for _ in range(3)] for _ in tables]
    for own, rows in zip(known, old, strict=True):
        for form, row in rows.items():
            own[row] = form
    later = [["ann", "bob", "dora"], ["eve", "bob", "carl", "ann"]]
    parties = meet(later, method, known=known)
    film, book = (by_form(*each) for each in zip(parties, later, strict=True))
    assert film | {"dora": 0} == old[0] | {"dora": 0}
    assert book["carl"] == old[1]["carl"]
    assert book["ann"] == film["ann"]
    assert sorted([film["dora"], book["eve"]]) == [3, 4]
    assert {party.users for party in parties} == {5}


def test_a_user_whom_one_party_lost_keeps_the_row() -> None:
    known = [["ann", "bob", ""], ["", "bob", "carl"]]
    parties = meet([["bob"], ["bob", "carl", "ann"]], "keyed", known=known)
    assert by_form(parties[1], ["bob", "carl", "ann"]) == {"bob": 1, "carl": 2, "ann": 3}
    assert parties[0].users == 4


def test_parties_without_any_overlap_are_told_so() -> None:
    with pytest.raises(vf.DataError, match="no user is at two parties"):
        meet([["ann"], ["bob"], ["carl"]], "keyed")


def test_a_party_none_of_whose_users_take_part_is_told_so() -> None:
    with pytest.raises(vf.DataError, match="none of this party's users"):
        meet([["ann"], ["ann"], ["carl"]], "keyed", 2)


@pytest.mark.parametrize("users", [[], [" ", ""], ["Ann", "ann"]])
def test_a_party_without_users_is_refused(users: list[str]) -> None:
    with pytest.raises(vf.DataError, match="no user whose id is unambiguous"):
        PartyAlignment("film", np.array(users, np.str_), "keyed", "a", Anybody())


def test_a_party_that_claims_every_id_is_bounded_by_the_agreement() -> None:
    claimed = np.array([f"u{n}" for n in range(50)])
    with pytest.raises(vf.DataError, match="brings 50 users, but the agreement allows 40"):
        PartyAlignment("film", claimed, "keyed", "a", Anybody(), most_users=40)
    hostile = PartyAlignment("film", claimed, "keyed", "a", Anybody())
    coordinator = CoordinatorAlignment(NAMES[:2], "keyed", "a", most_users=40)
    with pytest.raises(vf.ProtocolError, match="film: it brings 50 users, but the agreement allows 40"):
        coordinator.handle("film", hostile.hello())


def test_a_party_that_claims_every_id_learns_nothing_about_single_users_under_any() -> None:
    """All its ids get rows, whoever else has them."""
    claimed = [f"u{n}" for n in range(50)]
    hostile, _ = meet([claimed, ["u3", "u7", "elsewhere"]], "keyed")
    assert len(by_form(hostile, claimed)) == 50
    assert hostile.users == 51


def gathering() -> CoordinatorAlignment:
    """A coordinator that waits for the pseudonyms of two parties with two users each."""
    coordinator = CoordinatorAlignment(NAMES[:2], "keyed", "a")
    for name in NAMES[:2]:
        coordinator.handle(
            name, AlignHello(party=name, agreement="a", users=2, seal_key="0" * 64, seal_signature="00")
        )
    return coordinator


@pytest.mark.parametrize(
    ("values", "rows", "reason"),
    [
        ([1, 1], None, "film: its pseudonyms are not sorted, or some occur twice"),
        ([1, 2, 3], None, "film: it sends 3 pseudonyms and announced 2"),
        ([1, 2], [0], "film: its rows of an earlier alignment do not fit"),
        ([1, 2], [-2, 0], "film: its rows of an earlier alignment do not fit"),
    ],
)
def test_hostile_pseudonyms_are_refused(values: list[int], rows: list[int] | None, reason: str) -> None:
    coordinator = gathering()
    sent = np.repeat(np.array(values, np.uint8)[:, None], 16, axis=1)
    known = None if rows is None else np.array(rows, np.int32)
    assert coordinator.session is not None
    message = Pseudonyms(session=coordinator.session, values=sent, rows=known, before=1)
    with pytest.raises(vf.ProtocolError, match=reason):
        coordinator.handle("film", message)


@pytest.mark.parametrize(
    ("users", "rows"),
    [(3, [0, 0]), (1, [0, PROBES + 1]), (3, [0]), (3, [0, 1, 2])],
)
def test_hostile_rows_are_refused(users: int, rows: list[int]) -> None:
    party = PartyAlignment("film", np.array(["ann", "bob"]), "keyed", "a", Anybody())
    hello = party.hello()
    keys = [hello.seal_key, "1" * 64]
    party.handle(AlignStart(session="0" * 32, index=0, seal_keys=keys[:1], seal_signatures=["00"]))
    given = np.array([*range(1, PROBES + 1), *rows], np.int32)
    with pytest.raises(vf.ProtocolError, match=r"rows do not fit|gives two users one row"):
        party.handle(UserRows(session="0" * 32, users=users + PROBES, rows=given))


def aligning(rule: Any = "any", ids: Sequence[str] = ("ann", "bob"), **options: Any) -> PartyAlignment:
    """Return a party alone in an alignment that waits for its rows."""
    party = PartyAlignment("film", np.array(ids), "keyed", "a", Anybody(), rule=rule, **options)
    keys = [party.hello().seal_key]
    party.handle(AlignStart(session="0" * 32, index=0, seal_keys=keys, seal_signatures=["00"]))
    return party


def test_a_coordinator_cannot_leave_only_one_user() -> None:
    """Under any rule, a federation of one user would show that user in every sum."""
    one = np.full(2 + PROBES, -1, np.int32)
    one[0] = 0
    with pytest.raises(vf.ProtocolError, match="leaves out users who must take part"):
        aligning().handle(UserRows(session="0" * 32, users=1, rows=one))
    with pytest.raises(vf.ProtocolError, match="leaves out users who must take part"):
        aligning("all").handle(UserRows(session="0" * 32, users=1, rows=one))
    every = np.arange(2 + PROBES, dtype=np.int32)
    with pytest.raises(vf.ProtocolError, match="counts 70 users, but 66 are at all parties"):
        aligning("all").handle(UserRows(session="0" * 32, users=70, rows=every))
    with pytest.raises(vf.DataError, match="has 2 users, fewer than min_users = 100"):
        aligning(fewest_users=100).handle(UserRows(session="0" * 32, users=2 + PROBES, rows=every))


def test_the_coordinator_cannot_tell_probes_from_users_of_all_parties() -> None:
    """Their pseudonyms change with the key, and no party's message marks them."""
    log: list[tuple[str, Message]] = []
    first, second = (meet([["ann"], ["ann"]], "keyed", log=log)[0] for _ in range(2))
    assert not {bytes(row) for row in first._pseudonyms} & {bytes(row) for row in second._pseudonyms}
    assert first.alignment != second.alignment


Change = Callable[[UserRows], UserRows]


def permute(message: UserRows) -> UserRows:
    """Give a party's users other rows than the other parties gave them."""
    rows = message.rows.copy()
    rows[rows >= 0] = np.roll(rows[rows >= 0], 1)
    return message.model_copy(update={"rows": rows})


def spread(message: UserRows) -> UserRows:
    """Give a party's users rows that no other party has, so that sums hold its values alone."""
    return message.model_copy(update={"rows": message.rows + 500, "users": message.users + 500})


@pytest.mark.parametrize(("change", "rule"), [(permute, "any"), (permute, "all"), (spread, "any")])
def test_a_coordinator_that_hands_out_other_rows_is_refused_by_the_parties(
    tmp_path: Path,
    small_parties: list[vf.PartyData],
    monkeypatch: pytest.MonkeyPatch,
    change: Change,
    rule: Any,
) -> None:
    """It compares nothing itself and forges the names of alignments; the parties' signatures name their own."""
    names: list[str | None] = []

    class LyingHub(Hub):
        def deliver(self, to: str, event: TransportEvent, sender: Wire) -> None:
            message = decode(event.data) if event.data else None
            if isinstance(message, UserRows) and to == "party-1":
                event = TransportEvent("message", event.peer, encode(change(message)))
            if isinstance(message, Hello | Aligned):
                forged: dict[str, Any] = {"users": 120}
                if isinstance(message, Hello):
                    names.append(message.alignment)
                    forged["alignment"] = "0" * 64
                event = TransportEvent("message", event.peer, encode(message.model_copy(update=forged)))
            super().deliver(to, event, sender)

    monkeypatch.setattr(CoordinatorService, "_check_key", lambda *_: None)
    federated = trial(
        tmp_path, small_parties, training_settings(users=rule), alignment="keyed", min_parties=2
    )
    federated.hub = LyingHub()
    federated.start(SERVER)
    for name in federated.parties:
        federated.start(name)
    for thread in federated.threads[1:]:
        thread.join(180)
    federated.stopping = True
    federated.join()
    assert len(set(names)) > 1, "the lie shows in the name of the alignment"
    assert not federated.runs, "nobody trains"
    reasons = [str(error) for errors in federated.errors.values() for error in errors]
    assert any("did not sign it for this federation and alignment" in reason for reason in reasons)


def test_a_coordinator_that_moves_users_is_refused() -> None:
    known = np.array(["", "ann"])
    party = PartyAlignment("film", np.array(["ann"]), "keyed", "a", Anybody(), known=known)
    hello = party.hello()
    party.handle(AlignStart(session="0" * 32, index=0, seal_keys=[hello.seal_key], seal_signatures=["00"]))
    rows = np.arange(2, PROBES + 3, dtype=np.int32)
    with pytest.raises(vf.ProtocolError, match="moves users"):
        party.handle(UserRows(session="0" * 32, users=3 + PROBES, rows=rows))


@pytest.mark.parametrize("method", ["keyed", "ecdh"])
def test_no_message_holds_an_id(method: str) -> None:
    need(method)
    log: list[tuple[str, Message]] = []
    meet([["planted-1", "planted-2"], ["planted-1", "planted-3"], ["planted-1"]], method, log=log)
    assert log
    assert not any(b"planted" in encode(message) for _, message in log)


@pytest.mark.parametrize("forged", [b"\0\0\0\2", b"\0\0\0\0", b"\0\0\0\7", b""])
def test_points_that_are_not_due_are_refused(forged: bytes) -> None:
    """The last party sends a keyholder a list it claims to be another's."""
    need("ecdh")
    parties = [PartyAlignment(name, np.array(["x"]), "ecdh", "a", Anybody()) for name in NAMES[:3]]
    keys = [party.hello().seal_key for party in parties]
    for index, party in enumerate(parties):
        party.handle(AlignStart(session="0" * 32, index=index, seal_keys=keys, seal_signatures=["00"] * 3))
    (sent,) = parties[2]._pass_on(2, parties[2]._curve_key.blind([b"x"]))
    assert isinstance(sent, Sealed)
    parties[0].handle(sent.model_copy(update={"peer": 2}))
    again = parties[2]._seal(0, b"points", forged)
    assert isinstance(again, Sealed)
    with pytest.raises(vf.ProtocolError, match="list of points"):
        parties[0].handle(again.model_copy(update={"peer": 2}))


def test_a_relay_that_swaps_keys_is_noticed(tmp_path: Path) -> None:
    """The coordinator seals a key of its own for a party: the signatures do not fit."""
    agreement, identities = agree(tmp_path, NAMES[:2], vf.Config.preset("paper"))
    fingerprint = agreement.digest()
    parties = [PartyAlignment(n, np.array(["x"]), "keyed", fingerprint, identities[n]) for n in NAMES[:2]]
    hellos = [party.hello() for party in parties]
    keys, signatures = [hello.seal_key for hello in hellos], [hello.seal_signature for hello in hellos]
    honest = AlignStart(session="0" * 32, index=0, seal_keys=keys, seal_signatures=signatures)
    assert len(parties[0].handle(honest)) == 2
    swapped = honest.model_copy(update={"seal_keys": [keys[0], "ab" * 32]})
    with pytest.raises(vf.ProtocolError, match="did not sign"):
        parties[0].handle(swapped)
    # Nor does a mask key pass for a sealing key: signatures name their purpose.
    other = honest.model_copy(
        update={"seal_signatures": [signatures[0], identities["book"].sign("mask", keys[1])]}
    )
    with pytest.raises(vf.ProtocolError, match="did not sign"):
        parties[0].handle(other)


def test_a_sealed_message_opens_for_its_recipient_only() -> None:
    log: list[tuple[str, Message]] = []
    meet([["x"], ["x"], ["x"]], "keyed", log=log)
    keys = {to: message for to, message in log if isinstance(message, Sealed)}
    start = {to: message for to, message in log if isinstance(message, AlignStart)}
    party = PartyAlignment("film", np.array(["x"]), "keyed", "a", Anybody())
    hello = party.hello()
    mine = start["book"].model_copy(
        update={"seal_keys": [start["book"].seal_keys[0], hello.seal_key, hello.seal_key]}
    )
    party.handle(mine)
    with pytest.raises(vf.ProtocolError, match="sealed message was changed"):
        party.handle(keys["book"].model_copy(update={"peer": 0}))


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
        tmp_path, spelled(small_parties, share), training_settings(users=rule), alignment=method
    )
    federated.run()
    run = on_one_machine(federated, stack=False)
    assert_same(federated, run)
    assert run.metrics["users"] == federated.runs["party-0"].metrics["users"] == len(run.models[0].users)


REPEATABLE = {"unprotected": ["noise"], "epochs": 6, "evaluate_every": 3}


@pytest.mark.parametrize(
    ("preset", "values"),
    [
        ("best", {"gate": False}),
        ("best", {"gate": False, "user_blocks": 3}),
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
    config = vf.Config.preset("best", **REPEATABLE)
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


@pytest.mark.parametrize("send", [1, 2, 3])
@pytest.mark.parametrize("who", [SERVER, "party-0", "party-1"])
def test_killed_while_aligning(
    tmp_path: Path, small_parties: list[vf.PartyData], who: str, send: int
) -> None:
    federated = trial(tmp_path, spelled(small_parties), alignment="keyed")
    federated.run({who: killed_at(send)})
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
    welcome = next(
        message
        for _, _, data in second.hub.seen
        if kind_of(data) is Welcome and isinstance(message := decode(data), Welcome)
    )
    np.testing.assert_array_equal(welcome.parameters, first.public(stayed[0]).numpy())
    assert ["from" in run.metrics for run in second.runs.values()] == [name in stayed for name in second.runs]

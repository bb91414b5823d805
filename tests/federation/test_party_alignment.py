"""Alignment of users between parties: equal users get equal rows, and parties learn their own rows only."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_federation import settings as training_settings
from test_federation import trial

import verfedgnn as vf
from hub import SERVER, Hub, Wire, agree
from verfedgnn.federation.coordinator_service import CoordinatorService
from verfedgnn.federation.transport import TransportEvent
from verfedgnn.privacy.id_matching import normalise_ids, select_unambiguous
from verfedgnn.protocol.messages import (
    Aligned,
    AlignHello,
    AlignStart,
    Hello,
    Message,
    Pseudonyms,
    Sealed,
    UserRows,
    decode,
    encode,
)
from verfedgnn.protocol.user_alignment import PROBES, AlignmentRules, CoordinatorAlignment, PartyAlignment

NAMES = ["film", "book", "music", "games"]


class Anybody:
    """Vouches for every key."""

    def sign(self, purpose: str, key: str) -> str:
        return "00"

    def check(self, purpose: str, party: int, key: str, signature: str) -> None:
        pass


KEYED = AlignmentRules("keyed", "a")


def meet(
    tables: Sequence[Sequence[str]],
    method: Any,
    rule: Any = "any",
    log: list[tuple[str, Message]] | None = None,
    **options: Any,
) -> list[PartyAlignment]:
    """Align parties with these users through encoded messages, and return their sides."""
    names = NAMES[: len(tables)]
    parties = {
        name: PartyAlignment(
            name, np.array(ids, np.str_), AlignmentRules(method, "a", rule), Anybody(), **options
        )
        for name, ids in zip(names, tables, strict=True)
    }
    coordinator = CoordinatorAlignment(names, AlignmentRules(method, "a", rule))
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


def test_parties_without_any_overlap_are_told_so() -> None:
    with pytest.raises(vf.DataError, match="no user is at two parties"):
        meet([["ann"], ["bob"], ["carl"]], "keyed")


def test_a_party_none_of_whose_users_take_part_is_told_so() -> None:
    with pytest.raises(vf.DataError, match="none of this party's users"):
        meet([["ann"], ["ann"], ["carl"]], "keyed", 2)


@pytest.mark.parametrize("users", [[], [" ", ""], ["Ann", "ann"]])
def test_a_party_without_users_is_refused(users: list[str]) -> None:
    with pytest.raises(vf.DataError, match="no user whose id is unambiguous"):
        PartyAlignment("film", np.array(users, np.str_), KEYED, Anybody())


def test_a_party_that_claims_every_id_is_bounded_by_the_agreement() -> None:
    claimed = np.array([f"u{n}" for n in range(50)])
    with pytest.raises(vf.DataError, match="brings 50 users, but the agreement allows 40"):
        PartyAlignment("film", claimed, AlignmentRules("keyed", "a", most_users=40), Anybody())
    hostile = PartyAlignment("film", claimed, KEYED, Anybody())
    coordinator = CoordinatorAlignment(NAMES[:2], AlignmentRules("keyed", "a", most_users=40))
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
    coordinator = CoordinatorAlignment(NAMES[:2], KEYED)
    for name in NAMES[:2]:
        coordinator.handle(
            name, AlignHello(party=name, agreement="a", users=2, seal_key="0" * 64, seal_signature="00")
        )
    return coordinator


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([1, 1], "film: its pseudonyms are not sorted, or some occur twice"),
        ([1, 2, 3], "film: it sends 3 pseudonyms and announced 2"),
    ],
)
def test_hostile_pseudonyms_are_refused(values: list[int], reason: str) -> None:
    coordinator = gathering()
    sent = np.repeat(np.array(values, np.uint8)[:, None], 16, axis=1)
    assert coordinator.session is not None
    message = Pseudonyms(session=coordinator.session, values=sent)
    with pytest.raises(vf.ProtocolError, match=reason):
        coordinator.handle("film", message)


@pytest.mark.parametrize(
    ("users", "rows"),
    [(3, [0, 0]), (1, [0, PROBES + 1]), (3, [0]), (3, [0, 1, 2])],
)
def test_hostile_rows_are_refused(users: int, rows: list[int]) -> None:
    party = PartyAlignment("film", np.array(["ann", "bob"]), KEYED, Anybody())
    hello = party.hello()
    keys = [hello.seal_key, "1" * 64]
    party.handle(AlignStart(session="0" * 32, index=0, seal_keys=keys[:1], seal_signatures=["00"]))
    given = np.array([*range(1, PROBES + 1), *rows], np.int32)
    with pytest.raises(vf.ProtocolError, match=r"rows do not fit|gives two users one row"):
        party.handle(UserRows(session="0" * 32, users=users + PROBES, rows=given))


def aligning(rule: Any = "any", ids: Sequence[str] = ("ann", "bob"), **options: Any) -> PartyAlignment:
    """Return a party alone in an alignment that waits for its rows."""
    rules = AlignmentRules("keyed", "a", rule, **options)
    party = PartyAlignment("film", np.array(ids), rules, Anybody())
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
    parties = [
        PartyAlignment(name, np.array(["x"]), AlignmentRules("ecdh", "a"), Anybody()) for name in NAMES[:3]
    ]
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
    rules = AlignmentRules("keyed", agreement.digest())
    parties = [PartyAlignment(n, np.array(["x"]), rules, identities[n]) for n in NAMES[:2]]
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
    party = PartyAlignment("film", np.array(["x"]), KEYED, Anybody())
    hello = party.hello()
    mine = start["book"].model_copy(
        update={"seal_keys": [start["book"].seal_keys[0], hello.seal_key, hello.seal_key]}
    )
    party.handle(mine)
    with pytest.raises(vf.ProtocolError, match="sealed message was changed"):
        party.handle(keys["book"].model_copy(update={"peer": 0}))

"""Aligning users between parties: the same users in the same order everywhere, whatever happens on the way."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_federation import killed_at, trial

import verfedgnn as vf
from hub import SERVER, Trial, agree
from verfedgnn.protocol.user_alignment import Guest, Host
from verfedgnn.protocol.wire.alignment_messages import AlignStart, Sealed
from verfedgnn.protocol.wire.messages import Message, decode, encode

NAMES = ["film", "book", "music", "games"]


class Anybody:
    """Vouches for every key."""

    def sign(self, purpose: str, key: str) -> str:
        return "00"

    def check(self, purpose: str, party: int, key: str, signature: str) -> None:
        pass


def meet(
    tables: Sequence[Sequence[str]], method: Any, log: list[tuple[str, Message]] | None = None
) -> list[Guest]:
    """All parties with these users, through encoded messages, to the end."""
    names = NAMES[: len(tables)]
    guests = {
        n: Guest(n, np.array(ids, np.str_), method, "a", Anybody())
        for n, ids in zip(names, tables, strict=True)
    }
    host = Host(names, method, "a")
    up = deque((name, guest.hello()) for name, guest in guests.items())
    while up:
        sender, message = up.popleft()
        for to, answer in host.handle(sender, decode(encode(message))):
            if log is not None:
                log.append((to, answer))
            if type(answer).__name__ != "Waiting":
                up.extend((to, reply) for reply in guests[to].handle(decode(encode(answer))))
    return list(guests.values())


ids = st.lists(st.text("abcAB @.", min_size=1, max_size=4), min_size=1, max_size=12, unique=True)


@settings(max_examples=60)
@given(tables=st.lists(ids, min_size=2, max_size=4))
def test_everybody_has_the_same_users_in_the_same_order(tables: list[list[str]]) -> None:
    """Against Python's sets, on normalised ids; ambiguous ones are nobody's."""
    from verfedgnn.privacy.identifiers import unambiguous

    forms = [unambiguous(np.array(table, np.str_))[0].tolist() for table in tables]
    expected = set(forms[0]).intersection(*forms[1:])
    if not expected:
        with pytest.raises(vf.DataError, match="no user is at every party"):
            meet(tables, "keyed")
        return
    guests = meet(tables, "keyed")
    orders = []
    for guest, table in zip(guests, tables, strict=True):
        assert guest.rows is not None
        own = unambiguous(np.array([table[row] for row in guest.rows], np.str_))[0].tolist()
        orders.append(own)
    assert all(order == orders[0] for order in orders)
    assert set(orders[0]) == expected
    assert len(orders[0]) == len(expected)


TABLES = [
    ["Ann@Example.org", "bob", "carl", "dora", "eve"],
    ["EVE", " ann@example.org", "Bob ", "fred"],
    ["gina", "bob", "mailto:ann@example.org", "eve"],
]


@pytest.mark.parametrize("method", ["keyed", "ecdh"])
def test_spelling_does_not_matter(method: str) -> None:
    if method == "ecdh":
        pytest.importorskip("private_set_intersection", reason="the extra 'psi' is not installed")
    guests = meet(TABLES, method)
    forms = {
        "Ann@Example.org": "ann",
        "bob": "bob",
        "eve": "eve",
        "EVE": "eve",
        " ann@example.org": "ann",
        "Bob ": "bob",
    }
    forms["mailto:ann@example.org"] = "ann"
    orders = [[forms[table[row]] for row in guest.rows] for guest, table in zip(guests, TABLES, strict=True)]  # type: ignore[union-attr]
    assert sorted(orders[0]) == ["ann", "bob", "eve"]
    assert orders[0] == orders[1] == orders[2]


def test_the_order_is_another_one_every_time() -> None:
    """200 users; two random orders agree with a chance of 1 in 200!."""
    users = [f"u{n}" for n in range(200)]
    first, second = (meet([users, users], "keyed")[0].rows for _ in range(2))
    assert first is not None
    assert second is not None
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("method", ["keyed", "ecdh"])
def test_no_message_holds_an_id(method: str) -> None:
    if method == "ecdh":
        pytest.importorskip("private_set_intersection", reason="the extra 'psi' is not installed")
    log: list[tuple[str, Message]] = []
    meet([["planted-1", "planted-2"], ["planted-1", "planted-3"], ["planted-1"]], method, log)
    assert log
    assert not any(b"planted" in encode(message) for _, message in log)


def test_a_relay_that_swaps_keys_is_noticed(tmp_path: Path) -> None:
    """The coordinator seals a key of its own for a party: the signatures do not fit."""
    agreement, identities = agree(tmp_path, NAMES[:2], vf.Config.preset("paper"))
    fingerprint = agreement.fingerprint()
    guests = [Guest(n, np.array(["x"]), "keyed", fingerprint, identities[n]) for n in NAMES[:2]]
    hellos = [guest.hello() for guest in guests]
    keys, signatures = [hello.seal_key for hello in hellos], [hello.seal_signature for hello in hellos]
    honest = AlignStart(session="0" * 32, index=0, seal_keys=keys, seal_signatures=signatures)
    assert len(guests[0].handle(honest)) == 2
    swapped = honest.model_copy(update={"seal_keys": [keys[0], "ab" * 32]})
    with pytest.raises(vf.ProtocolError, match="did not sign"):
        guests[0].handle(swapped)
    # Nor does a mask key pass for a sealing key: signatures name their purpose.
    other = honest.model_copy(
        update={"seal_signatures": [signatures[0], identities["book"].sign("mask", keys[1])]}
    )
    with pytest.raises(vf.ProtocolError, match="did not sign"):
        guests[0].handle(other)


def test_a_sealed_message_opens_for_its_recipient_only() -> None:
    log: list[tuple[str, Message]] = []
    meet([["x"], ["x"], ["x"]], "keyed", log)
    keys = {to: message for to, message in log if isinstance(message, Sealed)}
    start = {to: message for to, message in log if isinstance(message, AlignStart)}
    guest = Guest("film", np.array(["x"]), "keyed", "a", Anybody())
    hello = guest.hello()
    mine = start["book"].model_copy(
        update={"seal_keys": [start["book"].seal_keys[0], hello.seal_key, hello.seal_key]}
    )
    guest.handle(mine)
    with pytest.raises(vf.ProtocolError, match="sealed message was changed"):
        guest.handle(keys["book"].model_copy(update={"peer": 0}))


def spelled(parties: list[vf.PartyData]) -> list[vf.PartyData]:
    """Each party writes the users its own way, in its own order, and has some that others lack."""
    out = []
    for number, party in enumerate(parties):
        table = party.ratings
        rng = np.random.default_rng(number)
        rows = np.sort(rng.permutation(table.n_users)[: table.n_users - 5 * number])[
            :: 1 if number % 2 else -1
        ]
        chosen = table.select_users(np.ascontiguousarray(rows))
        write = (str.upper, str.lower, str.title)[number % 3]
        users = np.array([f" {write(str(user))}" for user in chosen.user_ids])
        out.append(vf.PartyData(party.name, replace(chosen, user_ids=users)))
    return out


@pytest.mark.parametrize("method", ["keyed", "ecdh"])
def test_align_then_train(tmp_path: Path, small_parties: list[vf.PartyData], method: str) -> None:
    if method == "ecdh":
        pytest.importorskip("private_set_intersection", reason="the extra 'psi' is not installed")
    federated = trial(tmp_path, spelled(small_parties), alignment=method)
    federated.run()
    assert not federated.errors
    users = [
        [str(u).strip().lower() for u in federated.runs[n].parties[0].ratings.user_ids]
        for n in federated.parties
    ]
    assert users[0] == users[1] == users[2]
    # The same as training on one machine with the users in that order.
    parties = [federated.runs[name].parties[0] for name in federated.parties]
    shared = parties[0].ratings.user_ids
    pooled = [vf.PartyData(p.name, replace(p.ratings, user_ids=shared)) for p in parties]
    parts = [federated.runs[name].parts[0] for name in federated.parties]
    run = vf.train(pooled, federated.agreement.config, parts=parts, stack=False)
    assert torch.equal(run.public, federated.public(parties[0].name))


@pytest.mark.parametrize("send", [1, 2, 3])
@pytest.mark.parametrize("who", [SERVER, "party-0", "party-1"])
def test_killed_while_aligning(
    tmp_path: Path, small_parties: list[vf.PartyData], who: str, send: int
) -> None:
    federated = trial(tmp_path, spelled(small_parties), alignment="keyed")
    federated.run({who: killed_at(send)})
    assert not federated.errors
    assert len({federated.runs[name].parties[0].ratings.n_users for name in federated.parties}) == 1


def test_who_comes_without_alignment_makes_all_align_again(
    tmp_path: Path, small_parties: list[vf.PartyData]
) -> None:
    """One party lost its folder before training began; the others find their users anew with it."""
    parties = spelled(small_parties)
    federated = trial(tmp_path, parties, alignment="keyed")
    for name in (SERVER, "party-0", "party-1"):
        federated.start(name)
    federated.start("party-2", killed_at(4), restart=False).join(20)  # aligned, and gone before it joins
    federated_folder = tmp_path / "run-party-2"
    assert (federated_folder / "federation.txt").is_file()
    import shutil

    shutil.rmtree(federated_folder)
    federated.start("party-2")
    federated.join()
    assert not federated.errors
    assert isinstance(federated, Trial)
    assert len({federated.runs[name].parties[0].ratings.n_users for name in federated.parties}) == 1

"""A federation with hostile members: rubbish, replays and lies, a coordinator that cheats, and what each of them sees."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from test_federation import PATIENT, Fault, assert_same, in_round, killed_at, local, settings, trial

import verfedgnn as vf
from hub import SERVER, Clock, wait_until
from verfedgnn.protocol.messages import (
    Hello,
    Refused,
    RoundReply,
    RoundStart,
    ShareRequest,
    Waiting,
    Welcome,
    decode,
    encode,
)

# -- hostile input -------------------------------------------------------------------------------------------------------------


def corrupt(change: Callable[[bytearray], bytes]) -> Callable[[RoundReply], bytes]:
    return lambda reply: change(bytearray(encode(reply)))


RUBBISH: dict[str, Callable[[RoundReply], bytes]] = {
    "random": lambda reply: np.random.default_rng(0).bytes(5000),
    "empty": lambda reply: b"",
    "truncated": corrupt(lambda data: bytes(data[:-7])),
    "longer": corrupt(lambda data: bytes(data) + b"\0" * 9),
    "oversize announced": corrupt(lambda data: bytes(data[:12]) + b"\xff" * 8 + bytes(data[20:])),
    "unknown kind": corrupt(lambda data: bytes(data[:6]) + b"\x63" + bytes(data[7:])),
    "other version": corrupt(lambda data: bytes(data[:4]) + b"\x63\0" + bytes(data[6:])),
    "wrong shape": lambda reply: encode(reply.model_copy(update={"gradient": np.zeros(3, np.int8)})),
    "wrong type": lambda reply: encode(reply.model_copy(update={"gradient": np.zeros(3, np.float32)})),
    "not a number": lambda reply: encode(reply.model_copy(update={"gradient": np.full(9, np.nan, np.float32)})),
    "future round": lambda reply: encode(reply.model_copy(update={"round": 10**6})),
    "future attempt": lambda reply: encode(reply.model_copy(update={"attempt": 60_000})),
    "nothing asked for": lambda reply: encode(reply.model_copy(update={"gradient": None})),
    "a message of the coordinator's": lambda reply: encode(
        RoundStart(
            round=1, active=[0], evaluate=False, best_round=0, updates_from=0,
            update_parties=[], neighbourhood_parties=[],
        )
    ),
    "another's name": lambda reply: encode(
        Hello(party="party-2", users=1, items=1, ratings=1, scale=(1.0, 5.0), config="x")
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", RUBBISH)
def test_rubbish_is_refused_counted_and_named(
    tmp_path: Path,
    small_parties: list[vf.PartyData],
    kind: str,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "verfedgnn.federation")
    logging.getLogger("verfedgnn.federation").propagate = True
    federated = trial(tmp_path, small_parties, min_parties=2, timeouts=PATIENT)
    bad = small_parties[0].name
    federated.run_without(bad, clock, in_round(4, RUBBISH[kind]))
    service = federated.services[SERVER]
    assert service.offences == {bad: 1}
    refused = [record for record in caplog.records if record.getMessage() == "message refused"]
    # What the party sent before it noticed its exclusion may be refused, too, but is no further offence.
    assert {getattr(record, "fields")["party"] for record in refused} == {bad}  # noqa: B009
    assert isinstance(federated.errors[bad][0], vf.ProtocolError), "the sender gets the reason"
    assert set(federated.errors) == {bad}, "no other party is affected"
    assert service.coordinator.round == 9
    assert torch.equal(federated.public(small_parties[1].name), federated.public(small_parties[2].name))


def test_replayed_and_overtaken_replies_change_nothing(
    tmp_path: Path, small_parties: list[vf.PartyData]
) -> None:
    """A reply of an earlier round arrives again in every round, before the right one."""
    first: list[bytes] = []
    federated = trial(tmp_path, small_parties)

    def replay(data: bytes) -> bytes:
        if isinstance(decode(data), RoundReply):
            if first:
                federated.hub.deliver(SERVER, type(event)("message", small_parties[0].name, first[0]), wire())
            first.append(data)
        return data

    def wire() -> Any:
        return federated.hub.wires[small_parties[0].name]

    from verfedgnn.federation.transport import TransportEvent

    event = TransportEvent("message", "")
    federated.run({small_parties[0].name: replay})
    assert len(first) == 9
    assert_same(federated, local(small_parties))


def lying(data: bytes) -> bytes:
    """Send other values than a gradient from round 4 on."""
    message = decode(data)
    if isinstance(message, RoundReply) and message.round >= 4 and message.gradient is not None:
        noise = np.random.default_rng(0).integers(0, 100, message.gradient.shape)
        return encode(message.model_copy(update={"gradient": noise.astype(message.gradient.dtype)}))
    return data


def test_a_party_that_lies_under_its_mask_stops_the_training(
    tmp_path: Path, small_parties: list[vf.PartyData]
) -> None:
    """A sum out of range changes nothing; after three, the coordinator stops and says what is known."""
    federated = trial(tmp_path, small_parties)
    for name in (SERVER, *federated.parties):
        federated.start(name, lying if name == small_parties[0].name else None)
    federated.threads[0].join(180)
    federated.stopping = True
    federated.join()
    (error,) = federated.errors[SERVER]
    assert "One of party-0, party-1, party-2 sends values that are not gradients" in str(error)
    assert federated.services[SERVER].stage.record.abandoned == 3


def test_a_party_with_a_key_nobody_can_use_is_refused_itself(
    tmp_path: Path, small_parties: list[vf.PartyData]
) -> None:
    """An unsigned or low-order key is refused before the other parties see it."""
    for change in ({"mask_signature": "00"}, {"mask_key": "00" * 32}):
        folder = tmp_path / next(iter(change))
        federated = trial(folder, small_parties)

        def forge(data: bytes, change: dict[str, Any] = change) -> bytes:
            message = decode(data)
            return encode(message.model_copy(update=change)) if isinstance(message, Hello) else data

        federated.start(SERVER)
        federated.start(small_parties[1].name)
        federated.start(small_parties[0].name, forge).join(180)
        federated.stopping = True
        federated.join()
        assert set(federated.errors) == {small_parties[0].name}
        assert "mask key is not usable" in str(federated.errors[small_parties[0].name][0])


NUMBERS = [
    {"error": float("inf")}, {"error": 1e300}, {"count": 10**400}, {"error": float("nan")},
]  # fmt: skip


@pytest.mark.parametrize("update", NUMBERS, ids=str)
def test_numbers_beyond_all_bounds_are_refused(
    tmp_path: Path, small_parties: list[vf.PartyData], update: dict[str, Any], clock: Clock
) -> None:
    federated = trial(tmp_path, small_parties, min_parties=2, timeouts=PATIENT)
    bad = small_parties[0].name
    federated.run_without(bad, clock, in_round(3, lambda reply: encode(reply.model_copy(update=update))))
    assert set(federated.errors) == {bad}
    assert federated.services[SERVER].coordinator.round == 9


def test_a_training_is_not_thrown_away_for_a_message(
    tmp_path: Path, small_parties: list[vf.PartyData]
) -> None:
    federated = trial(tmp_path, small_parties, alignment="keyed")
    done = threading.Event()

    def realign(data: bytes) -> bytes:
        if isinstance(decode(data), RoundStart) and not done.is_set() and decode(data).round == 5:  # type: ignore[attr-defined]
            done.set()
            return encode(Waiting(missing=["somebody"], align=True))
        return data

    for name in (SERVER, *federated.parties):
        federated.start(name, realign if name == SERVER else None)
    wait_until(lambda: bool(federated.errors))
    federated.stopping = True
    federated.join()
    assert any(
        "the training here is kept" in str(error) for errors in federated.errors.values() for error in errors
    )
    for name in federated.parties:
        assert (tmp_path / f"run-{name}" / "checkpoint" / "party").is_dir()


def test_a_party_that_goes_on_and_on_is_no_longer_heard(
    tmp_path: Path, small_parties: list[vf.PartyData], clock: Clock
) -> None:
    federated = trial(tmp_path, small_parties, min_parties=2, timeouts=PATIENT)

    def flood(reply: RoundReply) -> bytes:
        from verfedgnn.federation.transport import TransportEvent

        bad = federated.hub.wires[small_parties[0].name]
        for _ in range(200):
            federated.hub.deliver(SERVER, TransportEvent("message", bad.name, b"rubbish"), bad)
        return encode(reply)

    federated.run_without(small_parties[0].name, clock, in_round(3, flood))
    service = federated.services[SERVER]
    assert service.offences[small_parties[0].name] == 20
    assert service.coordinator.round == 9


# -- a coordinator that cannot be trusted ----------------------------------------------------------------------------------------


def tampering(kind: type, change: Callable[[Any], Any]) -> Fault:
    def fault(data: bytes) -> bytes:
        message = decode(data)
        return encode(change(message)) if isinstance(message, kind) else data

    return fault


EVIL: dict[str, tuple[type, Callable[[Any], Any], str]] = {
    "keys of its own": (
        ShareRequest,
        lambda m: m.model_copy(update={"mask_keys": [m.mask_keys[0], "ab" * 32, "cd" * 32]}),
        "did not sign",
    ),
    "a sum over one": (
        RoundStart,
        lambda m: m.model_copy(update={"active": m.active[:1]}),
        "fewer than the agreed|without being",
    ),
    "parties that do not exist": (
        RoundStart,
        lambda m: m.model_copy(update={"active": [0, 1, 2, 9]}),
        "do not exist",
    ),
    "other parameters": (
        Welcome,
        lambda m: m.model_copy(update={"digest": "ab" * 32}),
        "does not begin with the public parameters",
    ),
    "other item counts": (Welcome, lambda m: m.model_copy(update={"items": [5, 5, 5]}), "item counts"),
    "another configuration": (
        Welcome,
        lambda m: m.model_copy(update={"config": "x"}),
        "not the one agreed on",
    ),
    "updates of another shape": (
        RoundStart,
        lambda m: m if m.updates is None else m.model_copy(update={"updates": m.updates[:-1]}),
        "updates of shape",
    ),
}


@pytest.mark.parametrize("kind", EVIL)
def test_parties_refuse_a_coordinator_that_breaks_the_agreement(
    tmp_path: Path, small_parties: list[vf.PartyData], kind: str
) -> None:
    message, change, reason = EVIL[kind]
    federated = trial(tmp_path, small_parties)
    for name in (SERVER, *federated.parties):
        federated.start(name, tampering(message, change) if name == SERVER else None)
    for thread in federated.threads[1:]:
        thread.join(180)
    federated.stopping = True
    federated.join(180)
    assert set(federated.errors) - {SERVER} == set(federated.parties)
    for name in federated.parties:
        (error,) = federated.errors[name]
        assert isinstance(error, vf.ProtocolError)
    import re

    assert any(re.search(reason, str(federated.errors[name][0])) for name in federated.parties)


def test_more_rounds_than_the_agreement_allows_are_refused(
    tmp_path: Path, small_parties: list[vf.PartyData]
) -> None:
    """Attack: with batches, the number of rounds follows from the number of all ratings, which the coordinator tells."""
    federated = trial(tmp_path, small_parties, vf.Config.preset("paper", epochs=2))
    many = tampering(Welcome, lambda message: message.model_copy(update={"ratings": 10**9}))
    for name in (SERVER, *federated.parties):
        federated.start(name, many if name == SERVER else None)
    for thread in federated.threads[1:]:
        thread.join(180)
    federated.stopping = True
    federated.join(180)
    for name in federated.parties:
        (error,) = federated.errors[name]
        assert "rounds, and the agreement allows 10,000: " in str(error)


def test_parties_told_different_things_do_not_add_up(
    tmp_path: Path, small_parties: list[vf.PartyData]
) -> None:
    """A coordinator that gives all but one party other parameters gets noise instead of that party's gradient."""
    from verfedgnn.gnn.model import Model
    from verfedgnn.protocol.replica import parameters_digest

    chosen = settings(evaluate_every=9)
    nothing = torch.zeros(Model(chosen.model, small_parties[0].ratings.n_users).size)

    def zero(message: Welcome) -> Welcome:
        if message.index == 0:
            return message
        copy = {"parameters": nothing.numpy(), "accumulator": nothing.numpy()}
        return message.model_copy(update={**copy, "digest": parameters_digest(nothing, nothing)})

    federated = trial(tmp_path, small_parties, chosen)
    for name in (SERVER, *federated.parties):
        federated.start(name, tampering(Welcome, zero) if name == SERVER else None)
    federated.threads[0].join(180)
    federated.stopping = True
    federated.join()
    assert "sums were out of range" in str(federated.errors[SERVER][0])


def test_a_round_is_answered_once(tmp_path: Path, small_parties: list[vf.PartyData]) -> None:
    """Two answers under one mask would reveal their difference."""
    federated = trial(tmp_path, small_parties)
    federated.run()
    party = federated.services[small_parties[0].name].party
    starts = [decode(data) for _, to, data in federated.hub.seen if to == small_parties[0].name]
    again = [message for message in starts if isinstance(message, RoundStart)][-1]
    with pytest.raises(vf.ProtocolError, match="a second time"):
        party.handle(again)


# -- what the coordinator sees --------------------------------------------------------------------------------------------


def test_the_coordinator_receives_no_single_partys_values(
    tmp_path: Path, small_parties: list[vf.PartyData]
) -> None:
    """Masked bytes are uniform (chi-square, total error rate 1e-6) and unrelated to the values under the mask."""
    federated = trial(tmp_path, small_parties)
    federated.run()
    unmasked = trial(tmp_path / "plain", small_parties, settings(masking=False))
    unmasked.run()
    for party in small_parties:
        masked, plain = (
            [
                m
                for m in map(decode, (d for n, _, d in t.hub.seen if n == party.name))
                if isinstance(m, RoundReply)
            ]
            for t in (federated, unmasked)
        )
        assert [m.round for m in masked] == [m.round for m in plain] == list(range(1, 10))
        for use, values in (("gradient", 8), ("neighbourhoods", 256)):  # residues for sums of three; bytes
            raw = np.concatenate([getattr(m, use).view(np.uint8).reshape(-1) for m in masked])
            counts = np.bincount(raw, minlength=values)
            assert len(counts) == values
            chi = float(((counts - len(raw) / values) ** 2 / (len(raw) / values)).sum())
            assert chi < chi2.isf(1e-7, values - 1)  # six statistics
        for with_mask, without in zip(masked, plain, strict=True):
            assert with_mask.neighbourhoods is not None
            assert without.neighbourhoods is not None
            assert (with_mask.neighbourhoods == without.neighbourhoods).mean() < 0.01


PLANTED = "planted-7f3a"


def test_nothing_private_in_logs_status_or_the_coordinators_folder(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Planted user and item ids appear nowhere but in the party's own folder."""
    from dataclasses import replace

    from verfedgnn.federation.status import exposition, make_members_tables, make_tables, page

    caplog.set_level(logging.DEBUG)
    logging.getLogger("verfedgnn.federation").propagate = True
    parties = vf.split_items(
        vf.data.synthetic_ratings(users=120, items=90, ratings=4000, seed=5), parties=3, seed=5
    )
    marked = []
    for party in parties:
        table = party.ratings
        users = np.array([f"{PLANTED}-user-{user}" for user in table.user_ids])
        items = np.array([f"{PLANTED}-item-{item}" for item in table.item_ids])
        marked.append(vf.PartyData(party.name, replace(table, user_ids=users, item_ids=items)))
    federated = trial(tmp_path, marked, alignment="keyed", min_parties=2, timeouts=PATIENT)
    federated.run_without(parties[0].name, clock, in_round(4, RUBBISH["truncated"]))
    assert federated.services[SERVER].coordinator.round == 9
    own = (tmp_path / f"run-{parties[1].name}").rglob("*.parquet")
    assert any(PLANTED.encode() in path.read_bytes() for path in own), "the search finds what is there"
    texts = [record.getMessage() + str(getattr(record, "fields", "")) for record in caplog.records]
    status = federated.services[SERVER].publisher.status
    shown = [
        page(make_tables(status)),
        page(make_members_tables(status)),
        exposition(status),
        str(status),
        *capfd.readouterr(),
    ]
    files = [path.read_bytes() for path in (tmp_path / "run-server").rglob("*") if path.is_file()]
    files += [(tmp_path / f"run-{party.name}" / "status.json").read_bytes() for party in parties]
    assert len(texts) > 20
    assert not any(PLANTED in text for text in texts + shown)
    assert not any(PLANTED.encode() in data for data in files)
    assert not any(PLANTED.encode() in data for _, _, data in federated.hub.seen)


def test_nobody_receives_ratings_or_item_embeddings(
    tmp_path: Path, small_parties: list[vf.PartyData]
) -> None:
    """Without masks, with kills: what all members received together holds no row of items and no run of ratings."""
    federated = trial(tmp_path, small_parties, settings(masking=False))
    secrets: set[bytes] = set()
    for party in small_parties:
        for kind in (np.float32, np.int8):
            ratings = party.ratings.rating.astype(kind)
            secrets |= {ratings[start : start + 16].tobytes() for start in range(0, len(ratings) - 16, 16)}

    def watch(name: str, kill: int) -> Fault:
        killed = killed_at(kill)

        def fault(data: bytes) -> bytes | None:
            message = decode(data)
            if isinstance(message, RoundReply) and message.round in (1, 5, 9):
                items = federated.services[name].party.progress.private.parameters["items"].numpy()
                secrets.update(row[:3].tobytes() for row in items)
            return killed(data)

        return fault

    faults = {
        party.name: watch(party.name, kill) for party, kill in zip(small_parties, (4, 8, 99), strict=True)
    }
    federated.run({SERVER: killed_at(20), **faults})
    assert not federated.errors
    kept = b"".join(path.read_bytes() for path in tmp_path.glob("run-party-*/checkpoint/**/*.safetensors"))
    assert sum(secret in kept for secret in secrets) > 20, "the search finds what is there"
    messages = [decode(data) for _, _, data in federated.hub.seen]
    arrays = [getattr(message, name) for message in messages for name in message.arrays]
    unpacked = [values.tobytes() for values in arrays if values is not None]
    received = b"".join([*(data for _, _, data in federated.hub.seen), *unpacked])
    assert not any(secret in received for secret in secrets)


def test_refusals_reach_both_sides(tmp_path: Path, small_parties: list[vf.PartyData]) -> None:
    federated = trial(tmp_path, small_parties)

    def other_config(data: bytes) -> bytes:
        message = decode(data)
        return encode(message.model_copy(update={"config": "other"})) if isinstance(message, Hello) else data

    federated.start(SERVER)
    federated.start(small_parties[0].name, other_config).join(180)
    federated.stopping = True
    federated.join()
    assert "configuration differs" in str(federated.errors[small_parties[0].name][0])
    status = federated.services[small_parties[0].name].publisher.status
    assert status["waits_for"] == [], "the coordinator that refuses is not absent"
    assert federated.services[SERVER].offences == {small_parties[0].name: 1}
    assert any(
        isinstance(decode(data), Refused) for _, to, data in federated.hub.seen if to == small_parties[0].name
    )

"""Messages of any size in frames of a bounded size: what a hostile member can send instead, and how much memory it can occupy."""

from __future__ import annotations

import random
import time
import tracemalloc
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st
from test_federation import assert_same, local, settings, trial

import verfedgnn as vf
from hub import SERVER, Killed
from verfedgnn.core.errors import ProtocolError
from verfedgnn.federation import frames
from verfedgnn.federation.coordinator_service import MOST_OFFENCES
from verfedgnn.federation.frames import (
    FRAME_BYTES,
    FRAME_HEAD,
    FrameJoiner,
    TransportEvent,
    cut_message,
    size_of,
)
from verfedgnn.gnn.model import Model
from verfedgnn.protocol.aggregation import largest_from_coordinator, largest_from_party
from verfedgnn.protocol.messages import EncodedMessage, RoundReply, Welcome, decode, encode, encode_parts

SMALL = 1 << 6
"""Bytes of a frame in these tests."""


@pytest.fixture
def small_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "FRAME_BYTES", SMALL)


def as_frames(data: bytes) -> list[bytes]:
    return list(cut_message((data,)))


@settings_of_hypothesis(max_examples=40)
@given(sizes=st.lists(st.integers(0, 200), max_size=6))
def test_a_message_comes_back_from_its_frames(sizes: list[int]) -> None:
    kept = frames.FRAME_BYTES
    frames.FRAME_BYTES = SMALL
    try:
        rng = random.Random(0)
        message: EncodedMessage = tuple(rng.randbytes(size) for size in sizes)
        sent = list(cut_message(message))
        assert len(sent) == max(1, -(-sum(sizes) // SMALL))
        assert max(map(len, sent)) <= SMALL + FRAME_HEAD.size
        joiner = FrameJoiner(sum(sizes))
        *parts, last = [joiner.take("film", frame) for frame in sent]
        assert parts == [None] * len(parts)
        assert last == b"".join(message)
    finally:
        frames.FRAME_BYTES = kept


def test_a_frame_cannot_hold_many_messages() -> None:
    """The attack: one frame of the largest size full of empty messages, each of which would cost the receiver time."""
    frame = FRAME_HEAD.pack(0, 0) * (FRAME_BYTES // FRAME_HEAD.size)
    assert FrameJoiner(100).join(TransportEvent("message", "film", frame)).kind == "broken"


@pytest.mark.parametrize(
    "end", [b"short", FRAME_HEAD.pack(101, 0) + bytes(101), FRAME_HEAD.pack(9, 0) + b"8 bytes."]
)
def test_nothing_may_follow_a_message_in_its_frame(end: bytes) -> None:
    (frame,) = as_frames(b"good")
    assert FrameJoiner(100).join(TransportEvent("message", "film", frame)).data == b"good"
    assert FrameJoiner(100).join(TransportEvent("message", "film", frame + end)).kind == "broken"


@pytest.mark.usefixtures("small_frames")
def test_messages_of_several_peers_do_not_mix() -> None:
    joiner = FrameJoiner(1000)
    film, book = as_frames(b"f" * 150), as_frames(b"b" * 150)
    found = [
        joiner.take(peer, frame)
        for pair in zip(film, book, strict=True)
        for peer, frame in zip("fb", pair, strict=True)
    ]
    assert found[-2:] == [b"f" * 150, b"b" * 150]


@pytest.mark.usefixtures("small_frames")
@pytest.mark.parametrize(
    "order",
    [[0, 2], [0, 0], [0, 1, 1], [0, 1, 0]],
    ids=["gap", "first twice", "twice", "again from the start"],
)
def test_gaps_and_repeated_frames_are_refused_once(order: list[int]) -> None:
    """The attack: frames in another order than the message's. The rest of that message is ignored, the next one arrives."""
    joiner = FrameJoiner(1000)
    sent = as_frames(bytes(200))
    *good, bad = order
    assert [joiner.take("film", sent[place]) for place in good] == [None] * len(good)
    with pytest.raises(ProtocolError, match="where byte"):
        joiner.take("film", sent[bad])
    assert joiner.take("film", sent[3]) is None
    assert joiner.take("film", as_frames(b"next")[0]) == b"next"


@pytest.mark.usefixtures("small_frames")
@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"short",
        FRAME_HEAD.pack(2**63, 0) + bytes(SMALL),
        FRAME_HEAD.pack(1001, 0) + bytes(SMALL),
        FRAME_HEAD.pack(200, 0) + bytes(SMALL - 1),
        FRAME_HEAD.pack(200, 0) + bytes(SMALL + 1),
        FRAME_HEAD.pack(10, 0) + bytes(11),
        FRAME_HEAD.pack(0, 0) + bytes(1),
    ],
    ids=[
        "empty",
        "short",
        "huge",
        "too large",
        "too short a frame",
        "too long a frame",
        "too long an end",
        "nothing",
    ],
)
def test_a_frame_without_sense_is_refused(frame: bytes) -> None:
    with pytest.raises(ProtocolError, match=r"bytes"):
        FrameJoiner(1000).take("film", frame)


@pytest.mark.usefixtures("small_frames")
def test_one_message_cannot_become_another_on_its_way() -> None:
    """The attack: later frames announce another size, or continue a message that never began."""
    joiner = FrameJoiner(1000)
    assert joiner.take("film", FRAME_HEAD.pack(1000, SMALL) + bytes(SMALL)) is None
    joiner.take("film", as_frames(bytes(200))[0])
    with pytest.raises(ProtocolError, match="where byte"):
        joiner.take("film", FRAME_HEAD.pack(900, SMALL) + bytes(SMALL))


@pytest.mark.usefixtures("small_frames")
@pytest.mark.parametrize("kind", ["joined", "left"])
def test_a_new_connection_ends_the_message_of_the_old_one(kind: Literal["joined", "left"]) -> None:
    joiner = FrameJoiner(1000)
    old, new = as_frames(b"o" * 150), as_frames(b"n" * 150)
    joiner.take("film", old[0])
    assert joiner.join(TransportEvent(kind, "film")).kind == kind
    assert not joiner._incomplete
    assert [joiner.take("film", frame) for frame in new] == [None, None, b"n" * 150]


def test_who_announces_much_and_sends_little_occupies_little() -> None:
    """The attack: each of three members announces the largest message and sends its first frame only."""
    joiner = FrameJoiner(largest=1 << 33)
    frame = FRAME_HEAD.pack(1 << 33, 0) + bytes(FRAME_BYTES)
    before = resident_bytes()
    for number in range(3):
        assert joiner.take(f"party-{number}", frame) is None
    assert resident_bytes() - before < 3 * FRAME_BYTES * 1.1 + (1 << 22)
    for number in range(3):
        with pytest.raises(ProtocolError):  # its second message takes the place of the first
            joiner.take(f"party-{number}", frame)
    assert not joiner._incomplete


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def test_a_full_copy_is_held_once_for_all_parties() -> None:
    """Ten Welcomes that wait for slow parties take the memory of one full copy, and keep the values of their round."""
    import torch

    from verfedgnn.protocol.replica import Replica

    config = vf.Config.preset("best").for_data(2000, 80_000)
    model = Model(config.model, 2000)
    replica = Replica.initial(config, model, [3, 4], 100, 3.0, torch.device("cpu"))
    fields = {
        "items": [3, 4],
        "stay": "s",
        "training": "t",
        "config": "c",
        "ratings": 100,
        "typical": 3.0,
        "round": 0,
        "digest": "d",
    }
    tracemalloc.start()
    waiting = [encode_parts(Welcome(index=index, **fields, **replica.full_copy())) for index in range(10)]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1.5 * size_of(waiting[0])
    expected = replica.parameters.clone()
    replica.parameters += 1
    message = decode(b"".join(waiting[9]))
    assert isinstance(message, Welcome)
    np.testing.assert_array_equal(message.parameters, expected.numpy())
    del waiting, message
    assert not replica._copies


@pytest.mark.parametrize("preset", ["paper", "best", "private"])
@pytest.mark.parametrize("parties", [3, 300])
def test_every_message_of_a_training_is_within_its_announced_size(preset: str, parties: int) -> None:
    """The largest arrays that the configuration allows, unpackable: the bounds hold, and are not loose by more than a few times."""
    from verfedgnn.privacy.protections import protection_of
    from verfedgnn.protocol.aggregation import neighbourhood_shape, neighbourhood_type

    config = vf.Config.preset(preset, masking=True)
    model = Model(config.model, 20_000)
    rng = np.random.default_rng(0)
    kind = protection_of(config, parties).sent_type
    gradient = rng.integers(0, 2 ** (8 * kind.itemsize), model.size, kind, endpoint=False)
    shared = None
    if config.exchange.sends:
        shape = neighbourhood_shape(config, model)
        width = neighbourhood_type(config)
        shared = rng.integers(0, 2 ** (8 * width.itemsize), shape, width, endpoint=False)
    reply = size_of(encode_parts(RoundReply(round=1, gradient=gradient, neighbourhoods=shared)))
    assert reply <= largest_from_party(config, model, parties) < 1.1 * reply + (2 << 20)
    assert largest_from_coordinator(config, model) >= 4 * 3 * model.size


def test_a_training_in_small_frames_with_kills_between_them(
    tmp_path: Path, small_parties: list[vf.PartyData], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every message travels in many frames. The coordinator is killed within a Welcome, a party within a reply, and the others go on."""
    monkeypatch.setattr(frames, "FRAME_BYTES", 512)
    federated = trial(tmp_path, small_parties)
    kills = {SERVER: [9, 200], small_parties[0].name: [50]}
    sent = dict.fromkeys(kills, 0)

    def count(sender: str) -> None:
        if sender in kills:
            sent[sender] += 1
            if sent[sender] in kills[sender]:
                raise Killed

    federated.hub.before_frame = count
    federated.run()
    assert_same(federated, local(small_parties))
    assert all(sent[name] > max(kills[name]) for name in kills)


def test_a_party_that_breaks_its_frames_is_barred_and_nobody_else(
    tmp_path: Path, small_parties: list[vf.PartyData]
) -> None:
    federated = trial(tmp_path, small_parties, settings(epochs=1))
    bad, good, _ = federated.parties
    federated.start(SERVER, restart=False)
    while SERVER not in federated.services:
        time.sleep(0.01)
    wire = federated.hub.wires[SERVER]
    for _ in range(MOST_OFFENCES + 5):
        wire.events.put(TransportEvent("message", bad, FRAME_HEAD.pack(2**50, 0) + bytes(100)))
        wire.events.put(TransportEvent("message", good, FRAME_HEAD.pack(2**50, 2**20) + bytes(100)))
    service = federated.services[SERVER]
    while not wire.events.empty():
        time.sleep(0.01)
    federated.stopping = True
    federated.join()
    assert dict(service.offences) == {bad: MOST_OFFENCES}


def test_a_party_refuses_more_than_the_agreement_announces(
    tmp_path: Path, small_parties: list[vf.PartyData]
) -> None:
    """The attack: a hostile coordinator sends a Welcome of thousands of times the agreed size, to fill a party's memory."""
    federated = trial(tmp_path, small_parties, settings(epochs=1), min_parties=2)
    victim = small_parties[0].name

    def grow(data: bytes) -> bytes:
        message = decode(data)
        if isinstance(message, Welcome) and not message.index:
            return encode(message.model_copy(update={"parameters": np.zeros(1 << 20, np.float32)}))
        return data

    federated.start(SERVER, grow)
    for name in federated.parties:
        federated.start(name)
    while victim not in federated.errors:
        time.sleep(0.01)
    federated.stopping = True
    federated.join()
    assert "where at most" in str(federated.errors[victim][0])

"""The byte encoding: what each message holds, that it comes back as it was, and that rubbish is refused."""

from __future__ import annotations

import contextlib
import json
import struct
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
import safetensors.numpy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from message_samples import ALL
from verfedgnn import ProtocolError
from verfedgnn.core.errors import DivergedError
from verfedgnn.privacy.masking import GRADIENT, add_masks, remove_masks
from verfedgnn.protocol import messages as align
from verfedgnn.protocol.forward_backward import from_fixed, to_fixed
from verfedgnn.protocol.integer_packing import TYPES, pack_integers, unpack_integers
from verfedgnn.protocol.messages import (
    HEADER,
    KINDS,
    MAGIC,
    VERSION,
    About,
    Finish,
    Finished,
    Hello,
    ListSignature,
    MaskShares,
    MembersPage,
    Message,
    Refused,
    RoundReply,
    RoundShares,
    RoundStart,
    ShareRequest,
    Survivors,
    Unmask,
    Waiting,
    Welcome,
    decode,
    encode,
)

# Everything a message may hold. A field added to the protocol must be added here, and to docs/protocol.md, on purpose.
FIELDS = {
    Hello: {
        "party", "users", "items", "ratings", "scale", "config", "stay", "agreement", "alignment", "training", "round", "digest",
        "released", "lost", "mask_key", "mask_signature",
    },
    Welcome: {
        "index", "items", "stay", "training", "config", "ratings", "typical", "round", "parameters", "accumulator", "digest",
    },
    RoundStart: {
        "round", "attempt", "active", "evaluate", "best_round", "updates_from", "update_parties",
        "updates", "neighbourhood_parties", "neighbourhood_round", "neighbourhoods", "parameters", "accumulator",
    },
    RoundReply: {"round", "attempt", "gradient", "neighbourhoods", "error", "count", "digest"},
    ShareRequest: {"round", "attempt", "request", "active", "mask_keys", "mask_signatures"},
    MaskShares: {"round", "attempt", "request", "key", "sealed", "committed"},
    RoundShares: {"round", "attempt", "round_keys", "sealed"},
    Survivors: {"round", "attempt", "survivors", "signatures"},
    ListSignature: {"round", "attempt", "signature"},
    Unmask: {"round", "attempt", "shares"},
    Finish: {"round", "best_round", "parameters", "digest"},
    Finished: {"digest"},
    Refused: {"reason"},
    Waiting: {"missing", "align", "second"},
    About: {"version", "run", "word", "gain"},
    MembersPage: {"members", "nights", "offer"},
    align.AlignHello: {"party", "agreement", "users", "seal_key", "seal_signature"},
    align.AlignStart: {"session", "index", "seal_keys", "seal_signatures"},
    align.Sealed: {"session", "peer", "data"},
    align.Pseudonyms: {"session", "values"},
    align.UserRows: {"session", "users", "rows"},
    align.Aligned: {"session", "users"},
}  # fmt: skip


def test_what_each_message_contains() -> None:
    assert set(KINDS.values()) == set(FIELDS)
    for cls, names in FIELDS.items():
        assert set(cls.model_fields) == names


@pytest.mark.parametrize("message", ALL, ids=lambda m: type(m).__name__)
def test_comes_back_as_it_was(message: Message) -> None:
    again = decode(encode(message))
    assert type(again) is type(message)
    for name in type(message).model_fields:
        np.testing.assert_equal(getattr(again, name), getattr(message, name))


@pytest.mark.parametrize("message", ALL, ids=lambda m: type(m).__name__)
def test_any_cut_is_refused(message: Message) -> None:
    data = encode(message)
    for size in range(len(data)):
        with pytest.raises(ProtocolError):
            decode(data[:size])
    with pytest.raises(ProtocolError):
        decode(data + b"x")


@settings(max_examples=1000)
@given(data=st.data(), which=st.sampled_from(ALL))
def test_changed_bytes_never_do_worse_than_an_error(data: st.DataObject, which: Message) -> None:
    """3,000 messages with up to four bytes changed: decoded or refused, nothing else."""
    raw = bytearray(encode(which))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ProtocolError):
        decode(bytes(raw))


@settings(max_examples=200)
@given(raw=st.binary(max_size=200))
def test_random_bytes_are_refused(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(raw)
    with pytest.raises(ProtocolError):
        decode(MAGIC + raw)


def forged(kind: int, text: bytes, body: bytes = b"", version: int = VERSION) -> bytes:
    return HEADER.pack(MAGIC, version, kind, len(text), len(body)) + text + body


def test_hostile_messages() -> None:
    with pytest.raises(ProtocolError, match="'digest': missing"):
        decode(forged(5, b'{"round": 1, "best_round": 0}'))
    with pytest.raises(ProtocolError, match="error"):
        decode(forged(4, b'{"round": 1, "error": -1.0}'))
    with pytest.raises(ProtocolError, match="version 9"):
        decode(forged(5, b"{}", version=9))
    with pytest.raises(ProtocolError, match="unknown message kind"):
        decode(forged(77, b"{}"))
    with pytest.raises(ProtocolError, match="lengths do not fit"):
        decode(HEADER.pack(MAGIC, VERSION, 5, 10, 2**40) + b"{}")
    with pytest.raises(ProtocolError, match="field"):
        decode(forged(6, b'{"digest": 1}'))
    with pytest.raises(ProtocolError, match="extra"):
        decode(forged(6, b'{"digest": "ab", "more": 1}'))
    with pytest.raises(ProtocolError, match="extra"):
        decode(forged(4, b'{"round": 1, "gradient": [1]}'))
    lying_header = struct.pack("<Q", 2**62) + b"{}"
    with pytest.raises(ProtocolError, match="unreadable arrays"):
        decode(forged(4, b'{"round": 1}', lying_header))
    for array in (np.ones(3, np.int64), np.ones(3, np.float64)):
        with pytest.raises(ProtocolError, match="unexpected array or type"):
            decode(forged(4, b'{"round": 1}', safetensors.numpy.save({"gradient": array})))
    nan = safetensors.numpy.save({"gradient": np.array([np.nan], np.float32)})
    with pytest.raises(ProtocolError, match="not finite"):
        decode(forged(4, b'{"round": 1}', nan))


def test_errors_repeat_no_content() -> None:
    secret = "user-4711"
    for fields in (
        {"round": secret},
        {"round": 1, secret: 1},
        {"round": {secret: 1}},
    ):
        with pytest.raises(ProtocolError) as caught:
            decode(forged(4, json.dumps(fields).encode()))
        assert secret not in str(caught.value)


@given(
    kind=st.sampled_from(TYPES),
    reach=st.integers(1, 2**40),
    share=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    seed=st.integers(0, 999),
    shape=st.lists(st.integers(0, 9), min_size=1, max_size=3),
)
def test_packed_integers_come_back(kind: str, reach: int, share: float, seed: int, shape: list[int]) -> None:
    rng, info = np.random.default_rng(seed), np.iinfo(kind)
    values = rng.integers(max(info.min, -reach), min(info.max, reach), shape, dtype=kind, endpoint=True)
    values[rng.random(shape) >= share] = 0
    found = unpack_integers(pack_integers(values), values.nbytes)
    assert found.dtype == values.dtype
    np.testing.assert_array_equal(found, values)


def test_packed_integers_take_what_they_need() -> None:
    rng = np.random.default_rng(1)
    signs = np.where(rng.random(100_000) < 0.01, rng.choice([-1, 1], 100_000), 0).astype(np.int8)
    entropy = -(0.99 * np.log2(0.99) + 0.01 * np.log2(0.005))
    assert len(pack_integers(signs)) < 2 * entropy * 100_000 / 8
    signs = np.zeros(100_000, np.int8) - (rng.random(100_000) < 0.01)
    masked = add_masks(signs, [], GRADIENT, 5)
    assert masked.dtype == np.uint8
    assert len(pack_integers(masked)) < 5 / 8 * 100_000 + 50
    assert len(pack_integers(rng.integers(-2048, 2048, 100_000).astype(np.int16))) < 12 / 8 * 100_000 + 50


def test_a_step_whose_values_are_mostly_small_takes_little_more_than_its_entropy() -> None:
    step = (12 * np.random.default_rng(1).standard_normal(100_000)).round().astype(np.int16)
    shares = np.unique_counts(step).counts / step.size
    entropy = -(shares * np.log2(shares)).sum()
    packed = pack_integers(step)
    assert len(packed) < 1.05 * entropy / 8 * 100_000
    np.testing.assert_array_equal(unpack_integers(packed, step.nbytes), step)
    for size in (step.size - 8, step.size + 8):  # another size than what was compressed
        packed[12:20] = np.frombuffer(struct.pack("<Q", size), np.uint8)
        with pytest.raises(ProtocolError, match="unreadable"):
            unpack_integers(packed, 2 * step.nbytes)


@given(st.binary(max_size=60), st.integers(0, 50), st.integers(0, 255))
def test_packed_integers_that_are_none_are_refused(noise: bytes, place: int, byte: int) -> None:
    """Noise, and good ones with a byte changed: an error, or other integers of no more than the bytes allowed."""
    for good in (np.arange(-9, 9, dtype=np.int16), np.eye(9, dtype=np.int8)):
        data = pack_integers(good)
        data[place % len(data)] = byte
        for bad in (data, np.frombuffer(noise, np.uint8)):
            with contextlib.suppress(ProtocolError):
                assert unpack_integers(bad, 1000).nbytes <= 1000


def test_a_bitmap_must_say_as_much_as_its_head() -> None:
    size = 1 << 22
    honest = np.zeros(size, np.int8)
    honest[::100] = 1
    full = np.full(size // 8, 255, np.uint8)
    for count in (size, size // 3):  # more than is ever sent so; other than the bitmap says
        signs = np.full(-(-count // 8), 255, np.uint8)
        body = pa.Codec("zstd").compress(np.concatenate([full, signs]))
        head = struct.pack("<BBBBQQ", 1, 0, 1, 1, count, size)
        tracemalloc.start()
        with pytest.raises(ProtocolError, match="unreadable packed integers"):
            unpack_integers(np.frombuffer(head + bytes(body), np.uint8), size)
        assert tracemalloc.get_traced_memory()[1] < 2 * size
        tracemalloc.stop()
    assert (unpack_integers(pack_integers(honest), size) == honest).all()


def test_a_small_message_cannot_grow_beyond_what_is_allowed() -> None:
    data = encode(RoundReply(round=1, gradient=np.zeros(1 << 20, np.int8)))
    assert len(data) < 1000
    with pytest.raises(ProtocolError, match="packed integers"):
        decode(data, 1 << 19)
    assert decode(data, 1 << 20)


@given(st.lists(st.integers(-40, 40), min_size=1, max_size=20), st.integers(3, 8))
def test_residues_are_those_nearest_to_zero(values: list[int], bits: int) -> None:
    found = remove_masks(np.array(values, np.int8), [], GRADIENT, bits).tolist()
    assert all(
        -(2 ** (bits - 1)) <= r < 2 ** (bits - 1) and (r - v) % 2**bits == 0
        for r, v in zip(found, values, strict=True)
    )


@given(st.lists(st.floats(-200, 200, width=32), min_size=1, max_size=20))
def test_fixed_point_is_close_and_sums_exactly(values: list[float]) -> None:
    array = torch.tensor(values)
    fixed = to_fixed(array, 10)
    assert float((from_fixed(fixed) - array).abs().max()) <= 2**-21 + 200 * 2**-24
    assert torch.equal(from_fixed((fixed + fixed) - fixed), from_fixed(fixed))


def test_fixed_point_refuses_what_does_not_fit() -> None:
    for value in (np.nan, np.inf, 300.0):
        with pytest.raises(DivergedError, match="diverged"):
            to_fixed(torch.tensor([value]), 10)

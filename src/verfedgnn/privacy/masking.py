r"""Masked sums that survive dropouts: the coordinator can add up messages that it cannot read (Bonawitz et al., 2017).

For every trip, party i draws two seeds: b_i for its self-mask, and s_i, from which its mask key (X25519) derives. It adds

.. math::
    y_i = x_i + PRG(b_i) + \sum_{j > i} PRG(k_{ij}) - \sum_{j < i} PRG(k_{ij}) \pmod{2^w},

where k_ij is the secret of the mask keys of i and j. Both seeds are shared among the parties (Shamir) with a threshold. For the sum
over the survivors, the coordinator needs b_i of every survivor and s_i of every party that was lost. A party reveals its share of
one of the two, never of both. Without b_i, y_i is uniformly random, also when it arrives late.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from Crypto.Protocol.SecretSharing import Shamir
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from verfedgnn.core.errors import ProtocolError

GRADIENT = 1
NEIGHBOURHOOD = 2
"""Uses of a stream. Two uses in one trip never share a stream."""
SEED = 16
"""Bytes of a seed, and of a share of it."""
BLOCK = 64
"""Bytes of a block of ChaCha20. Its counter has 32 bits, so a stream has at most 256 GiB."""

Integer = TypeVar("Integer", bound=np.integer[Any])


def share_threshold(parties: int) -> int:
    """Return how many of `parties` must reveal their shares of a seed: more than two thirds."""
    return 2 * parties // 3 + 1


class MaskSeeds:
    """One party's secrets of one trip: the seed of its self-mask, and the seed of its mask key."""

    def __init__(self) -> None:
        self.self_seed = os.urandom(SEED)
        self.key_seed = os.urandom(SEED)
        self.key = MaskKey(self.key_seed)

    def split(self, parties: int) -> list[bytes]:
        """Return a share of both seeds for each of `parties`: first of the self-mask, then of the mask key."""
        threshold = share_threshold(parties)
        shares = (Shamir.split(threshold, parties, seed) for seed in (self.self_seed, self.key_seed))
        return [own + key for (_, own), (_, key) in zip(*shares, strict=True)]

    def streams(self, index: int, keys: Mapping[int, str], context: bytes) -> list[MaskStream]:
        """Return the self-mask and the masks towards the other parties.

        `keys` holds the public mask keys of all active parties by index; `index` is this party's. `context` identifies what the
        coordinator sent to all parties. Masks of parties with different contexts do not cancel.
        """
        pairs = [
            MaskStream(self.key.stream_key(key, context), index < other)
            for other, key in keys.items()
            if other != index
        ]
        return [MaskStream(_stream_key(self.self_seed, b"self", context), True), *pairs]


@dataclass(frozen=True)
class MaskStream:
    """One mask of a party in a trip."""

    key: bytes
    """Key of the ChaCha20 stream."""
    adds: bool
    """Whether the party adds the mask; else it subtracts it."""


def add_masks(
    values: NDArray[Integer],
    streams: Sequence[MaskStream],
    use: int,
    places: Sequence[slice] | None = None,
) -> NDArray[Integer]:
    """Return `values` plus the masks of `streams`, modulo 2^bits of their type.

    `places` says where successive pieces of the values are in the array that is masked; None for all of it. Somebody who holds only
    a part of an array so masks it as if it held everything.
    """
    flat = np.ascontiguousarray(values).reshape(-1)
    width = flat.dtype.itemsize
    total = flat.view(f"u{width}").copy()
    start = 0
    for place in [slice(0, flat.size)] if places is None else places:
        piece = total[start : start + place.stop - place.start]
        for stream in streams:
            mask = _draw(stream.key, use, place, width)
            (np.add if stream.adds else np.subtract)(piece, mask, out=piece)
        start += len(piece)
    masked: NDArray[Integer] = total.view(flat.dtype).reshape(values.shape)
    return masked


class MaskKey:
    """The mask key of one party and trip, derived from its seed."""

    def __init__(self, seed: bytes) -> None:
        derive = HKDF(SHA256(), length=32, salt=None, info=b"verfedgnn mask key 2")
        self._private = X25519PrivateKey.from_private_bytes(derive.derive(seed))
        self.public = self._private.public_key().public_bytes_raw().hex()

    def stream(self, other: str, context: bytes, use: int, size: int, width: int) -> NDArray[Any]:
        """Return the stream that the owner of this key shares with the party whose public mask key is `other`."""
        return _draw(self.stream_key(other, context), use, slice(0, size), width)

    def stream_key(self, other: str, context: bytes) -> bytes:
        """Return the key of that stream."""
        try:
            shared = self._private.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(other)))
        except ValueError:
            raise ProtocolError("a mask key is not usable") from None
        pair = bytes.fromhex(min(self.public, other) + max(self.public, other))
        return _stream_key(shared, b"pair" + pair, context)


def self_mask(seed: bytes, context: bytes, use: int, size: int, width: int) -> NDArray[Any]:
    """Return the self-mask that belongs to a seed: `size` unsigned integers of `width` bytes."""
    return _draw(_stream_key(seed, b"self", context), use, slice(0, size), width)


def lost_mask(
    seed: bytes, index: int, survivors: Mapping[int, str], context: bytes, use: int, size: int, width: int
) -> NDArray[Any]:
    """Return what the masks towards a lost party add to the sum over the survivors.

    `seed` and `index` are those of the lost party; `survivors` holds the public mask keys of the survivors by index.
    """
    key = MaskKey(seed)
    total = np.zeros(size, f"u{width}")
    for other, public in survivors.items():
        stream = key.stream(public, context, use, size, width)
        total = total + stream if other < index else total - stream
    return total


def check_public_key(key: str) -> None:
    """Raise `ProtocolError` unless a public key is usable; some points of the curve reveal every secret."""
    try:
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(key)))
    except ValueError:
        raise ProtocolError("a public key is not usable") from None


def _stream_key(secret: bytes, kind: bytes, context: bytes) -> bytes:
    """Derive the key of a stream from a secret (HKDF-SHA256)."""
    return HKDF(SHA256(), length=32, salt=None, info=b"verfedgnn mask 2 " + kind + context).derive(secret)


def _draw(key: bytes, use: int, place: slice, width: int) -> NDArray[Any]:
    """Return a part of a stream: unsigned integers of `width` bytes at the positions of `place`. Each use has its own stream."""
    block, skipped = divmod(place.start * width, BLOCK)
    nonce = struct.pack("<IIII", block, use, 0, 0)  # a block counter, then 96 bits
    size = (place.stop - place.start) * width
    stream = Cipher(ChaCha20(key, nonce), mode=None).encryptor().update(bytes(skipped + size))
    return np.frombuffer(stream, f"<u{width}", offset=skipped)

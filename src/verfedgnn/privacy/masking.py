r"""Masked sums that survive dropouts: the coordinator can add up messages that it cannot read (Bonawitz et al., 2017).

For every round, party i draws two seeds: b_i for its self-mask, and s_i, from which its mask key (X25519) derives. It adds

.. math::
    y_i = x_i + PRG(b_i) + \sum_{j > i} PRG(k_{ij}) - \sum_{j < i} PRG(k_{ij}) \pmod{2^w},

where k_ij is the secret of the mask keys of i and j. Both seeds are shared among the parties (Shamir) with a threshold. For the sum
over the survivors, the coordinator needs b_i of every survivor and s_i of every party that was lost. A party reveals its share of
one of the two, never of both. Without b_i, y_i is uniformly random, also when it arrives late.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any

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
"""Uses of a stream. Two uses in one round never share a stream."""
SELF = b"self"
"""Kind of a party's mask that no other party shares."""
SEED = 16
"""Bytes of a seed, and of a share of it."""
BLOCK = 64
"""Bytes of a block of ChaCha20. Its counter has 32 bits, so a stream has at most 256 GiB."""
_DRAWN = 1 << 18
"""Values of a stream that are drawn at a time, so that they stay in the processor's cache."""


def share_threshold(parties: int) -> int:
    """Return how many of `parties` must reveal their shares of a seed: more than two thirds."""
    return 2 * parties // 3 + 1


def split_seeds(seeds: Sequence[bytes], parties: int) -> list[bytes]:
    """Return what each of `parties` holds: its shares of all seeds, one after the other. `recover_seeds` is the inverse."""
    threshold = share_threshold(parties)
    shares = [Shamir.split(threshold, parties, seed) for seed in seeds]
    return [b"".join(share for _, share in held) for held in zip(*shares, strict=True)]


@dataclass(frozen=True)
class MaskStream:
    """One mask of a party in a round."""

    key: bytes
    """Key of the ChaCha20 stream."""
    adds: bool
    """Whether the party adds the mask; else it subtracts it."""

    def draw(self, use: int, place: slice, width: int) -> NDArray[Any]:
        """Return a part of the stream: unsigned integers of `width` bytes at the positions of `place`. Each use has its own stream."""
        block, skipped = divmod(place.start * width, BLOCK)
        nonce = struct.pack("<IIII", block, use, 0, 0)  # a block counter, then 96 bits
        size = (place.stop - place.start) * width
        stream = Cipher(ChaCha20(self.key, nonce), mode=None).encryptor().update(bytes(skipped + size))
        return np.frombuffer(stream, f"<u{width}", offset=skipped)


def add_masks(values: NDArray[Any], streams: Sequence[MaskStream], use: int, bits: int) -> NDArray[Any]:
    """Return `values` plus the masks of `streams` as unsigned integers modulo 2^bits, the form of masked values."""
    flat = np.ascontiguousarray(values).reshape(-1)
    width = flat.dtype.itemsize
    total = flat.view(f"u{width}").copy()
    for first in range(0, flat.size, _DRAWN):
        part = slice(first, min(first + _DRAWN, flat.size))
        piece = total[part]
        for stream in streams:
            (np.add if stream.adds else np.subtract)(piece, stream.draw(use, part, width), out=piece)
    total &= total.dtype.type((1 << bits) - 1)
    masked: NDArray[Any] = total.reshape(values.shape)
    return masked


def remove_masks(values: NDArray[Any], streams: Sequence[MaskStream], use: int, bits: int) -> NDArray[Any]:
    """Return masked `values` without the masks of `streams`, as the signed integers modulo 2^bits nearest to 0."""
    inverse = [MaskStream(stream.key, not stream.adds) for stream in streams]
    signed = add_masks(values, inverse, use, bits).view(f"i{values.dtype.itemsize}")
    shift = 8 * values.dtype.itemsize - bits
    return (signed << shift) >> shift


class MaskKey:
    """The mask key of one party and round, derived from its seed."""

    def __init__(self, seed: bytes) -> None:
        self.seed = seed
        derive = HKDF(SHA256(), length=32, salt=None, info=b"verfedgnn mask key 2")
        self._private = X25519PrivateKey.from_private_bytes(derive.derive(seed))
        self.public = self._private.public_key().public_bytes_raw().hex()

    def streams(self, index: int, keys: Mapping[int, str], context: bytes) -> list[MaskStream]:
        """Return the masks of its owner, party `index`, towards the other parties, whose public mask keys `keys` holds by index.

        `context` identifies what the coordinator sent to all parties. Masks of parties with different contexts do not cancel.
        """
        streams = []
        for other, public in keys.items():
            if other == index:
                continue
            try:
                shared = self._private.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(public)))
            except ValueError:
                raise ProtocolError("a mask key is not usable") from None
            pair = bytes.fromhex(min(self.public, public) + max(self.public, public))
            streams.append(derive_stream(shared, b"pair" + pair, context, adds=index < other))
        return streams


def derive_stream(secret: bytes, kind: bytes, context: bytes, *, adds: bool = True) -> MaskStream:
    """Derive a mask from a secret (HKDF-SHA256); the self-mask of a seed has the kind `SELF`."""
    derive = HKDF(SHA256(), length=32, salt=None, info=b"verfedgnn mask 2 " + kind + context)
    return MaskStream(derive.derive(secret), adds)


def lost_streams(seed: bytes, index: int, survivors: Mapping[int, str], context: bytes) -> list[MaskStream]:
    """Return the masks towards a lost party in the sum over the survivors.

    `seed` and `index` are those of the lost party; `survivors` holds the public mask keys of the survivors by index.
    """
    own = MaskKey(seed).streams(index, survivors, context)
    return [MaskStream(stream.key, not stream.adds) for stream in own]


def check_public_key(key: str) -> None:
    """Raise `ProtocolError` unless a public key is usable; some points of the curve reveal every secret."""
    try:
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(key)))
    except ValueError:
        raise ProtocolError("a public key is not usable") from None


# Recovery of many Shamir secrets from the same parties' shares, for the coordinator.
#
# Secrets are split by `Crypto.Protocol.SecretSharing.Shamir` over GF(2^128). A secret is the value at 0 of the polynomial through its
# shares:
#
# .. math::
#     f(0) = \sum_j \lambda_j f(x_j), \qquad \lambda_j = \prod_{m \neq j} \frac{x_m}{x_j + x_m}
#
# `Shamir.combine` computes the weights again for every secret, which takes eleven seconds for the seeds of 100 parties. Here they are
# computed once. The coordinator may know these secrets, so the arithmetic need not run in constant time.


_POLYNOMIAL = 1 << 128 | 0b10000111
"""The polynomial that defines the field in `Shamir`: x^128 + x^7 + x^2 + x + 1."""


def recover_seeds(shares: Mapping[int, Sequence[bytes]]) -> list[bytes]:
    """Return the secrets behind `shares`: for each party's number (from 1), its shares of all secrets in the same order."""
    numbers = tuple(sorted(shares))
    weights = _weights(numbers)
    seeds = []
    for column in zip(*(shares[number] for number in numbers), strict=True):
        parts = (
            _multiply(weight, int.from_bytes(share)) for weight, share in zip(weights, column, strict=True)
        )
        seeds.append(reduce(int.__xor__, parts).to_bytes(16))
    return seeds


@lru_cache(maxsize=16)
def _weights(numbers: tuple[int, ...]) -> list[int]:
    """Return the weights of the shares with these numbers."""
    weights = []
    for number in numbers:
        above = below = 1
        for other in numbers:
            if other != number:
                above = _multiply(above, other)
                below = _multiply(below, number ^ other)
        weights.append(_multiply(above, _invert(below)))
    return weights


def _multiply(a: int, b: int) -> int:
    """Return a product in GF(2^128); `b` may be small."""
    product = 0
    while b:
        if b & 1:
            product ^= a
        a <<= 1
        if a >> 128:
            a ^= _POLYNOMIAL
        b >>= 1
    return product


def _invert(a: int) -> int:
    """Return the inverse in GF(2^128): a to the power 2^128 - 2."""
    result = 1
    for _ in range(127):
        a = _multiply(a, a)
        result = _multiply(result, a)
    return result

"""Random numbers that protect: the key stream of ChaCha20 under a key of 256 bits.

A key belongs to one use. `derive_key` makes keys of a secret by HKDF-SHA256 (RFC 5869), so that neither a key nor the numbers drawn
with it reveal the secret or another key. NumPy's and torch's generators are not made for that: their state can be computed from what
they drew.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from numpy.typing import NDArray

KEY_BYTES = 32
"""Bytes of a secret and of every key derived from it."""

Fact = int | float | str | bytes
"""What a key may depend on."""


def derive_key(secret: bytes, *facts: Fact) -> bytes:
    """Return the key of a use of `secret`; other facts give an unrelated key."""
    if len(secret) != KEY_BYTES:
        raise ValueError(f"a secret has {KEY_BYTES} bytes, not {len(secret)}")
    return HKDFExpand(SHA256(), length=KEY_BYTES, info=repr(facts).encode()).derive(secret)


class KeyStream:
    """Uniform random numbers of one key. Every call returns the next part of the stream."""

    def __init__(self, key: bytes) -> None:
        # The key is used for this stream alone, so the nonce and the block counter start at 0.
        self._cipher = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()

    def words(self, shape: tuple[int, ...], kind: str = "<u8") -> NDArray[Any]:
        """Draw uniform integers over the whole range of an integer type."""
        stream = bytearray(math.prod(shape) * np.dtype(kind).itemsize)
        self._cipher.update_into(bytes(len(stream)), stream)
        return np.frombuffer(stream, kind).reshape(shape)

    def uniform(self, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Draw from (0, 1), one of 2^52 equally spaced values."""
        return ((self.words(shape) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52

    def sample(self, population: int, count: int) -> NDArray[np.int64]:
        """Draw `count` different integers below `population`, in random order."""
        return np.argsort(self.words((population,)), kind="stable")[:count]


@dataclass(frozen=True)
class NoiseKey:
    """The key of the noise on one release. A mechanism opens its own stream.

    Streams of different mechanisms or parameters are unrelated, so no release shares noise with one of another variance.
    """

    key: bytes

    def stream(self, mechanism: str, *parameters: float) -> KeyStream:
        """Return the stream of a mechanism with these parameters."""
        return KeyStream(derive_key(self.key, mechanism, *map(float, parameters)))

r"""Masked sums: the coordinator can add up messages that it cannot read.

Every pair of parties i < j shares a secret (X25519). For each message they expand it into a stream of
integers m_ij (HKDF-SHA256, ChaCha20). Party i adds the stream and party j subtracts it, modulo 2^b:

.. math::
    y_i = x_i + \sum_{j > i} m_{ij} - \sum_{j < i} m_{ji} \pmod{2^b}, \qquad \sum_i y_i = \sum_i x_i \pmod{2^b}

The masks cancel exactly in the sum over all participants. Without the secrets, any smaller set of messages is
uniformly random. After a dropout the sum is useless: the trip is repeated without that party, under fresh
masks.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, TypeVar

import numpy as np
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

Integer = TypeVar("Integer", bound=np.integer[Any])


class Masker:
    """One party's key pair, and the masks that it derives once the others' public keys are known.

    A key pair serves one stay in a federation. A party that joins again makes a new one, so no stream is used
    twice.
    """

    def __init__(self) -> None:
        self._private = X25519PrivateKey.generate()
        self.public = self._private.public_key().public_bytes_raw().hex()
        self.index = -1
        self._secrets: dict[int, bytes] = {}

    def derive_secrets(self, index: int, keys: Sequence[str]) -> None:
        """Derive the secrets shared with the other parties.

        `index` is this party's position in `keys`, the public keys of all parties in order, "" for absent
        parties.
        """
        self.index = index
        self._secrets = {}
        known = [key for key in keys if key]
        if not 0 <= index < len(keys) or keys[index] != self.public or len(set(known)) != len(known):
            raise ProtocolError("the coordinator sent public keys that are not those of the parties")
        for other, key in enumerate(keys):
            if key and other != index:
                try:
                    shared = self._private.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(key)))
                except ValueError:
                    raise ProtocolError(f"the key of party {other} is not usable") from None
                pair = "".join(keys[i] for i in sorted((index, other)))
                derive = HKDF(SHA256(), length=32, salt=None, info=b"verfedgnn mask 1" + bytes.fromhex(pair))
                self._secrets[other] = derive.derive(shared)

    def mask(
        self,
        values: NDArray[Integer],
        parties: Sequence[int],
        *,
        round: int,
        trip: int,
        use: int,
        attempt: int = 0,
        context: bytes = b"",
    ) -> NDArray[Integer]:
        """Return `values` plus this party's masks towards the other `parties`, modulo 2^bits of their type.

        `context` identifies the common inputs of all parties. Masks of parties with different inputs do not
        cancel, so nobody can single out a party by giving the others different parameters.
        """
        flat = np.ascontiguousarray(values).reshape(-1)
        width = flat.dtype.itemsize
        total = flat.view(f"u{width}").copy()
        for other in parties:
            if other != self.index:
                if other not in self._secrets:
                    raise ProtocolError(f"party {other} takes part, but its public key is unknown")
                nonce = struct.pack("<IIHHI", 0, round, trip, use, attempt)
                secret = sha256(b"verfedgnn stream 1" + self._secrets[other] + context).digest()
                stream = np.frombuffer(_stream(secret, flat.nbytes, nonce), f"<u{width}")
                total = total + stream if self.index < other else total - stream
        return total.view(flat.dtype).reshape(values.shape)


def check_public_key(key: str) -> None:
    """Raise `ProtocolError` unless a public key is usable; some points of the curve reveal every secret."""
    try:
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(key)))
    except ValueError:
        raise ProtocolError("a public key is not usable") from None


def _stream(secret: bytes, size: int, nonce: bytes) -> bytes:
    """Expand `secret` with ChaCha20.

    `nonce` is a block counter of 0, then 96 bits that never repeat under a key.
    """
    return Cipher(ChaCha20(secret, nonce), mode=None).encryptor().update(bytes(size))

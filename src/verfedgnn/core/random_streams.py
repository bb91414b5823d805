"""Named streams of random numbers.

Every draw comes from a stream at a position, such as a round, so that no draw depends on what was drawn before it. The numbers of the
streams are part of the result: another number gives another training.

What protects a release comes from ChaCha20 (`NoiseStream`, `core.key_stream`). The order of ratings and the initial values protect
nothing and come from NumPy (`PartyStream`), seeded with keys that do not reveal the party's secret.
"""

from __future__ import annotations

from enum import IntEnum, unique

import numpy as np

from verfedgnn.core.key_stream import KEY_BYTES, derive_key


@unique
class SharedStream(IntEnum):
    """Streams of the configured seed, which everybody in a federation knows."""

    PUBLIC_PARAMETERS = 1
    ACTIVE_PARTIES = 2
    PARTY_SECRETS = 3
    """Secrets of parties that run on one machine."""


@unique
class PartyStream(IntEnum):
    """Streams of a party's secret that protect nothing."""

    ITEM_EMBEDDINGS = 0
    SHUFFLE = 1
    READ_RATINGS = 9
    """Ratings that the second model reads in a round."""


@unique
class NoiseStream(IntEnum):
    """Streams of a party's secret that protect what leaves it."""

    GRADIENT = 2
    PSEUDO_INTERACTIONS = 6
    ITEM_ROWS = 7
    VALIDATION = 8


def shared_generator(seed: int, stream: SharedStream, *position: int) -> np.random.Generator:
    """Return the generator of a shared stream at a position, for example a round."""
    return np.random.default_rng([seed, int(stream), *position])


def simulated_secret(seed: int, index: int) -> bytes:
    """Return the secret of a party on one machine; in a federation every party draws its own."""
    return shared_generator(seed, SharedStream.PARTY_SECRETS, index).bytes(KEY_BYTES)


def private_generator(secret: bytes, stream: PartyStream, *position: int) -> np.random.Generator:
    """Return the generator of a stream of a party's secret at a position, for example an epoch."""
    return np.random.default_rng(int.from_bytes(derive_key(secret, int(stream), *position)))

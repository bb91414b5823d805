"""Named streams of random numbers.

Every draw comes from a generator seeded with [seed, stream, ...], so that no draw depends on what was drawn before it. The numbers
of the streams are part of the result: another number gives another training.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, unique

import numpy as np


@unique
class SharedStream(IntEnum):
    """Streams of the configured seed, which everybody in a federation knows."""

    PUBLIC_PARAMETERS = 1
    ACTIVE_PARTIES = 2
    PARTY_SECRETS = 3
    """Secrets of parties that run on one machine."""
    BLOCK_ORDER = 10
    """Order in which blocks of users take turns."""


@unique
class PartyStream(IntEnum):
    """Streams of a party's secret, which nobody else knows."""

    ITEM_EMBEDDINGS = 0
    SHUFFLE = 1
    GRADIENT_PROTECTION = 2
    RANKING_CANDIDATES = 4
    NEIGHBOURHOOD_NOISE = 5
    PSEUDO_INTERACTIONS = 6
    PRIVATE_GRADIENT_NOISE = 7
    VALIDATION_NOISE = 8


def shared_generator(seed: int, stream: SharedStream, *position: int) -> np.random.Generator:
    """Return the generator of a shared stream at a position, for example a round."""
    return np.random.default_rng([seed, int(stream), *position])


@dataclass(frozen=True)
class PartyRandomness:
    """A party's own source of random numbers."""

    secret: int

    def generator(self, stream: PartyStream, *position: int) -> np.random.Generator:
        """Return the generator of a stream at a position, for example a round and a trip."""
        return np.random.default_rng([self.secret, int(stream), *position])

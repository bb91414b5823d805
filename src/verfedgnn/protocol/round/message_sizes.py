"""Sizes of the largest messages that a member accepts. They follow from the agreement and the number of users."""

from __future__ import annotations

import math

from verfedgnn.config import Config
from verfedgnn.gnn.model import Model
from verfedgnn.protocol.round.aggregation import gradient_type, neighbourhood_shape, neighbourhood_type
from verfedgnn.protocol.round.replica import FULL_COPY
from verfedgnn.protocol.round.user_blocks import UserBlocks
from verfedgnn.protocol.round.user_starts import START_BITS
from verfedgnn.protocol.wire.framing import BESIDES_ARRAYS

ALIGNMENT_BYTES = 40
"""Bytes a user in messages of the alignment: a point of the curve and its seal, or a pseudonym and an earlier row."""
_VALUE = 4


def largest_alignment(users: int) -> int:
    """Return the bytes of the largest message about the alignment of a party with that many users."""
    return BESIDES_ARRAYS + ALIGNMENT_BYTES * users


def largest_from_coordinator(config: Config, model: Model) -> int:
    """Return the bytes of the largest message to a party: a RoundStart with a full copy, missed updates, starts and a sum."""
    copies = (3 if config.training.average else 2) * _VALUE + FULL_COPY
    starts = START_BITS // 8 * model.users
    return BESIDES_ARRAYS + copies * model.size + starts + _neighbourhood_bytes(config, model)


def largest_from_party(config: Config, model: Model, parties: int) -> int:
    """Return the bytes of the largest message to the coordinator: a RoundReply."""
    gradient = model.size * gradient_type(config, parties).itemsize
    return BESIDES_ARRAYS + gradient + _neighbourhood_bytes(config, model)


def _neighbourhood_bytes(config: Config, model: Model) -> int:
    if config.exchange.mode == "off":
        return 0
    shape = neighbourhood_shape(config, UserBlocks(config, model).all_users)
    return math.prod(shape) * neighbourhood_type(config).itemsize

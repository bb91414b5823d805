"""Sums of what the parties send: the array types and shapes that travel, and how they add up."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verfedgnn.config import Config
from verfedgnn.core.errors import ProtocolError
from verfedgnn.core.rating_means import USER_MEAN_COLUMNS
from verfedgnn.protocol.round.user_blocks import UserBlock
from verfedgnn.protocol.wire.fixed_point import smallest_integer_type, sum_bits, wrap_signed

Unmasking = Callable[[NDArray[Any]], NDArray[Any]]
"""Removes the masks from a sum."""


class SumError(ProtocolError):
    """Masked values that do not cancel. The sum does not tell whose values are wrong."""


def gradient_type(config: Config, parties: int) -> np.dtype[Any]:
    """Return the array type of a protected gradient on the wire: residues if masked, signs, or floats."""
    if config.masking:
        return np.dtype(f"u{update_type(config, parties).itemsize}")
    return np.dtype(np.int8) if config.gradients.mechanism == "ternary" else update_type(config, parties)


def gradient_bits(config: Config, parties: int) -> int:
    """Return the bits of a masked value, in which the sum of `parties` protected gradients has room."""
    rounded = 8 + math.ceil(math.log2(max(2, parties)))
    return {"skellam": 32, "rounded": rounded}.get(config.gradients.mechanism, sum_bits(parties))


def update_type(config: Config, parties: int) -> np.dtype[Any]:
    """Return the array type of a sum of protected gradients."""
    types = {"ternary": smallest_integer_type(parties), "skellam": np.int32, "rounded": np.int16}
    return np.dtype(types.get(config.gradients.mechanism, np.float32))


def neighbourhood_type(config: Config) -> np.dtype[Any]:
    """Return the array type of neighbourhoods on the wire: fixed point, as residues if masked."""
    width = max(2, config.exchange.bits // 8)
    return np.dtype(f"{'u' if config.masking else 'i'}{width}")


def neighbourhood_shape(config: Config, block: UserBlock) -> tuple[int, int, int]:
    """Return the shape (K, q, C) of exchanged neighbourhoods of a block of users, with users' means if they are shared."""
    columns = block.model.operator.columns + (USER_MEAN_COLUMNS if config.shares_user_means else 0)
    return config.model.layers, block.rows.stop - block.rows.start, columns


def largest_array(config: Config, all_users: UserBlock, other_arrays: int) -> int:
    """Return the bytes of the largest packed array of a round: all neighbourhoods, or `other_arrays` if that is more."""
    shape = neighbourhood_shape(config, all_users) if config.exchange.mode != "off" else (0,)
    return max(other_arrays, math.prod(shape) * neighbourhood_type(config).itemsize)


def sum_neighbourhoods(
    shared: Sequence[NDArray[Any]], config: Config, unmask: Unmasking = lambda total: total
) -> NDArray[Any]:
    """Add up neighbourhoods (K, q, C) and `unmask` their sum, modulo 2^bits; return signed integers."""
    total = np.zeros_like(shared[0])
    for values in shared:
        total += values
    total = unmask(total)
    return wrap_signed(total, config.exchange.bits)


def sum_gradients(
    gradients: Sequence[NDArray[Any]],
    config: Config,
    parties: int,
    unmask: Unmasking = lambda total: total,
) -> NDArray[Any]:
    """Add up protected gradients in the order of the parties, and `unmask` their sum.

    Raise `SumError` if masked ternary values add up to more than that many ternary values can.
    """
    kind = gradient_type(config, parties) if config.masking else update_type(config, parties)
    total = np.zeros(gradients[0].shape, kind)
    for values in gradients:
        total += values  # masked values modulo 2^bits
    total = unmask(total)
    mechanism = config.gradients.mechanism
    if config.masking:
        total = wrap_signed(total, gradient_bits(config, parties))
    if mechanism == "ternary":
        largest = max(int(total.max(initial=0)), -int(total.min(initial=0)))
        if largest > len(gradients):
            raise SumError(
                "the masked values of this trip do not add up to gradients: a party sent other values"
            )
    return total

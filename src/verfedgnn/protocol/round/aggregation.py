"""What travels up and how it adds up: the forms of protected gradients and neighbourhoods, and their sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verfedgnn.config import Config
from verfedgnn.core.errors import ProtocolError
from verfedgnn.protocol.round.user_blocks import Part
from verfedgnn.protocol.wire.fixed_point import sum_bits, whole, wrapped


class SumError(ProtocolError):
    """Masked values that do not cancel; nobody can tell from them whose are wrong."""


def gradient_type(config: Config, parties: int) -> np.dtype[Any]:
    """The type of a protected gradient as it travels: residues if masked, signs, or real numbers."""
    if config.masking:
        return np.dtype(f"u{update_type(config, parties).itemsize}")
    return np.dtype(np.int8) if config.gradients.mechanism == "ternary" else update_type(config, parties)


def update_type(config: Config, parties: int) -> np.dtype[Any]:
    """The type of a sum of protected gradients."""
    return np.dtype(
        {"ternary": whole(parties), "skellam": np.int32}.get(config.gradients.mechanism, np.float32)
    )


def fixed_type(config: Config) -> np.dtype[Any]:
    """The type of neighbourhoods as they travel: residues if masked."""
    width = max(2, config.exchange.bits // 8)
    return np.dtype(f"{'u' if config.masking else 'i'}{width}")


def neighbourhood_shape(config: Config, part: Part) -> tuple[int, int, int]:
    """(K, q, C) of an exchanged neighbourhood of some users."""
    return config.model.layers, part.rows.stop - part.rows.start, part.model.operator.columns


def largest_array(config: Config, everybody: Part, others: int) -> int:
    """Bytes of the largest packed array of a round: neighbourhoods of everybody, or what `others` says of the other arrays."""
    shape = neighbourhood_shape(config, everybody) if config.exchange.mode != "off" else (0,)
    return max(others, math.prod(shape) * fixed_type(config).itemsize)


def summed_neighbourhoods(shared: Sequence[NDArray[Any]], config: Config) -> NDArray[Any]:
    """The sum of neighbourhoods (K, q, C), as plain integers."""
    total = np.zeros_like(shared[0])
    for values in shared:
        total += values  # modulo 2^bits, as masks and noise are
    return wrapped(total, config.exchange.bits)


def summed(gradients: Sequence[NDArray[Any]], config: Config, parties: int) -> NDArray[Any]:
    """The sum of protected gradients, in the order of the parties; of masked ones only this is ever known.

    `SumError` if masked ones add up to more than so many ternary values can.
    """
    total = np.zeros(
        gradients[0].shape, gradient_type(config, parties) if config.masking else update_type(config, parties)
    )
    for values in gradients:
        total += values  # masked ones modulo 2^bits
    if config.masking:
        total = wrapped(total, 32 if config.gradients.mechanism == "skellam" else sum_bits(parties))
    if config.gradients.mechanism == "ternary" and max(
        int(total.max(initial=0)), -int(total.min(initial=0))
    ) > len(gradients):
        raise SumError(
            "the masked values of this trip do not add up to gradients: a party sent something else"
        )
    return total

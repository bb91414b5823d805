"""Sums of what the parties send: the array types, shapes and sizes that travel, and how they add up."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.config.sections import FRACTION_BITS
from verfedgnn.core.errors import DivergedError, ProtocolError
from verfedgnn.gnn.model import Model
from verfedgnn.privacy.projection import block_rows, cut_blocks
from verfedgnn.protocol.framing import BESIDES_ARRAYS

Unmasking = Callable[[NDArray[Any]], NDArray[Any]]
"""Removes the masks from a sum."""

FULL_COPY = 8
"""Bytes per parameter of a full copy: the parameter and its accumulator."""
ALIGNMENT_BYTES = 40
"""Bytes a user in messages of the alignment: a point of the curve and its seal, or a pseudonym and an earlier row."""


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
    return np.dtype(f"{'u' if config.masking else 'i'}{config.exchange.bits // 8}")


def neighbourhood_shape(config: Config, model: Model) -> tuple[int, int, int]:
    """Return the shape (K, q, C) of exchanged neighbourhoods; it is empty without an exchange."""
    exchange = config.exchange
    if config.model.form != "propagation" or exchange.mode == "off":
        return 0, 0, 0
    rows = model.users
    if exchange.mode == "projected":
        bounds = cut_blocks(model.users, exchange.block)
        rows = sum(block_rows(stop - start, exchange.ratio) for start, stop in bounds)
    return config.model.layers, rows, model.operator.columns


# -- sizes of messages -----------------------------------------------------------------------------------------


def largest_alignment(users: int) -> int:
    """Return the bytes of the largest message about the alignment of a party with that many users."""
    return BESIDES_ARRAYS + ALIGNMENT_BYTES * users


def largest_from_coordinator(config: Config, model: Model) -> int:
    """Return the bytes of the largest message to a party: a RoundStart with a full copy, missed updates and a sum."""
    return BESIDES_ARRAYS + 2 * FULL_COPY * model.size + _neighbourhood_bytes(config, model)


def largest_from_party(config: Config, model: Model, parties: int) -> int:
    """Return the bytes of the largest message to the coordinator: a RoundReply."""
    gradient = model.size * gradient_type(config, parties).itemsize
    return BESIDES_ARRAYS + gradient + _neighbourhood_bytes(config, model)


def largest_array(config: Config, model: Model, other_arrays: int) -> int:
    """Return the bytes of the largest packed array of a round: all neighbourhoods, or `other_arrays` if that is more."""
    return max(other_arrays, _neighbourhood_bytes(config, model))


def _neighbourhood_bytes(config: Config, model: Model) -> int:
    return math.prod(neighbourhood_shape(config, model)) * neighbourhood_type(config).itemsize


# -- sums ------------------------------------------------------------------------------------------------------


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
    if config.masking:
        total = wrap_signed(total, gradient_bits(config, parties))
    if config.gradients.mechanism == "ternary":
        largest = max(int(total.max(initial=0)), -int(total.min(initial=0)))
        if largest > len(gradients):
            raise SumError(
                "the masked values of this trip do not add up to gradients: a party sent other values"
            )
    return total


def participation_scale(items: Sequence[int], active: Sequence[int], without: int | None = None) -> float:
    """Return sum of all M_i / sum of M_i over the active parties (Sec. 4.6), 0 if no party is left to scale.

    `without` leaves one party out of both sums.
    """
    whole = sum(m for p, m in enumerate(items) if p != without)
    part = sum(items[p] for p in active if p != without)
    return whole / part if part else 0.0


# Conversion of arrays to the integers that travel; real numbers travel in fixed point.
#
# Sums of integers are exact in any order and can be masked. In fixed point, a recipient subtracts its own share of a sum without
# rounding.


def to_fixed(values: Tensor, parties: int, bits: int = 32) -> Tensor:
    """Convert real numbers to multiples of 2^-20 (32 bits) or 2^-32 (64), with room for `parties` of them.

    A value out of range raises `DivergedError`.
    """
    # A power of two times a float32 is exact, and so is rounding it.
    scaled = (values * float(1 << FRACTION_BITS[bits])).round_()
    limit = (2 ** (bits - 1) - 1) // max(1, parties)
    least, most = torch.stack(torch.aminmax(scaled)).tolist() if scaled.numel() else (0.0, 0.0)
    if not (least >= -limit and most <= limit):  # written so that NaN fails, too
        raise DivergedError(
            f"a neighbourhood holds a value beyond +-{limit / (1 << FRACTION_BITS[bits]):.0f}, the fixed-point range with "
            f"{parties} parties: training has diverged (lower training.lr), or exact degrees need exchange.bits = 64"
        )
    return scaled.to(torch.int64 if bits == 64 else torch.int32)


def from_fixed(values: Tensor, bits: int = 32) -> Tensor:
    """Convert the result of `to_fixed`, or sums and differences of such results, back to real numbers."""
    return values.to(torch.float32).mul_(1.0 / (1 << FRACTION_BITS[bits]))


def smallest_integer_type(bound: int) -> type[np.signedinteger[Any]]:
    """Return the smallest integer type that holds [-bound, bound]."""
    return np.int8 if bound <= 127 else np.int16 if bound <= 32767 else np.int32


def sum_bits(parties: int) -> int:
    """Return the bits that the sum of `parties` ternary values needs; masked values travel modulo 2 to that power."""
    return (2 * parties).bit_length()


def to_residues(values: NDArray[Any], bits: int) -> NDArray[Any]:
    """Return integers modulo 2^bits as unsigned integers, the form of masked values."""
    unsigned = values.view(f"u{values.dtype.itemsize}")
    rest: NDArray[Any] = unsigned & unsigned.dtype.type((1 << bits) - 1)
    return rest


def wrap_signed(values: NDArray[Any], bits: int) -> NDArray[Any]:
    """Return integers modulo 2^bits as the signed residues nearest to 0."""
    signed = values.view(f"i{values.dtype.itemsize}")
    shift = 8 * values.dtype.itemsize - bits
    return (signed << shift) >> shift if shift > 0 else signed

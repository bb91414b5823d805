"""Conversion of arrays to the integers that travel; real numbers travel in fixed point.

Sums of integers are exact in any order and can be masked. In fixed point, a recipient subtracts its own share of a sum without
rounding.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.config.sections import FRACTION_BITS
from verfedgnn.core.errors import DivergedError


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

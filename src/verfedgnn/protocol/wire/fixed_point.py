"""Arrays as they travel: all of them integers, real numbers in fixed point.

Integers, because sums of integers are exact in any order and can be masked; fixed point, because every recipient then
subtracts its own part of a sum without a trace of rounding.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.config.sections import FRACTION_BITS
from verfedgnn.core.errors import DivergedError


def to_fixed(values: Tensor, parties: int, bits: int = 32) -> Tensor:
    """Real numbers as multiples of 2^-20 (32 bits), 2^-10 (16), 2^-8 (12) or 2^-32 (64), with room for the sum over `parties`.

    What is beyond the reach is an error; with 16 or 12 bits, whose reach is +-32 or +-8 over all parties, it is cut off.
    """
    # A power of two times a float32 is exact, and so is rounding it.
    scaled = (values * float(1 << FRACTION_BITS[bits])).round_()
    limit = (2 ** (bits - 1) - 1) // max(1, parties)
    if bits <= 16 and math.isfinite(float(scaled.sum())):
        return scaled.clamp_(-limit, limit).to(torch.int16)
    least, most = torch.stack(torch.aminmax(scaled)).tolist() if scaled.numel() else (0.0, 0.0)
    if not (least >= -limit and most <= limit):  # so that NaN is refused, too
        raise DivergedError(
            f"a neighbourhood holds a value beyond +-{limit / (1 << FRACTION_BITS[bits]):.0f}, the reach of its fixed-point form "
            f"with {parties} parties: training has diverged (lower training.lr), or exact degrees are too large for it "
            "(exchange.bits = 64)"
        )
    return scaled.to(torch.int64 if bits == 64 else torch.int32)


def from_fixed(values: Tensor, bits: int = 32) -> Tensor:
    """The real numbers behind `to_fixed`, or behind sums and differences of them."""
    return values.to(torch.float32).mul_(1.0 / (1 << FRACTION_BITS[bits]))


def whole(bound: int) -> type[np.signedinteger[Any]]:
    """The smallest integer type that holds [-bound, bound]."""
    return np.int8 if bound <= 127 else np.int16 if bound <= 32767 else np.int32


def sum_bits(parties: int) -> int:
    """Bits that the sum of so many ternary values needs; masks are taken modulo 2 to that, and travel in as many."""
    return (2 * parties).bit_length()


def residues(values: NDArray[Any], bits: int) -> NDArray[Any]:
    """Integers modulo 2^bits, from 0 on: the form of what is masked. Unsigned ones are never taken for plain small numbers."""
    unsigned = values.view(f"u{values.dtype.itemsize}")
    rest: NDArray[Any] = unsigned & unsigned.dtype.type((1 << bits) - 1)
    return rest


def wrapped(values: NDArray[Any], bits: int) -> NDArray[Any]:
    """The residues of integers modulo 2^bits nearest to 0, signed."""
    signed, shift = values.view(f"i{values.dtype.itemsize}"), 8 * values.dtype.itemsize - bits
    return (signed << shift) >> shift if shift > 0 else signed

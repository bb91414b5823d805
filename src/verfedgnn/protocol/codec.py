"""Arrays as they travel: small integers packed into few bytes, real numbers in fixed point.

Integers, because sums of integers are exact in any order and can be masked; fixed point, because every recipient then
subtracts its own part of a sum without a trace of rounding.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verfedgnn.config import FRACTION_BITS
from verfedgnn.errors import DivergedError, ProtocolError


def pack(values: NDArray[np.integer[Any]], bound: int) -> NDArray[np.uint8]:
    """Integers in [-bound, bound] as bytes: several digits of base 2*bound + 1 in a byte while they fit, else whole bytes."""
    digits = _digits(bound)
    if digits == 1:
        return np.ascontiguousarray(values, whole(bound)).view(np.uint8).reshape(-1)
    base = 2 * bound + 1
    padded = np.zeros(-(-len(values) // digits) * digits, np.uint8)
    padded[: len(values)] = values.astype(np.int8) + bound
    columns = padded.reshape(-1, digits)
    out = columns[:, -1].copy()
    for place in range(digits - 2, -1, -1):
        out *= base
        out += columns[:, place]
    return out


def unpack(data: NDArray[np.uint8], bound: int, size: int) -> NDArray[np.integer[Any]]:
    """The `size` integers behind `pack`; anything else than exactly those is refused."""
    digits = _digits(bound)
    if digits == 1:
        kind = np.dtype(whole(bound))
        if data.nbytes != size * kind.itemsize:
            raise ProtocolError(f"packed integers: {data.nbytes} bytes, expected {size * kind.itemsize}")
        values = data.view(kind)
        if size and (values.min() < -bound or values.max() > bound):
            raise ProtocolError(f"packed integers: a value lies outside +-{bound}")
        return values
    expected = packed_size(size, bound)
    if data.nbytes != expected:
        raise ProtocolError(f"packed integers: {data.nbytes} bytes, expected {expected}")
    if expected and int(data.max()) >= (2 * bound + 1) ** digits:
        raise ProtocolError(f"packed integers: a byte holds no digits of base {2 * bound + 1}")
    return _table(bound)[data].reshape(-1)[:size]


def packed_size(size: int, bound: int) -> int:
    """Bytes that `pack` makes of `size` integers."""
    digits = _digits(bound)
    return -(-size // digits) if digits > 1 else size * np.dtype(whole(bound)).itemsize


def to_fixed(values: NDArray[np.float32], parties: int, bits: int = 32) -> NDArray[np.integer[Any]]:
    """Real numbers as multiples of 2^-20 (32 bits), 2^-10 (16 bits) or 2^-32 (64 bits), with room for the sum over `parties`.

    What is beyond the reach is an error; with 16 bits, whose reach is +-32 over all parties, it is cut off.
    """
    scaled = np.rint(values.astype(np.float64) * (1 << FRACTION_BITS[bits]))
    limit = (2 ** (bits - 1) - 1) // max(1, parties)
    if bits == 16 and np.isfinite(scaled).all():
        return np.clip(scaled, -limit, limit).astype(np.int16)
    if not (np.abs(scaled) <= limit).all():
        raise DivergedError(
            f"a neighbourhood holds a value beyond +-{limit / (1 << FRACTION_BITS[bits]):.0f}, the reach of its fixed-point form "
            f"with {parties} parties: training has diverged (lower training.lr), or exact degrees are too large for it "
            "(exchange.bits = 64)"
        )
    return scaled.astype(np.int64 if bits == 64 else np.int32)


def from_fixed(values: NDArray[np.integer[Any]], bits: int = 32) -> NDArray[np.float32]:
    """The real numbers behind `to_fixed`, or behind sums and differences of them."""
    return (values * (1.0 / (1 << FRACTION_BITS[bits]))).astype(np.float32)


def _digits(bound: int) -> int:
    """How many digits of base 2*bound + 1 fit into a byte (1: none shares a byte)."""
    return max(1, int(8 / math.log2(2 * bound + 1)))


def whole(bound: int) -> type[np.signedinteger[Any]]:
    """The smallest integer type that holds [-bound, bound]."""
    return np.int8 if bound <= 127 else np.int16 if bound <= 32767 else np.int32


@cache
def _table(bound: int) -> NDArray[np.int8]:
    base, digits = 2 * bound + 1, _digits(bound)
    codes = np.arange(256)
    return np.stack([(codes // base**place) % base - bound for place in range(digits)], 1).astype(np.int8)

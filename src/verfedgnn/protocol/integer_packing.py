r"""Lossless packing of integer arrays, in the smallest of three forms.

    planes   n values of b bits each: the lowest 16 bits of all values, the next 16, a byte if 8 are left, then one plane for each
             remaining bit. Unsigned integers, such as masked values, always have this form.
    dense    the values in the narrowest type, compressed with Zstandard, where that saves a twentieth or more
    sparse   a bitmap of the values other than 0, then their signs or the values themselves, compressed with Zstandard

A head comes first: form, type, number of dimensions, shape, bits, number of values other than 0. From it a reader knows the unpacked
size before it unpacks anything.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from verfedgnn.core.errors import ProtocolError

TYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")
PLANES = 0
SPARSE = 1
DENSE = 2
SPARSEST = 0.4
"""Share of values other than 0 from which a bitmap does not pay."""
DIMENSIONS = 4
LEAST_SAVED = 0.95
"""Share of the size of planes below which compressed values pay."""
WIDTHS = (8, 16, 32, 64)
"""Bits of the types of compressed values."""
_HEAD = struct.Struct("<BBBBQ")
_ZSTD = pa.Codec("zstd", compression_level=1)
_BLOCK = 1 << 20
"""Values that are packed at a time, few enough for the processor's cache; a multiple of 8."""

Integers = NDArray[np.integer[Any]]
Raw = NDArray[np.uint8]


def pack_integers(values: Integers) -> Raw:
    """Pack an integer array into bytes."""
    flat = np.ascontiguousarray(values).reshape(-1)
    count, least, most = int(np.count_nonzero(flat)), int(flat.min(initial=0)), int(flat.max(initial=0))
    if flat.dtype.kind == "i" and count < SPARSEST * flat.size:
        signs = least >= -1 and most <= 1
        form, bits, body = SPARSE, 1 if signs else 8 * flat.itemsize, [_sparse(flat, signs)]
    else:
        # Signed values are two's complement.
        needed = most.bit_length() if flat.dtype.kind == "u" else 1 + max(most, -1 - least).bit_length()
        form, bits = PLANES, min(8 * flat.itemsize, max(1, needed))
        body = list(_planes(flat, bits))
        if flat.dtype.kind == "i":
            width = next(width for width in WIDTHS if bits <= width)
            packed = _ZSTD.compress(flat.astype(f"<i{width // 8}", copy=False))
            if len(packed) < LEAST_SAVED * sum(part.size for part in body):
                form, bits, body = DENSE, width, [np.frombuffer(packed, np.uint8)]
    head = _HEAD.pack(form, TYPES.index(str(flat.dtype)), values.ndim, bits, count)
    shape = struct.pack(f"<{values.ndim}Q", *values.shape)
    return np.concatenate([np.frombuffer(head + shape, np.uint8), *body])


def unpack_integers(data: Raw, most: int) -> Integers:
    """Unpack an array of at most `most` bytes; raise `ProtocolError` if the data is not valid."""
    try:
        form, kind, dimensions, bits, count = _HEAD.unpack_from(data.data)
        shape = struct.unpack_from(f"<{dimensions}Q", data.data, _HEAD.size)
        if kind >= len(TYPES) or not 1 <= dimensions <= DIMENSIONS or form not in (PLANES, SPARSE, DENSE):
            raise ValueError
        dtype, size = np.dtype(TYPES[kind]), math.prod(shape)
        if size * dtype.itemsize > most or count > size or not 1 <= bits <= 8 * dtype.itemsize:
            raise ValueError
        body = data[_HEAD.size + 8 * dimensions :]
        if form == DENSE:
            narrow = np.dtype(f"<i{bits // 8}")
            raw = _ZSTD.decompress(np.ascontiguousarray(body), size * narrow.itemsize)
            return np.frombuffer(raw, narrow).astype(dtype).reshape(shape)
        read = _scattered if form == SPARSE else _joined
        return read(body, dtype, size, bits, count).reshape(shape)
    except (ValueError, TypeError, OverflowError, struct.error, OSError, pa.ArrowException):
        raise ProtocolError("unreadable packed integers") from None


def _planes(flat: Integers, bits: int) -> Iterator[Raw]:
    values = flat.view(f"u{flat.itemsize}")
    for place, width in _pieces(bits):
        if width >= 8:
            piece = values >> values.dtype.type(place) if place else values
            yield piece.astype(f"<u{width // 8}", copy=False).view(np.uint8)
            continue
        planes = np.empty((width, -(-values.size // 8)), np.uint8)
        for start in range(0, values.size, _BLOCK):
            block = values[start : start + _BLOCK]
            piece = (block >> values.dtype.type(place)).astype(np.uint8, copy=False)
            for bit, plane in enumerate(planes):
                plane[start // 8 : (start + _BLOCK) // 8] = np.packbits(piece & np.uint8(1 << bit))
        yield from planes


def _pieces(bits: int) -> Iterator[tuple[int, int]]:
    """Cut b bits into pieces, from the lowest; yield the place and width of each."""
    place = 0
    while place < bits:
        width = next((width for width in (16, 8) if bits - place >= width), bits - place)
        yield place, width
        place += width


def _joined(body: Raw, dtype: np.dtype[Any], size: int, bits: int, count: int) -> Integers:
    """Return the values of planes."""
    present = 0
    plane = -(-size // 8)
    if body.size != bits // 8 * size + bits % 8 * plane:
        raise ValueError
    pieces: list[tuple[int, int, Raw]] = []
    for place, width in _pieces(bits):
        length = width // 8 * size if width >= 8 else width * plane
        pieces.append((place, width, body[:length]))
        body = body[length:]
    values = np.zeros(size, f"u{dtype.itemsize}")
    shift = 8 * dtype.itemsize - bits
    for start in range(0, size, _BLOCK):
        block = values[start : start + _BLOCK]
        for place, width, piece in pieces:
            if width >= 8:
                part = piece.view(f"<u{width // 8}")[start : start + _BLOCK].astype(values.dtype)
                part <<= values.dtype.type(place)
                block |= part
            else:
                planes = piece.reshape(width, -1)[:, start // 8 : (start + _BLOCK) // 8]
                for bit, packed in enumerate(planes):
                    ones = np.unpackbits(packed, count=block.size).astype(values.dtype, copy=False)
                    ones *= values.dtype.type(1 << (place + bit))  # several times faster than a shift
                    block |= ones
        if dtype.kind == "i" and shift:  # brings the sign back
            signed = block.view(dtype)
            signed <<= shift
            signed >>= shift
        present += int(np.count_nonzero(block))
    if present != count:
        raise ValueError
    return values.view(dtype)


def _sparse(flat: Integers, signs: bool) -> Raw:
    present = flat != 0
    some = flat[present]
    values = (
        np.packbits(some > 0) if signs else some.astype(f"<{flat.dtype.str[1:]}", copy=False).view(np.uint8)
    )
    packed = _ZSTD.compress(np.concatenate([np.packbits(present), values]))
    return np.frombuffer(packed, np.uint8)


def _scattered(body: Raw, dtype: np.dtype[Any], size: int, bits: int, count: int) -> Integers:
    bitmap, width = -(-size // 8), -(-count // 8) if bits == 1 else count * dtype.itemsize
    raw = np.frombuffer(_ZSTD.decompress(np.ascontiguousarray(body), bitmap + width), np.uint8)
    if not count < SPARSEST * size or int(np.bitwise_count(raw[:bitmap]).sum()) != count:
        raise ValueError
    some = (
        2 * np.unpackbits(raw[bitmap:], count=count).astype(np.int8) - 1
        if bits == 1
        else raw[bitmap:].view(f"<{dtype.str[1:]}")
    )
    flat: Integers = np.zeros(size, dtype)
    taken = 0
    for start in range(0, size, _BLOCK):
        block = flat[start : start + _BLOCK]
        bits_here = raw[:bitmap][start // 8 : (start + _BLOCK) // 8]
        present = np.unpackbits(bits_here, count=block.size).view(bool)
        end = taken + int(np.count_nonzero(present))
        block[present] = some[taken:end]
        taken = end
    if taken != count or np.count_nonzero(some) != count:
        raise ValueError
    return flat

"""Named arrays as bytes and files in the format of safetensors, without a second copy of the arrays in memory.

    length of the table 8 | table (JSON): type, shape and place of each array, and texts | arrays

The library's own functions join all arrays to one `bytes` and cut it up again, which takes two to four times the memory of the
arrays. Here arrays are written from their own memory, and read one at a time, in parts of at most `PART` bytes.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from verfedgnn.core.files import replacing

PART = 1 << 24
"""Number of bytes that are read or written at a time."""
MAX_TABLE = 1 << 24
"""Largest table of contents of a file, in bytes."""

_ABOUT = "__metadata__"
_TYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "<u2", "I16": "<i2", "F16": "<f2", "U32": "<u4", "I32": "<i4",
    "F32": "<f4", "U64": "<u8", "I64": "<i8", "F64": "<f8",
}  # fmt: skip
_NAMES = {np.dtype(kind): name for name, kind in _TYPES.items()}
_ENTRY = {"dtype", "shape", "data_offsets"}

Arrays = Mapping[str, NDArray[Any]]
Buffer = bytes | bytearray | memoryview


class ArrayPlace(NamedTuple):
    """Type and shape of an array, and its place after the table of contents."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    stop: int


class ArrayFile(Mapping[str, NDArray[Any]]):
    """The arrays of a file, each read when it is asked for; raise `ValueError` if the file is not valid."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > MAX_TABLE:
                raise ValueError("the table of contents is too large")
            text = file.read(length)
            self._start = 8 + length
            self.places, self.about = parse_table(text, path.stat().st_size - self._start)

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Read an array into memory of its own."""
        place = self.places[name]
        array: NDArray[Any] = np.empty(place.shape, place.dtype)
        with self.path.open("rb", buffering=0) as file:
            file.seek(self._start + place.start)
            _fill(file, as_bytes(array))
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)


def make_table(arrays: Arrays, about: Mapping[str, str] | None = None) -> tuple[bytes, list[str]]:
    """Return the table of contents, as it stands in front of the arrays, and their names in the order in which they follow."""
    names = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))
    table: dict[str, Any] = {_ABOUT: dict(about)} if about else {}
    stop = 0
    for name in names:
        array, start = arrays[name], stop
        stop += array.nbytes
        table[name] = {"dtype": _NAMES[array.dtype], "shape": [*array.shape], "data_offsets": [start, stop]}
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, names


def parse_table(text: Buffer, size: int) -> tuple[dict[str, ArrayPlace], dict[str, str]]:
    """Return the places of all arrays and the texts of a table; raise `ValueError` unless the arrays fill `size` bytes exactly."""
    try:
        table = json.loads(bytes(text))
    except RecursionError:
        table = None
    if not isinstance(table, dict):
        raise ValueError("the table of contents is no table")
    about = table.pop(_ABOUT, {})
    if not isinstance(about, dict) or not all(isinstance(value, str) for value in about.values()):
        raise ValueError("the texts are not texts")
    places = {name: _read_place(entry) for name, entry in table.items()}
    end = 0
    for place in sorted(places.values(), key=lambda place: (place.start, place.stop)):
        if place.start != end:
            raise ValueError("the arrays overlap or leave a gap")
        end = place.stop
    if end != size:
        raise ValueError("the arrays do not fill the data")
    return places, about


def view_arrays(data: memoryview, largest_table: int = MAX_TABLE) -> dict[str, NDArray[Any]]:
    """Return the arrays in `data` as views of its memory; raise `ValueError` if it is not valid."""
    length = int.from_bytes(data[:8], "little")
    if length > min(largest_table, len(data)):
        raise ValueError("the table of contents is too large")
    body = data[8 + length :]
    places, _ = parse_table(data[8 : 8 + length], len(body))
    return {
        name: np.frombuffer(body[place.start : place.stop], place.dtype).reshape(place.shape)
        for name, place in places.items()
    }


def write_arrays(path: Path, arrays: Arrays) -> None:
    """Write a file of arrays atomically: it is either complete or unchanged."""
    with replacing(path) as file:
        write_parts(file.write, arrays)


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Read all arrays of a file; raise `ValueError` if it is not valid."""
    return dict(ArrayFile(path))


def write_parts(
    write: Callable[[Buffer], object], arrays: Arrays, about: Mapping[str, str] | None = None
) -> None:
    """Write a table of contents and its arrays, part by part."""
    table, names = make_table(arrays, about)
    write(table)
    for name in names:
        for part in cut(as_bytes(np.ascontiguousarray(arrays[name]))):
            write(part)


def hash_arrays(arrays: Iterable[NDArray[Any]]) -> bytes:
    """Return the SHA-256 of arrays that follow each other."""
    digest = hashlib.sha256()
    for values in arrays:
        digest.update(np.ascontiguousarray(values).data)
    return digest.digest()


def as_bytes(array: NDArray[Any]) -> memoryview:
    """Return the memory of a contiguous array."""
    return array.reshape(-1).view(np.uint8).data


def cut(data: memoryview) -> Iterator[memoryview]:
    """Yield parts of at most `PART` bytes."""
    for start in range(0, len(data), PART):
        yield data[start : start + PART]


def _read_place(entry: Any) -> ArrayPlace:
    if not isinstance(entry, dict) or set(entry) != _ENTRY:
        raise ValueError("an entry is not one of an array")
    kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    lists = isinstance(kind, str) and isinstance(shape, list) and isinstance(offsets, list)
    if (
        not lists
        or kind not in _TYPES
        or not all(type(size) is int and 0 <= size < 1 << 60 for size in shape + offsets)
    ):
        raise ValueError("an entry has an unknown type or place")
    dtype = np.dtype(_TYPES[kind])
    if len(offsets) != 2 or len(shape) > 32 or offsets[1] - offsets[0] != math.prod(shape) * dtype.itemsize:
        raise ValueError("an array's size is not that of its shape")
    return ArrayPlace(dtype, tuple(shape), offsets[0], offsets[1])


def _fill(file: BinaryIO, target: memoryview) -> None:
    """Read from a file until `target` is full."""
    at = 0
    while at < len(target):
        count = file.readinto(target[at : at + PART])  # type: ignore[attr-defined]
        if not count:
            raise ValueError("the file is shorter than its table of contents")
        at += count

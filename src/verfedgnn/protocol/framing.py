"""Encoding of messages as bytes: a fixed header, a small JSON part, and arrays (safetensors) with packed integers.

    magic 4 | version 2 | kind 1 | - 1 | length of the JSON part 4 | length of the arrays 8 | JSON | arrays

Nothing in a message is ever executed, every length is checked before anything is read, and a message holds exactly the fields
that its class declares.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, SkipValidation, ValidationError, create_model

from verfedgnn.core.array_files import as_bytes, cut, make_table, view_arrays
from verfedgnn.core.errors import ProtocolError
from verfedgnn.protocol.integer_packing import TYPES, pack_integers, unpack_integers

MAGIC = b"VFGN"
VERSION = 8
HEADER = struct.Struct("<4sHBxIQ")
MAX_JSON = 1 << 20
"""Largest JSON part in bytes."""
MAX_TABLE = 1 << 16
"""Largest table of contents in front of the arrays, in bytes."""
BESIDES_ARRAYS = HEADER.size + MAX_JSON + MAX_TABLE + 8
"""Largest number of bytes in a message besides its arrays."""
MAX_ARRAY = 1 << 42
"""Largest unpacked array in bytes, if the caller knows no better limit."""

Buffer = bytes | bytearray | memoryview
EncodedMessage = tuple[Buffer, ...]
"""The bytes of one message, in parts that follow each other."""

Bytes = Annotated[NDArray[np.integer[Any]], SkipValidation]
Floats = Annotated[NDArray[np.float32], SkipValidation]
Fixed = Annotated[NDArray[np.integer[Any]], SkipValidation]

KINDS: dict[int, type[Message]] = {}
"""All message classes by the number in the header."""


class Message(BaseModel):
    """Base class of messages: plain fields, and arrays that `arrays` names with their dtype."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, arbitrary_types_allowed=True)
    kind: ClassVar[int]
    arrays: ClassVar[dict[str, str]] = {}

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Register the class under its number; a base class has none."""
        if "kind" not in cls.__dict__:
            return
        assert cls.kind not in KINDS, f"two messages of kind {cls.kind}"
        KINDS[cls.kind] = cls


_ALLOWED = {"any": (*TYPES, "float32"), "float32": ("float32",), "fixed": TYPES}
_PACKED = "uint8"
"""Array type of packed integers on the wire; `integer_packing` restores their own type."""


def encode(message: Message) -> bytes:
    """Encode a message as one piece."""
    return b"".join(encode_parts(message))


def encode_parts(message: Message) -> EncodedMessage:
    """Encode a message as parts.

    Arrays that nobody can write, such as those of a `Replica.full_copy`, are shared and not copied. Many messages can therefore hold
    them at the cost of one.
    """
    text = message.model_dump_json(exclude=set(message.arrays)).encode()
    arrays = {name: getattr(message, name) for name in message.arrays}
    present = {name: _packed(value) for name, value in arrays.items() if value is not None}
    table, names = make_table(present) if present else (b"", [])
    body_size = len(table) + sum(array.nbytes for array in present.values())
    head = HEADER.pack(MAGIC, VERSION, message.kind, len(text), body_size) + text + table
    return (head, *(as_bytes(present[name]) for name in names))


def _packed(value: NDArray[Any]) -> NDArray[Any]:
    if value.dtype.kind != "f":
        return pack_integers(value)
    return np.array(value, order="C") if value.flags.writeable else np.ascontiguousarray(value)


def kind_of(data: Buffer) -> type[Message] | None:
    """Return the class that the header of a message names; None if it names none."""
    return KINDS.get(HEADER.unpack_from(data)[2]) if len(data) >= HEADER.size else None


def decode(data: Buffer, most: int = MAX_ARRAY) -> Message:
    """Decode a message; raise a `ProtocolError` that repeats none of its content if it is not valid.

    Each array unpacked from it may have at most `most` bytes, since few bytes can encode very many zeros. Arrays of floats are views
    of `data` if it can be written, and otherwise of a copy.
    """
    if len(data) < HEADER.size:
        raise ProtocolError(f"the message has {len(data)} bytes, fewer than its header")
    magic, version, kind, text_size, body_size = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise ProtocolError("the data is not a verfedgnn message")
    if version != VERSION:
        raise ProtocolError(
            f"the sender speaks protocol version {version}, this side {VERSION}; update the older one"
        )
    if kind not in KINDS:
        raise ProtocolError(f"unknown message kind {kind}")
    if text_size > MAX_JSON or len(data) != HEADER.size + text_size + body_size:
        raise ProtocolError(
            f"message lengths do not fit: {text_size} + {body_size} bytes announced, {len(data)} received"
        )
    cls = KINDS[kind]
    text = bytes(data[HEADER.size : HEADER.size + text_size])
    arrays = _arrays(cls, memoryview(data)[HEADER.size + text_size :], most) if body_size else {}
    missing = [name for name in cls.arrays if cls.model_fields[name].is_required() and name not in arrays]
    if missing:
        raise ProtocolError(f"{cls.__name__}: array '{missing[0]}' is missing")
    try:
        return cls.model_construct(**(dict(_plain(cls).model_validate_json(text)) | arrays))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        known = first["loc"][0] if first["loc"] and first["loc"][0] in cls.model_fields else "?"
        raise ProtocolError(f"{cls.__name__}: field '{known}': {first['type']}") from None


def _arrays(cls: type[Message], body: memoryview, most: int) -> dict[str, NDArray[Any]]:
    try:
        arrays = view_arrays(memoryview(bytearray(body)) if body.readonly else body, MAX_TABLE)
    except ValueError as error:
        raise ProtocolError(f"{cls.__name__}: unreadable arrays ({error})") from None
    for name, value in arrays.items():
        allowed = _ALLOWED.get(cls.arrays.get(name, ""), ())
        if value.dtype == _PACKED and value.ndim == 1 and name in cls.arrays:
            value = arrays[name] = unpack_integers(value, most)
        elif value.dtype != np.float32:
            allowed = ()
        if str(value.dtype) not in allowed:
            raise ProtocolError(f"{cls.__name__}: unexpected array or type ({value.dtype})")
        if value.dtype.kind == "f" and not _is_finite(value):
            raise ProtocolError(f"{cls.__name__}: array '{name}' holds a value that is not finite")
    return arrays


def _is_finite(values: NDArray[Any]) -> bool:
    """Return whether all values are finite; judged in parts, which take little memory."""
    return all(np.isfinite(part.view(values.dtype)).all() for part in map(np.asarray, cut(as_bytes(values))))


@cache
def _plain(cls: type[Message]) -> type[BaseModel]:
    """Return a model of the JSON part alone, so that arrays cannot be smuggled in as JSON."""
    fields: dict[str, Any] = {
        n: (f.annotation, f) for n, f in cls.model_fields.items() if n not in cls.arrays
    }
    return create_model(cls.__name__, __config__=ConfigDict(extra="forbid", strict=True), **fields)

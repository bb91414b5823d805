"""The messages of the protocol and their byte encoding: a fixed header, a small JSON part, raw arrays (safetensors).

    magic 4 | version 2 | kind 1 | - 1 | length of the JSON part 4 | length of the arrays 8 | JSON | arrays

Nothing in a message is ever executed, every length is checked before anything is read, and a message holds exactly the
fields declared here. docs/protocol.md says who sends which and what it tells.
"""

from __future__ import annotations

import struct
from typing import Annotated, Any, ClassVar

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, SkipValidation, ValidationError, create_model

from verfedgnn.errors import ProtocolError

MAGIC = b"VFGN"
VERSION = 1
HEADER = struct.Struct("<4sHBxIQ")
MAX_JSON = 1 << 20
MAX_ARRAYS = 1 << 33
"""Above any federation we know of (a full copy for 100 million parameters is 0.8 GB); a transport may set less."""

Bytes = Annotated[NDArray[np.integer[Any]], SkipValidation]
Floats = Annotated[NDArray[np.float32], SkipValidation]
Fixed = Annotated[NDArray[np.int32], SkipValidation]


class Message(BaseModel):
    """A message: plain fields, and arrays named in `arrays` with their dtype."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, arbitrary_types_allowed=True)
    kind: ClassVar[int]
    arrays: ClassVar[dict[str, str]] = {}


class Hello(Message):
    """Party to coordinator, on joining: who it is and the sizes that are public by agreement."""

    kind = 1
    party: str = Field(min_length=1, max_length=200)
    users: int = Field(ge=1)
    """N, the number of common users; the same everywhere."""
    items: int = Field(ge=1)
    """M_p, shared with all parties (Sec. 3.1)."""
    ratings: int = Field(ge=0)
    """Training ratings, so that a round's batch can be shared out."""
    scale: tuple[float, float]
    """Lowest and highest rating, for the initial values."""
    config: str = Field(max_length=64)
    """Fingerprint of the configuration."""
    mask_key: str | None = Field(None, pattern="^[0-9a-f]{64}$")
    """Public key of the party's masks, with masking."""


class Welcome(Message):
    """Coordinator to party: its place, everybody's sizes, a full copy of the public parameters."""

    kind = 2
    arrays = {"parameters": "float32", "accumulator": "float32"}
    index: int = Field(ge=0)
    items: list[int]
    """M_i of all parties, in order."""
    mask_keys: list[str] | None = None
    """Public keys of all parties, in order, with masking."""
    rounds_per_epoch: int = Field(ge=1)
    round: int = Field(ge=0)
    parameters: Floats
    accumulator: Floats
    """State of the optimiser, one value a parameter."""


class RoundStart(Message):
    """Coordinator to party: what the last rounds changed, and what to do now."""

    kind = 3
    arrays = {"updates": "any", "neighbourhoods": "int32", "parameters": "float32", "accumulator": "float32"}
    round: int = Field(ge=1)
    trip: int = Field(ge=0)
    """0 for the training trip of a round, counted down from `exchange.refresh` for exchange-only ones."""
    active: list[int]
    """A_t, the parties that take part; masks are between them."""
    train: bool
    """Compute gradients and send them."""
    exchange: bool
    """Send neighbourhoods."""
    evaluate: bool
    """Send the squared error on the validation part."""
    best_round: int = Field(ge=0)
    """Round of the best evaluation so far; whoever holds the model of that round keeps it."""
    updates_from: int = Field(ge=0)
    """Round of the first update below."""
    update_parties: list[list[int]]
    """For each update, whose gradients it sums."""
    updates: Bytes | Floats | None = None
    """Summed protected gradients, one row per update: packed integers, or float32 without quantization."""
    neighbourhood_parties: list[int]
    """Whose neighbourhoods the sum below holds."""
    neighbourhoods: Fixed | None = None
    """Sum of projected neighbourhoods (K, q, C), fixed point."""
    parameters: Floats | None = None
    """A full copy in place of updates, for a party that missed many."""
    accumulator: Floats | None = None


class RoundReply(Message):
    """Party to coordinator: its protected share of the round."""

    kind = 4
    arrays = {"gradient": "any", "neighbourhoods": "int32"}
    round: int = Field(ge=1)
    trip: int = Field(ge=0)
    gradient: Bytes | Floats | None = None
    """Ternary gradient of the public parameters, packed, or masked with a whole integer each; float32 without quantization."""
    neighbourhoods: Fixed | None = None
    """Projected own neighbourhoods (K, q, C), fixed point."""
    squared_error: float | None = Field(None, ge=0)
    """Sum over the party's validation ratings, when asked."""
    count: int | None = Field(None, ge=0)
    """Number of those ratings."""
    digest: str | None = Field(None, max_length=64)
    """Hash of the party's public parameters, sent with an evaluation."""


class Finish(Message):
    """Coordinator to party: training is over."""

    kind = 5
    round: int = Field(ge=0)
    best_round: int = Field(ge=0)
    """As in RoundStart."""


KINDS: dict[int, type[Message]] = {cls.kind: cls for cls in (Hello, Welcome, RoundStart, RoundReply, Finish)}
_ALLOWED = {"any": ("uint8", "int8", "int16", "float32"), "float32": ("float32",), "int32": ("int32",)}


def encode(message: Message) -> bytes:
    """The message as bytes."""
    arrays = {name: getattr(message, name) for name in message.arrays}
    present = {name: np.ascontiguousarray(value) for name, value in arrays.items() if value is not None}
    text = message.model_dump_json(exclude=set(message.arrays)).encode()
    body = safetensors.numpy.save(present) if present else b""
    return HEADER.pack(MAGIC, VERSION, message.kind, len(text), len(body)) + text + body


def decode(data: bytes, max_arrays: int = MAX_ARRAYS) -> Message:
    """The message behind `data`, or a ProtocolError that says what is wrong without repeating any of it."""
    if len(data) < HEADER.size:
        raise ProtocolError(f"a message of {len(data)} bytes is shorter than its header")
    magic, version, kind, text_size, body_size = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise ProtocolError("not a verfedgnn message")
    if version != VERSION:
        raise ProtocolError(f"the sender speaks protocol version {version}, this side {VERSION}: update the older one")
    if kind not in KINDS:
        raise ProtocolError(f"unknown message kind {kind}")
    if text_size > MAX_JSON or body_size > max_arrays or len(data) != HEADER.size + text_size + body_size:
        raise ProtocolError(f"message lengths do not fit: {text_size} + {body_size} bytes announced, {len(data)} received")
    cls = KINDS[kind]
    text = bytes(data[HEADER.size : HEADER.size + text_size])
    arrays = _arrays(cls, bytes(data[HEADER.size + text_size :])) if body_size else {}
    missing = [name for name in cls.arrays if cls.model_fields[name].is_required() and name not in arrays]
    if missing:
        raise ProtocolError(f"{cls.__name__}: array '{missing[0]}' is missing")
    try:
        plain = _Plain[cls].model_validate_json(text)
        return cls.model_construct(**(dict(plain) | arrays))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        known = first["loc"][0] if first["loc"] and first["loc"][0] in cls.model_fields else "?"
        raise ProtocolError(f"{cls.__name__}: field '{known}': {first['type']}") from None


def _arrays(cls: type[Message], body: bytes) -> dict[str, NDArray[Any]]:
    try:
        arrays = safetensors.numpy.load(body)
    except Exception as error:  # safetensors raises several kinds, and numpy's for odd shapes
        raise ProtocolError(f"{cls.__name__}: unreadable arrays ({type(error).__name__})") from None
    for name, value in arrays.items():
        allowed = _ALLOWED.get(cls.arrays.get(name, ""), ())
        if str(value.dtype) not in allowed:
            raise ProtocolError(f"{cls.__name__}: unexpected array or type ({value.dtype})")
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            raise ProtocolError(f"{cls.__name__}: array '{name}' holds a value that is not finite")
    return arrays


def _plain(cls: type[Message]) -> type[BaseModel]:
    """The JSON part of a message as a model of its own, so that arrays cannot be smuggled in as JSON."""
    fields: dict[str, Any] = {n: (f.annotation, f) for n, f in cls.model_fields.items() if n not in cls.arrays}
    return create_model(cls.__name__, __config__=ConfigDict(extra="forbid", strict=True), **fields)


_Plain: dict[type[Message], type[BaseModel]] = {cls: _plain(cls) for cls in KINDS.values()}

"""The messages of the protocol, and how they travel. docs/protocol.md says who sends each of them and what it reveals.

A message is encoded as a fixed header, a small JSON part, and arrays (safetensors) with packed integers:

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
from pydantic import BaseModel, ConfigDict, Field, SkipValidation, ValidationError, create_model

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

Integers = Annotated[NDArray[np.integer[Any]], SkipValidation]
Floats = Annotated[NDArray[np.float32], SkipValidation]

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
    present = {name: value for name in message.arrays if (value := getattr(message, name)) is not None}
    for name, value in present.items():
        if value.dtype.kind != "f":
            present[name] = pack_integers(value)
        else:
            present[name] = (
                np.array(value, order="C") if value.flags.writeable else np.ascontiguousarray(value)
            )
    table, names = make_table(present) if present else (b"", [])
    body_size = len(table) + sum(array.nbytes for array in present.values())
    head = HEADER.pack(MAGIC, VERSION, message.kind, len(text), body_size) + text + table
    return (head, *(as_bytes(present[name]) for name in names))


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
        announced = f"{text_size} + {body_size} bytes announced"
        raise ProtocolError(f"message lengths do not fit: {announced}, {len(data)} received")
    cls, text = KINDS[kind], bytes(data[HEADER.size : HEADER.size + text_size])
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
    plain = {name: field for name, field in cls.model_fields.items() if name not in cls.arrays}
    fields: dict[str, Any] = {name: (field.annotation, field) for name, field in plain.items()}
    return create_model(cls.__name__, __config__=ConfigDict(extra="forbid", strict=True), **fields)


# -- the messages ----------------------------------------------------------------------------------------------------------


Place = tuple[int, int]
"""Round and attempt."""

_KEY = "^[0-9a-f]{64}$"
_SIGNATURE = "^[0-9a-f]{2,200}$"
_WORD = r"^[A-Za-z0-9_.+% -]{0,64}$"
Word = Annotated[str, Field(pattern=_WORD)]
"""A short text that can be shown anywhere."""
_MOST = 1 << 40
"""Largest number of users, items or ratings: more than anybody has, small enough to compute with."""

Star = Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)]
"""A rating."""


class Hello(Message):
    """A party's first message to the coordinator: its name, and the sizes that are public by agreement."""

    kind = 1
    party: str = Field(min_length=1, max_length=200)
    users: int = Field(ge=1, le=_MOST)
    """N, the number of common users; the same at every party."""
    items: int = Field(ge=1, le=_MOST)
    """M_p, shared with all parties (Sec. 3.1)."""
    ratings: int = Field(ge=0, le=_MOST)
    """Number of training ratings, by which a round's batch is shared among the parties."""
    scale: tuple[Star, Star]
    """Lowest and highest rating, for the initial values."""
    config: str = Field(max_length=64)
    stay: str = Field("", max_length=64)
    """Random name of this stay; the Welcome that answers this Hello repeats it."""
    agreement: str | None = Field(None, max_length=64)
    """SHA-256 of the federation file: roster, certificates, rules."""
    alignment: str | None = Field(None, max_length=64)
    """Name of the user alignment that its rows follow; the same at every party."""
    training: str | None = Field(None, max_length=64)
    """The training that its checkpoint belongs to, if it has one."""
    round: int = Field(0, ge=0, lt=1 << 32)
    """Round of its last confirmed validation, if there is one."""
    digest: str | None = Field(None, max_length=64)
    """Hash of its public parameters in that round."""
    released: int | None = Field(None, ge=0, lt=1 << 32)
    """Last round of which it has released something, according to its run folder; None without one."""
    lost: int = Field(0, ge=0, lt=1 << 32)
    """Round that it has released and cannot repeat, because a power cut took the values; 0 if there is none."""
    mask_key: str | None = Field(None, pattern=_KEY)
    """Public key for sealed messages between parties, if masking is on; new for every stay."""
    mask_signature: str | None = Field(None, pattern=_SIGNATURE)
    """Signature of that key by the party's certificate."""


class Welcome(Message):
    """The coordinator's answer to a Hello: the party's place, all sizes, the public parameters.

    It has no copy of them before the first round, since the party draws them from the agreed seed.
    """

    kind = 2
    arrays: ClassVar = {"parameters": "float32", "accumulator": "float32"}
    index: int = Field(ge=0)
    items: list[Annotated[int, Field(ge=1, le=_MOST)]] = Field(min_length=1)
    """M_i of all parties, in order."""
    stay: str = Field(max_length=64)
    training: str = Field(max_length=64)
    """Random name of this training, so that no checkpoint of another training is mistaken for it."""
    config: str = Field(max_length=64)
    ratings: int = Field(ge=0, le=_MOST)
    """Training ratings of all parties together."""
    typical: float = Field(gt=0, le=1e6)
    """Mean of the parties' typical ratings, for the initial values."""
    round: int = Field(ge=0, lt=1 << 32)
    parameters: Floats | None = None
    """Full copy of the parameters; None before the first round."""
    accumulator: Floats | None = None
    digest: str = Field(max_length=64)
    """Hash of the coordinator's parameters and the state of the optimiser."""


class AttemptMessage(Message):
    """A message about one attempt of a round. An attempt is repeated because a party was lost; each has its own masks."""

    round: int = Field(ge=1, lt=1 << 32)
    attempt: int = Field(0, ge=0, le=65535)

    @property
    def place(self) -> Place:
        """Round and attempt."""
        return self.round, self.attempt


class RoundStart(AttemptMessage):
    """The coordinator's start of a round: what the last rounds changed, and what to do now."""

    kind = 3
    arrays: ClassVar = {
        "updates": "any",
        "neighbourhoods": "fixed",
        "parameters": "float32",
        "accumulator": "float32",
    }
    active: list[int]
    """A_t, the parties that train, and mask their values for each other; the others only validate."""
    evaluate: bool
    best_round: int = Field(ge=0)
    """Round of the best validation so far; a party that has the model of that round keeps it."""
    updates_from: int = Field(ge=0)
    """Round of the first update in `updates`."""
    update_parties: list[list[int]]
    """For each update, the parties whose gradients it sums; empty for an abandoned round, which has no update."""
    updates: Integers | Floats | None = None
    """Summed protected gradients, one round after the other."""
    neighbourhood_parties: list[int]
    """Parties whose neighbourhoods `neighbourhoods` sums; empty without a sum."""
    neighbourhood_round: int = Field(0, ge=0)
    neighbourhoods: Integers | None = None
    """Sum of neighbourhoods (K, q, C) in fixed point, unless the party has it already."""
    parameters: Floats | None = None
    """Full copy instead of updates, for a party that missed many."""
    accumulator: Floats | None = None


def copied_state(message: Welcome | RoundStart) -> dict[str, Floats]:
    """Return the full copy of the public parameters in a message, by name of the array; empty if it has none."""
    arrays = {"parameters": message.parameters, "accumulator": message.accumulator}
    return {name: values for name, values in arrays.items() if values is not None}


class RoundReply(AttemptMessage):
    """A party's answer to a RoundStart: its protected share of the round."""

    kind = 4
    arrays: ClassVar = {"gradient": "any", "neighbourhoods": "fixed"}
    gradient: Integers | Floats | None = None
    """Protected gradient of the public parameters: signs, residues if masked, or real numbers."""
    neighbourhoods: Integers | None = None
    """The party's neighbourhoods (K, q, C) in fixed point, projected or masked."""
    error: float | None = Field(None, ge=0, le=1e30, allow_inf_nan=False)
    """If asked: squared errors summed over the party's validation ratings, or 1 - NDCG@20 summed over its users."""
    count: int | None = Field(None, ge=0, le=_MOST)
    digest: str | None = Field(None, max_length=64)
    """Hash of the party's public parameters, sent with a validation."""


class ShareRequest(AttemptMessage):
    """The coordinator's request for fresh mask keys and shares for one attempt of a round."""

    kind = 9
    request: str = Field(max_length=64)
    """Random name of this request, which the answers repeat."""
    active: list[int]
    mask_keys: list[str]
    """Public keys of the active parties' stays, in order."""
    mask_signatures: list[str]
    """Signatures of these keys by the parties' certificates."""


class MaskShares(AttemptMessage):
    """A party's public mask key for one attempt of a round, and sealed shares of its two seeds for every active party."""

    kind = 10
    arrays: ClassVar = {"sealed": "fixed"}
    request: str = Field(max_length=64)
    key: str = Field(pattern=_KEY)
    sealed: Integers
    """One row for each active party: that party's shares, sealed for it."""
    committed: list[int] | None = None
    """The survivor list that the party committed to in an earlier attempt of this round, if there was one."""


class RoundShares(AttemptMessage):
    """The active parties' public mask keys, and the shares that they sealed for the recipient."""

    kind = 11
    arrays: ClassVar = {"sealed": "fixed"}
    round_keys: list[Annotated[str, Field(pattern=_KEY)]]
    """Public mask keys of the active parties, in order."""
    sealed: Integers


class Survivors(AttemptMessage):
    """The coordinator's list of the parties whose masked replies it adds up."""

    kind = 12
    survivors: list[int]
    signatures: list[Annotated[str, Field(max_length=200)]] | None = None
    """Signatures of this list by the survivors, in order, "" if missing; None while they are being collected or if nobody was lost."""


class ListSignature(AttemptMessage):
    """A party's signature of a survivor list. It commits the party to that list."""

    kind = 13
    signature: str = Field(max_length=200)


class Unmask(AttemptMessage):
    """A party's shares for one survivor list: of a survivor's self-mask, or of a lost party's mask key."""

    kind = 14
    arrays: ClassVar = {"shares": "fixed"}
    shares: Integers
    """One share for each active party, in order."""


class Finish(Message):
    """The coordinator's last message: the public parameters of the best validation, to parties that do not have them."""

    kind = 5
    arrays: ClassVar = {"parameters": "float32"}
    round: int = Field(ge=0)
    best_round: int = Field(ge=0)
    """As in RoundStart."""
    parameters: Floats | None = None
    """None for a party that took part in the best validation and has not rejoined since."""
    digest: str = Field(max_length=64)


class Finished(Message):
    """A party's last message: it has its model."""

    kind = 6
    digest: str = Field(max_length=64)
    """Hash of the public parameters that it keeps."""


class Refused(Message):
    """Sent in either direction: why a message was refused. The sender continues without the recipient."""

    kind = 7
    reason: str = Field(max_length=500)


class Waiting(Message):
    """The coordinator's acknowledgement: which parties are still missing."""

    kind = 8
    missing: list[str]
    align: bool = False
    """Whether all parties must align again, because a party came without aligned users."""
    second: bool = False
    """Whether a second process wanted to join under the recipient's name, and was refused."""


class About(Message):
    """A party's first message on a connection: its software, and the verdict on its last run if it chose to share that."""

    kind = 22
    version: str = Field(pattern=_WORD)
    run: str = Field("", pattern=_WORD)
    """Name of the run that was judged; "" without a verdict."""
    word: str = Field("", pattern=_WORD)
    """Whether joining pays, in one word."""
    gain: str = Field("", pattern=_WORD)
    """What customers gain, rounded."""


class MembersPage(Message):
    """The coordinator's message of what all members may see besides the rounds, sent when it changes."""

    kind = 23
    members: dict[Word, About] = Field(max_length=1000)
    """What each member said of itself, by name."""
    nights: list[tuple[Word, Word]] = Field(max_length=100)
    """The coordinator's last nights and their results, oldest first."""
    offer: str = Field(max_length=64)
    """SHA-256 of the coordinator's federation.toml, which may have changed since the start."""


# -- The messages of user alignment; `protocol.user_alignment` says who sends which when -------------------


MOST_USERS = 1 << 31
"""Users of a party and rows of a federation, at most; row numbers are 32-bit integers."""
_SESSION = "^[0-9a-f]{32}$"


class AlignHello(Message):
    """A party's announcement to the coordinator that it is ready to align."""

    kind = 16
    party: str = Field(min_length=1, max_length=200)
    agreement: str = Field(max_length=64)
    users: int = Field(ge=1, lt=MOST_USERS)
    """Number of pseudonyms the party will send, padding included."""
    seal_key: str = Field(pattern="^[0-9a-f]{64}$")
    """Public key with which other parties seal messages for this one."""
    seal_signature: str = Field(pattern="^[0-9a-f]{2,200}$")


class AlignmentMessage(Message):
    """A message of one session of user alignment."""

    session: str = Field(pattern=_SESSION)


class AlignStart(AlignmentMessage):
    """The coordinator's message to every party that all are present."""

    kind = 17
    index: int = Field(ge=0)
    seal_keys: list[str]
    seal_signatures: list[str]


class Sealed(AlignmentMessage):
    """A message from party to party, relayed by the coordinator, which cannot read it."""

    kind = 18
    arrays: ClassVar = {"data": "any"}
    peer: int = Field(ge=0)
    """Index of the recipient on the way up, of the sender on the way down."""
    data: Integers


class Pseudonyms(AlignmentMessage):
    """A party's users as pseudonyms, sent to the coordinator."""

    kind = 19
    arrays: ClassVar = {"values": "any"}
    values: Integers
    """Pseudonyms (n, 16), sorted and distinct."""


class UserRows(AlignmentMessage):
    """The coordinator's answer to a party: the row of each of its pseudonyms."""

    kind = 20
    arrays: ClassVar = {"rows": "fixed"}
    users: int = Field(ge=0, lt=MOST_USERS)
    """Number of rows of the federation; 0 if the parties share no user."""
    rows: Integers
    """Rows (n,) in the order of the pseudonyms, -1 for users who do not take part."""


class Aligned(AlignmentMessage):
    """A party's confirmation to the coordinator that it has its rows."""

    kind = 21
    users: int = Field(ge=0, lt=MOST_USERS)

"""The messages with which parties find their common users; `alignment` says who sends which when."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from verfedgnn.protocol.wire.framing import Bytes, Message

_SESSION = "^[0-9a-f]{32}$"


class AlignHello(Message):
    """Party to coordinator: ready to align."""

    kind = 16
    party: str = Field(min_length=1, max_length=200)
    agreement: str = Field(max_length=64)
    seal_key: str = Field(pattern="^[0-9a-f]{64}$")
    """Public key for what other parties seal for this one."""
    seal_signature: str = Field(pattern="^[0-9a-f]{2,200}$")


class AlignStart(Message):
    """Coordinator to party: everybody is there."""

    kind = 17
    session: str = Field(pattern=_SESSION)
    index: int = Field(ge=0)
    seal_keys: list[str]
    seal_signatures: list[str]


class Sealed(Message):
    """Party to party, through the coordinator, which cannot read it."""

    kind = 18
    arrays: ClassVar = {"data": "any"}
    session: str = Field(pattern=_SESSION)
    peer: int = Field(ge=0)
    """The recipient on the way up, the sender on the way down."""
    data: Bytes


class Pseudonyms(Message):
    """Party to coordinator: its users under the parties' key, sorted."""

    kind = 19
    arrays: ClassVar = {"values": "any"}
    session: str = Field(pattern=_SESSION)
    values: Bytes


class Common(Message):
    """Coordinator to party: which of the pseudonyms it sent are everybody's, a bit each."""

    kind = 20
    arrays: ClassVar = {"members": "any"}
    session: str = Field(pattern=_SESSION)
    count: int = Field(ge=0)
    members: Bytes


class Aligned(Message):
    """Party to coordinator: it has the common users."""

    kind = 21
    session: str = Field(pattern=_SESSION)
    users: int = Field(ge=0, le=1 << 40)

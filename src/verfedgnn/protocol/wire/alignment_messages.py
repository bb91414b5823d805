"""The messages of user alignment; `protocol.user_alignment` says who sends which when."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from verfedgnn.protocol.wire.framing import Bytes, Fixed, Message

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


class AlignStart(Message):
    """The coordinator's message to every party that all are present."""

    kind = 17
    session: str = Field(pattern=_SESSION)
    index: int = Field(ge=0)
    seal_keys: list[str]
    seal_signatures: list[str]


class Sealed(Message):
    """A message from party to party, relayed by the coordinator, which cannot read it."""

    kind = 18
    arrays: ClassVar = {"data": "any"}
    session: str = Field(pattern=_SESSION)
    peer: int = Field(ge=0)
    """Index of the recipient on the way up, of the sender on the way down."""
    data: Bytes


class Pseudonyms(Message):
    """A party's users as pseudonyms, sent to the coordinator."""

    kind = 19
    arrays: ClassVar = {"values": "any"}
    session: str = Field(pattern=_SESSION)
    values: Bytes
    """Pseudonyms (n, 16), sorted and distinct."""


class UserRows(Message):
    """The coordinator's answer to a party: the row of each of its pseudonyms."""

    kind = 20
    arrays: ClassVar = {"rows": "fixed"}
    session: str = Field(pattern=_SESSION)
    users: int = Field(ge=0, lt=MOST_USERS)
    """Number of rows of the federation; 0 if the parties share no user."""
    rows: Fixed
    """Rows (n,) in the order of the pseudonyms, -1 for users who do not take part."""


class Aligned(Message):
    """A party's confirmation to the coordinator that it has its rows."""

    kind = 21
    session: str = Field(pattern=_SESSION)
    users: int = Field(ge=0, lt=MOST_USERS)

"""What the services need of a network: messages of any size to and from authenticated peers, as bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from verfedgnn.protocol.messages import Buffer, EncodedMessage

PART_BYTES = 1 << 24
"""Number of bytes of a message that are written or read at a time."""
ABOUT = "/about"
"""Path under which the coordinator tells a party about itself, without letting it join."""
AGREEMENT = "/agreement"
"""Path under which it hands out its federation.toml."""
HOLDS = "Verfedgnn-Agreement"
"""Header in which a party says which agreement it holds, by its SHA-256."""
OUTBOX_MESSAGES = 64
"""How often messages may be sent to one slow peer, and wait, before it is disconnected."""
OUTBOX_BYTES = 1 << 31
"""Number of bytes that may wait for one slow peer before it is disconnected; twice its largest message if that is more."""


@dataclass(frozen=True)
class TransportEvent:
    """Something that happened to a peer.

    joined, left: It has connected and can send, or is gone.
    message: It sent `data`.
    part: A part of a large message arrived.
    broken: It sent what is no acceptable message, for the `reason` given.
    second: A second process wants to join under its name and was refused.

    `peer` is authenticated: nobody without its key can use that name.
    """

    kind: Literal["joined", "left", "message", "part", "broken", "second"]
    peer: str
    data: Buffer = b""
    reason: str = ""


class Transport(Protocol):
    """A carrier of bytes between a coordinator and its parties, ignorant of their meaning."""

    largest: int
    """Number of bytes of the largest message to accept from a peer."""
    holds: dict[str, str]
    """SHA-256 of the agreement that peers said they hold, besides their messages."""

    def send(self, to: str, *messages: EncodedMessage) -> None:
        """Queue messages and return at once. Those to an absent peer are lost; a `left` event reports it."""

    def next(self, timeout: float) -> TransportEvent | None:
        """Return the next event, or None after `timeout` seconds without one."""

    def close(self) -> None:
        """Deliver queued messages for a short time at most, then end all connections."""


def size_of(*messages: EncodedMessage) -> int:
    """Return the number of bytes of encoded messages."""
    return sum(len(part) for message in messages for part in message)


def too_large(peer: str, largest: int) -> TransportEvent:
    """Return the event of a message with more than the `largest` number of bytes."""
    return TransportEvent("broken", peer, reason=f"a message where at most {largest:,} bytes are expected")

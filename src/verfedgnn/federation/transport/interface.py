"""The interface between a federation and its network: send bytes to a peer, and receive events in order of arrival."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from verfedgnn.protocol.wire.framing import Buffer, EncodedMessage


@dataclass(frozen=True)
class TransportEvent:
    """Something that happened to a peer.

    joined, left: It has connected and can send, or is gone.
    message: It sent `data`.
    part: A part of a large message arrived.
    broken: It sent what is no part of an acceptable message, for the `reason` given.
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

    def send(self, to: str, *messages: EncodedMessage) -> None:
        """Queue messages, which travel together, and return at once. Those to an absent peer are lost; a `left` event reports it."""

    def next(self, timeout: float) -> TransportEvent | None:
        """Return the next event, or None after `timeout` seconds without one."""

    def close(self) -> None:
        """Deliver queued messages for a short time at most, then end all connections."""

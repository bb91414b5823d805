"""The interface between a federation and its network: send bytes to a peer, and receive events in order of arrival."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True)
class TransportEvent:
    """A peer that joined or left, a message from it, or a second process that wants to join under its name and was refused.

    `peer` is authenticated: nobody without its key can use that name.
    """

    kind: Literal["joined", "left", "message", "second"]
    peer: str
    data: bytes = b""


class Transport(Protocol):
    """A carrier of bytes between a coordinator and its parties, ignorant of their meaning."""

    def send(self, to: str, data: bytes) -> None:
        """Queue a message and return at once. A message to an absent peer is lost; a `left` event reports the absence."""

    def next(self, timeout: float) -> TransportEvent | None:
        """Return the next event, or None after `timeout` seconds without one."""

    def close(self) -> None:
        """Deliver queued messages for a short time at most, then end all connections."""

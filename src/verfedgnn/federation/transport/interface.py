"""What the federation asks of a network: bytes to a peer, and what happened, in order of arrival."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True)
class TransportEvent:
    """Something that happened on the network. `peer` is authenticated: a name nobody else can claim."""

    kind: Literal["joined", "left", "message"]
    peer: str
    data: bytes = b""


class Transport(Protocol):
    """Carries bytes between a coordinator and its parties; it knows nothing of what they mean."""

    def send(self, to: str, data: bytes) -> None:
        """Hand a message over and return at once. To a peer that is not there it is lost, and `left` has said so or will."""

    def next(self, timeout: float) -> TransportEvent | None:
        """The next event, or None after `timeout` seconds without one."""

    def close(self) -> None:
        """Deliver what was handed over, for a moment at most, and end all connections."""

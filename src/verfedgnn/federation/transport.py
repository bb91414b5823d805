"""What the services need of a network: messages of any size to and from authenticated peers, as bytes."""

from __future__ import annotations

import ssl
from contextlib import closing
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException, HTTPSConnection
from typing import TYPE_CHECKING, Literal, Protocol

from verfedgnn.core.errors import ConfigError
from verfedgnn.federation.certificates import Certificate

if TYPE_CHECKING:
    from verfedgnn.federation.roster import MemberIdentity
    from verfedgnn.protocol.messages import Buffer, EncodedMessage

PART_BYTES = 1 << 24
"""Number of bytes of a message that are written or read at a time."""
ABOUT = "/about"
"""Path under which the coordinator tells a party about itself, without letting it join."""
AGREEMENT = "/agreement"
"""Path under which it hands out its federation.toml."""
HOLDS = "Verfedgnn-Agreement"
"""Header in which a party says which agreement it holds, by its SHA-256."""
_MOST_ANSWER = 1 << 20
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


def ask_coordinator(identity: MemberIdentity, path: str, holds: str = "") -> bytes:
    """Return the coordinator's answer to a party's question; `holds` tells it the digest of an agreement that the party accepted.

    Raise `ConfigError` if it cannot be reached, or is not the agreed one.
    """
    agreement = identity.agreement
    with closing(
        HTTPSConnection(*agreement.endpoint, timeout=10, context=identity.tls_context())
    ) as connection:
        try:
            connection.connect()
            assert isinstance(connection.sock, ssl.SSLSocket)
            pem = ssl.DER_cert_to_PEM_cert(connection.sock.getpeercert(binary_form=True) or b"")
        except OSError as error:
            text = f"cannot reach {agreement.address} ({error.strerror or error})"
            raise ConfigError(f"{text}; ask whether the coordinator is running") from None
        if Certificate(pem).fingerprint != agreement.coordinator.parsed.fingerprint:
            raise ConfigError("another certificate than the agreed one; get the current federation.toml")
        try:
            connection.request("GET", path, headers={HOLDS: holds} if holds else {})
            response = connection.getresponse()
            answer = response.read(_MOST_ANSWER)
        except (OSError, HTTPException):
            text = "the coordinator closed the connection: it does not know this party's certificate"
            raise ConfigError(text) from None
    if response.status != HTTPStatus.OK:
        raise ConfigError(answer.decode("utf-8", "replace")[:500])
    return answer

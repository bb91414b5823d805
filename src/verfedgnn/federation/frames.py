"""Messages of any size between a federation and its network, as frames of a bounded size.

    size of the message 8 | place of this frame's bytes in it 8 | bytes

A message is cut into frames of `FRAME_BYTES`; its last one may be shorter. Frames of one message follow each other in order. A
receiver holds at most one incomplete message of each peer, and no message that is larger than it expects.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from verfedgnn.core.errors import ProtocolError
from verfedgnn.protocol.messages import Buffer, EncodedMessage

FRAME_BYTES = 1 << 24
"""Number of bytes of a message in one frame."""
FRAME_HEAD = struct.Struct("<QQ")
LARGEST_FRAME = FRAME_HEAD.size + FRAME_BYTES
ABOUT = "/about"
"""Path under which the coordinator tells a party about itself, without letting it join."""
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
        """Queue messages and return at once. Those to an absent peer are lost; a `left` event reports it."""

    def next(self, timeout: float) -> TransportEvent | None:
        """Return the next event, or None after `timeout` seconds without one."""

    def close(self) -> None:
        """Deliver queued messages for a short time at most, then end all connections."""


def size_of(message: EncodedMessage) -> int:
    """Return the number of bytes of an encoded message."""
    return sum(map(len, message))


def cut_message(message: EncodedMessage) -> Iterator[bytes]:
    """Yield the frames of a message; each is made when it is asked for."""
    size = size_of(message)
    rest = deque([memoryview(part) for part in message])
    for start in range(0, max(1, size), FRAME_BYTES):
        missing = min(FRAME_BYTES, size - start)
        pieces: list[Buffer] = [FRAME_HEAD.pack(size, start)]
        while missing:
            part = rest.popleft()
            pieces.append(part[:missing])
            if len(part) > missing:
                rest.appendleft(part[missing:])
            missing -= len(pieces[-1])
        yield b"".join(pieces)


class FrameJoiner:
    """The incomplete messages of all peers, at a receiver. `largest` is the size of the largest message that a peer may send now.

    Memory for a message is taken when its first frame arrives, and the operating system provides it as it is filled. A peer that
    announces much and sends little therefore occupies little.
    """

    def __init__(self, largest: int = FRAME_BYTES) -> None:
        self.largest = largest
        self._incomplete: dict[str, tuple[memoryview, int]] = {}
        """The memory of each incomplete message, and how much of it is filled."""

    def take(self, peer: str, frame: Buffer) -> memoryview | None:
        """Add a frame of `peer` and return the message that it completes, or None.

        The rest of a message that was refused is ignored. Raise `ProtocolError` if a message is too large, or if a frame repeats or
        leaves out bytes.
        """
        if len(frame) < FRAME_HEAD.size:
            raise ProtocolError(f"a frame of {len(frame)} bytes is shorter than its head")
        size, start = FRAME_HEAD.unpack_from(frame)
        body = memoryview(frame)[FRAME_HEAD.size :]
        data, filled = self._incomplete.pop(peer, (None, 0))
        if data is not None and (size, start) != (len(data), filled):
            raise ProtocolError(f"a frame begins at byte {start:,} where byte {filled:,} is due")
        if data is None and start:
            return None
        if size > self.largest:
            raise ProtocolError(f"a message of {size:,} bytes, where at most {self.largest:,} are expected")
        if len(body) != min(FRAME_BYTES, size - start):
            raise ProtocolError(f"a frame has {len(body):,} bytes, not as many as its place in the message")
        if data is None:
            if len(body) == size:
                return body
            data = np.empty(size, np.uint8).data
        filled += len(body)
        data[start:filled] = body
        if filled == size:
            return data
        self._incomplete[peer] = (data, filled)
        return None

    def join(self, event: TransportEvent) -> TransportEvent:
        """Return what a transport reports for an event whose data are a frame: a message, a part of one, or why it is refused."""
        if event.kind in ("joined", "left"):
            self._incomplete.pop(event.peer, None)
        if event.kind != "message":
            return event
        try:
            data = self.take(event.peer, event.data)
        except ProtocolError as error:
            return TransportEvent("broken", event.peer, reason=str(error))
        return (
            TransportEvent("part", event.peer)
            if data is None
            else TransportEvent("message", event.peer, data)
        )

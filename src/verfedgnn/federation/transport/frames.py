"""Messages of any size as frames of a bounded size.

    size of the message 8 | place of this frame's bytes in it 8 | bytes

A message is cut into frames of `FRAME_BYTES`; its last one may be shorter. Frames of one message follow each other in order. Small
frames of messages that are sent together travel as one, one after the other. A receiver holds at most one incomplete message of each
peer, and no message that is larger than it expects.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

import numpy as np

from verfedgnn.core.errors import ProtocolError
from verfedgnn.federation.transport.interface import TransportEvent
from verfedgnn.protocol.wire.framing import Buffer, EncodedMessage

FRAME_BYTES = 1 << 24
"""Number of bytes of a message in one frame."""
FRAME_HEAD = struct.Struct("<QQ")
LARGEST_FRAME = FRAME_HEAD.size + FRAME_BYTES
MOST_TOGETHER = 4
"""Number of frames that may travel as one, so that few bytes cannot keep a receiver busy for long."""


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


def cut_messages(messages: Iterable[EncodedMessage]) -> Iterator[bytes]:
    """Yield the frames of messages that are sent together; small ones travel as one."""
    full = FRAME_HEAD.size + FRAME_BYTES
    together: list[bytes] = []
    for frame in chain.from_iterable(map(cut_message, messages)):
        if len(together) == MOST_TOGETHER or (together and len(frame) + sum(map(len, together)) > full):
            yield b"".join(together)
            together = []
        if len(frame) == full:
            yield frame
        else:
            together.append(frame)
    if together:
        yield b"".join(together)


def split_frames(data: Buffer) -> Iterator[Buffer]:
    """Yield the frames that travelled as one. The last one has all that is left, be it too little or too much."""
    rest = memoryview(data)
    for _ in range(MOST_TOGETHER - 1):
        if len(rest) < FRAME_HEAD.size:
            break
        size, start = FRAME_HEAD.unpack_from(rest)
        stop = FRAME_HEAD.size + min(FRAME_BYTES, size - start)
        if not FRAME_HEAD.size <= stop < len(rest):
            break
        yield rest[:stop]
        rest = rest[stop:]
    yield rest


class _Incomplete(NamedTuple):
    """The received part of a message."""

    data: memoryview
    filled: int


class FrameJoiner:
    """The incomplete messages of all peers. `largest` is the size of the largest message that a peer may send now.

    Memory for a message is taken when its first frame arrives, and the operating system provides it as it is filled. A peer that
    announces much and sends little therefore occupies little.
    """

    def __init__(self, largest: int = FRAME_BYTES) -> None:
        self.largest = largest
        self._incomplete: dict[str, _Incomplete] = {}

    def take(self, peer: str, frame: Buffer) -> memoryview | None:
        """Add a frame of `peer` and return the message that it completes, or None.

        The rest of a message that was refused is ignored. Raise `ProtocolError` if a message is too large, or if a frame repeats or
        leaves out bytes.
        """
        if len(frame) < FRAME_HEAD.size:
            raise ProtocolError(f"a frame of {len(frame)} bytes is shorter than its head")
        size, start = FRAME_HEAD.unpack_from(frame)
        body = memoryview(frame)[FRAME_HEAD.size :]
        known = self._incomplete.pop(peer, None)
        if known is not None:
            if (size, start) != (len(known.data), known.filled):
                raise ProtocolError(f"a frame begins at byte {start:,} where byte {known.filled:,} is due")
        elif start:
            return None
        if size > self.largest:
            raise ProtocolError(f"a message of {size:,} bytes, where at most {self.largest:,} are expected")
        if len(body) != min(FRAME_BYTES, size - start):
            raise ProtocolError(
                f"a frame has {len(body):,} bytes, fewer or more than its place in the message has"
            )
        if start == 0 and len(body) == size:
            return body
        data = np.empty(size, np.uint8).data if start == 0 or known is None else known.data
        data[start : start + len(body)] = body
        filled = start + len(body)
        if filled == size:
            return data
        self._incomplete[peer] = _Incomplete(data, filled)
        return None

    def drop(self, peer: str) -> None:
        """Forget the incomplete message of a peer that has left."""
        self._incomplete.pop(peer, None)


def join_frames(joiner: FrameJoiner, event: TransportEvent) -> Iterator[TransportEvent]:
    """Yield what a transport reports for an event whose data are frames: messages, parts of one, or why the rest is refused."""
    if event.kind in ("joined", "left"):
        joiner.drop(event.peer)
    if event.kind != "message":
        yield event
        return
    for frame in split_frames(event.data):
        try:
            data = joiner.take(event.peer, frame)
        except ProtocolError as error:
            yield TransportEvent("broken", event.peer, reason=str(error))
            return
        yield (
            TransportEvent("part", event.peer)
            if data is None
            else TransportEvent("message", event.peer, data)
        )

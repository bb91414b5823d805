"""A party's connection to the coordinator: messages both ways, byte counts, and joining again after interruptions."""

from __future__ import annotations

import time
from collections.abc import Callable

from verfedgnn.core.errors import Interrupted, ProtocolError, VerFedGNNError
from verfedgnn.federation.certificates import COORDINATOR
from verfedgnn.federation.event_log import log_event, log_warning
from verfedgnn.federation.identity import MemberIdentity
from verfedgnn.federation.transcript import ALIGNMENT, Transcript, mark_message
from verfedgnn.federation.transport.interface import Transport
from verfedgnn.protocol.party.common_statements import common_statements
from verfedgnn.protocol.round.message_sizes import largest_alignment
from verfedgnn.protocol.round.user_blocks import UserBlocks
from verfedgnn.protocol.wire.framing import Buffer, kind_of
from verfedgnn.protocol.wire.messages import (
    Message,
    Refused,
    RoundStart,
    Waiting,
    decode,
    encode_parts,
)
from verfedgnn.runs.ledger import Ledger

_TICK = 0.25


class CoordinatorLink:
    """A party's end of the connection. It counts bytes and says hello again after every interruption."""

    def __init__(
        self,
        identity: MemberIdentity,
        transport: Transport,
        stop: Callable[[], bool],
        transcript: Transcript,
    ) -> None:
        self.agreement = identity.agreement
        self.transport = transport
        self.transcript = transcript
        self.stop = stop
        self.name = identity.name
        self.ledger = Ledger()
        self.connected = False
        self._largest_array: int | None = None
        """Bytes of the largest packed array that a RoundStart may hold; None until the model is known."""
        self.stage = ALIGNMENT
        """Name of the present training, or "alignment"."""
        self.blocks: UserBlocks | None = None
        """Blocks of users of the present training; None before it."""
        self.heard: float | None = None
        """Unix time of the last message from the coordinator; None before the first."""
        self._last_heard = 0.0
        self._last_hello = 0.0
        aligns = self.agreement.alignment != "none"
        self._largest_alignment = largest_alignment(self.agreement.max_users if aligns else 0)
        transport.largest = self._largest_alignment

    def expect(self, largest_message: int, largest_array: int) -> None:
        """Accept messages of a training, up to that many bytes, with arrays in a RoundStart up to that many bytes."""
        self.transport.largest = max(largest_message, self._largest_alignment)
        self._largest_array = largest_array

    def send(self, *messages: Message) -> None:
        """Send messages to the coordinator, which travel together."""
        encoded = [encode_parts(message) for message in messages]
        with self.transcript.together():
            for message, data in zip(messages, encoded, strict=True):
                mark = mark_message(data)
                self.transcript.record("out", COORDINATOR, message, mark, self.stage)
                self.ledger.record(type(message).__name__, "up", self.name, mark.size)
        self.transport.send(COORDINATOR, *encoded)

    def receive(
        self,
        hello: Callable[[], Message],
        joining: Callable[[], bool],
        idle: Callable[[], None] = lambda: None,
    ) -> Message:
        """Return the next message; raise `Interrupted` when a stop was requested.

        Until one arrives, send `hello()` on every new connection, repeatedly while `joining()`, and after long silence. `idle` is
        called several times a second meanwhile.
        """
        self._last_heard = time.monotonic()  # only silence while listening counts
        while True:
            if self.stop():
                raise Interrupted("stopped")
            self._repeat_hello(hello, joining)
            event = self.transport.next(_TICK)
            if event is None:
                idle()
                continue
            if event.kind == "joined":
                log_event("connected to the coordinator")
                self.connected = True
                self._last_hello = time.monotonic()
                self._last_heard = self._last_hello
                self.send(hello())
            elif event.kind == "left":
                log_warning("lost the coordinator, reconnecting")
                self.connected = False
            elif event.kind == "part":
                self._last_heard = time.monotonic()
            elif event.kind == "broken":
                raise ProtocolError(f"the coordinator sent {event.reason}")
            else:
                self._last_heard = time.monotonic()
                self.heard = time.time()
                return self._read(event.data)

    def greet(self) -> None:
        """Make the next `receive` say hello, even though the connection is not new."""
        self._last_hello = 0.0

    def close(self) -> None:
        """End the connection, once queued messages are delivered."""
        self.transport.close()

    def refuse(self, error: VerFedGNNError) -> None:
        """Tell the coordinator why this party leaves."""
        self.send(Refused(reason=str(error)[:500]))

    def _repeat_hello(self, hello: Callable[[], Message], joining: Callable[[], bool]) -> None:
        timeouts = self.agreement.timeouts
        now = time.monotonic()
        silent = now - self._last_heard > timeouts.idle
        if self.connected and now - self._last_hello > timeouts.hello and (joining() or silent):
            self._last_hello = now
            if silent:
                log_warning("no message from the coordinator, joining again", seconds=timeouts.idle)
                self._last_heard = now
            self.send(hello())

    def _read(self, data: Buffer) -> Message:
        # Outside of rounds, arrays are packed with at least one bit per value, which bounds their size.
        known = self._largest_array if kind_of(data) is RoundStart else None
        try:
            message = decode(data, min(64 * len(data), self.transport.largest) if known is None else known)
        except ProtocolError:
            self.transcript.record_unreadable(COORDINATOR, data, self.stage)
            raise
        common = common_statements(message, self.blocks)
        self.transcript.record("in", COORDINATOR, message, mark_message((data,)), self.stage, common)
        self.ledger.record(type(message).__name__, "down", self.name, len(data))
        if isinstance(message, Refused):
            raise ProtocolError(f"the coordinator refused: {message.reason}")
        if isinstance(message, Waiting) and message.missing:
            log_event("waiting for others", missing=message.missing)
        if isinstance(message, Waiting) and message.second:
            log_warning("another process wanted to join under this party's name and was refused: stop it")
        return message

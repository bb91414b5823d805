"""A party's end of the wire."""

from __future__ import annotations

import time
from collections.abc import Callable

from verfedgnn.core.errors import ConfigError, Interrupted, ProtocolError, VerFedGNNError
from verfedgnn.federation.certificates import COORDINATOR
from verfedgnn.federation.event_log import log_event, log_warning
from verfedgnn.federation.identity import MemberIdentity
from verfedgnn.federation.transport.interface import Transport
from verfedgnn.protocol.wire.framing import kind_of
from verfedgnn.protocol.wire.messages import Message, Refused, RoundStart, Waiting, decode, encode
from verfedgnn.runs.ledger import Ledger

_TICK = 0.25


class CoordinatorLink:
    """Messages to and from the coordinator, counted, and joining anew after every interruption."""

    def __init__(self, identity: MemberIdentity, transport: Transport, stop: Callable[[], bool]) -> None:
        self.agreement, self.transport, self.stop = identity.agreement, transport, stop
        self.name, self.ledger = identity.name, Ledger()
        self.connected = False
        self.largest: int | None = None
        """Bytes of the largest packed array that a RoundStart may hold, once the model is known."""
        self._heard = self._greeted = 0.0

    def send(self, message: Message) -> None:
        """To the coordinator."""
        data = encode(message)
        if len(data) > self.agreement.max_message:
            raise ConfigError(
                f"a message of {len(data):,} bytes exceeds max_message of the federation file; raise it for all"
            )
        self.ledger.record(type(message).__name__, "up", self.name, len(data))
        self.transport.send(COORDINATOR, data)

    def receive(self, hello: Callable[[], Message], waiting: Callable[[], bool]) -> Message:
        """The next message. While there is none: say `hello` on every new connection, while `waiting`, and after long silence."""
        timeouts = self.agreement.timeouts
        self._heard = time.monotonic()  # silence counts while listening, not while computing
        while True:
            if self.stop():
                raise Interrupted("stopped")
            now = time.monotonic()
            silent = now - self._heard > timeouts.idle
            if self.connected and now - self._greeted > timeouts.hello and (waiting() or silent):
                self._greeted = now
                if silent:
                    log_warning("nothing heard from the coordinator, joining again", seconds=timeouts.idle)
                    self._heard = now
                self.send(hello())
            event = self.transport.next(_TICK)
            if event is None:
                continue
            if event.kind == "joined":
                log_event("connected to the coordinator")
                self.connected, self._greeted, self._heard = True, time.monotonic(), time.monotonic()
                self.send(hello())
            elif event.kind == "left":
                log_warning("lost the coordinator, dialling again")
                self.connected = False
            else:
                self._heard = time.monotonic()
                # What is packed outside of rounds has a bit or more for every value.
                most = self.largest if kind_of(event.data) is RoundStart else None
                message = decode(
                    event.data, self.agreement.max_message, 64 * len(event.data) if most is None else most
                )
                self.ledger.record(type(message).__name__, "down", self.name, len(event.data))
                if isinstance(message, Refused):
                    raise ProtocolError(f"the coordinator refuses: {message.reason}")
                if isinstance(message, Waiting) and message.missing:
                    log_event("waiting for others", missing=message.missing)
                return message

    def greet(self) -> None:
        """Say hello at the next opportunity, though the connection is not new."""
        self._greeted = 0.0

    def refuse(self, error: VerFedGNNError) -> None:
        """Tell the coordinator why this party goes."""
        self.send(Refused(reason=str(error)[:500]))

"""A party's connection to the coordinator: messages both ways, byte counts, and joining again after interruptions."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verfedgnn.core.array_files import as_bytes
from verfedgnn.core.errors import Interrupted, ProtocolError, VerFedGNNError
from verfedgnn.federation.certificates import COORDINATOR
from verfedgnn.federation.event_log import log_event, log_warning
from verfedgnn.federation.roster import MemberIdentity
from verfedgnn.federation.status import StatusPublisher
from verfedgnn.federation.transcript import ALIGNMENT, Transcript, mark_message
from verfedgnn.federation.transport import Transport
from verfedgnn.gnn.model import Model
from verfedgnn.protocol.aggregation import largest_alignment
from verfedgnn.protocol.messages import (
    AlignStart,
    Buffer,
    Finish,
    Message,
    Refused,
    RoundStart,
    Survivors,
    UserRows,
    Waiting,
    Welcome,
    copied_state,
    decode,
    encode_parts,
    kind_of,
)
from verfedgnn.protocol.replica import split_updates
from verfedgnn.runs.ledger import Ledger

SILENT_SECONDS = 8.0
"""Number of seconds without a message from a coordinator that otherwise sends signs of life every few seconds."""
_TICK = 0.25


class CoordinatorLink:
    """A party's end of the connection. It counts bytes and says hello again after every interruption."""

    def __init__(
        self,
        identity: MemberIdentity,
        transport: Transport,
        stop: Callable[[], bool],
        transcript: Transcript,
        publisher: StatusPublisher,
    ) -> None:
        self.agreement = identity.agreement
        self.transport = transport
        self.transcript = transcript
        self.publisher = publisher
        self.stop = stop
        self.name = identity.name
        self.ledger = Ledger()
        self.connected = False
        self.stage = ALIGNMENT
        """Name of the present training, or "alignment"."""
        self.model: Model | None = None
        """Model of the present training; None before it."""
        self.heard: float | None = None
        """Unix time of the last message from the coordinator; None before the first."""
        self.waits_for = [COORDINATOR]
        """Members for whom the training waits."""
        self.waits_since: float | None = time.time()
        self._largest_array: int | None = None
        """Bytes of the largest packed array that a RoundStart may hold; None until the model is known."""
        self._last_heard = 0.0
        self._last_hello = 0.0
        self._silent = False
        aligns = self.agreement.alignment != "none"
        self._largest_alignment = largest_alignment(self.agreement.max_users if aligns else 0)
        transport.largest = self._largest_alignment
        publisher.update(self.status, now=True)

    def expect(self, largest_message: int, largest_array: int) -> None:
        """Accept messages of a training, up to that many bytes, with arrays in a RoundStart up to that many bytes."""
        self.transport.largest = max(largest_message, self._largest_alignment)
        self._largest_array = largest_array

    def send(self, *messages: Message) -> None:
        """Send messages to the coordinator."""
        encoded = [encode_parts(message) for message in messages]
        for message, data in zip(messages, encoded, strict=True):
            mark = mark_message(data)
            self.transcript.record("out", COORDINATOR, message, mark, self.stage)
            self.ledger.record(type(message).__name__, "up", self.name, mark.size)
        self.transport.send(COORDINATOR, *encoded)

    def receive(
        self,
        hello: Callable[[], Message],
        joining: Callable[[], bool],
        status: Callable[[], dict[str, Any]] | None = None,
    ) -> Message:
        """Return the next message; raise `Interrupted` when a stop was requested.

        Until one arrives, send `hello()` on every new connection, repeatedly while `joining()`, and after long silence, and
        publish `status()`.
        """
        self._last_heard = time.monotonic()  # only silence while listening counts
        while True:
            if self.stop():
                raise Interrupted("stopped")
            self._repeat_hello(hello, joining)
            event = self.transport.next(_TICK)
            if event is None:
                self._notice_silence()
                self.publisher.update(status or self.status)
                continue
            self._last_heard = time.monotonic()
            if event.kind == "joined":
                log_event("connected to the coordinator")
                self.connected = True
                self._wait_for([])
                self._last_hello = time.monotonic()
                self.send(hello())
            elif event.kind == "left":
                log_warning("lost the coordinator, reconnecting")
                self.connected = False
                self._wait_for([COORDINATOR])
            elif event.kind == "broken":
                raise ProtocolError(f"the coordinator sent {event.reason}")
            elif event.kind != "part":
                self.heard = time.time()
                return self._read(event.data)

    def greet(self) -> None:
        """Make the next `receive` say hello, even though the connection is not new."""
        self._last_hello = 0.0

    def refuse(self, error: VerFedGNNError) -> None:
        """Tell the coordinator why this party leaves."""
        self.send(Refused(reason=str(error)[:500]))

    def _wait_for(self, names: list[str]) -> None:
        if names != self.waits_for:
            self.waits_for = names
            self.waits_since = time.time() if names else None
            if names and names != [COORDINATOR]:
                log_event("waiting for others", missing=names)

    def _notice_silence(self) -> None:
        """Log once that the coordinator, which is connected, has sent nothing for long."""
        since = time.monotonic() - self._last_heard
        if self.connected and not self._silent and since > SILENT_SECONDS:
            self._silent = True
            start = time.strftime("%H:%M:%S", time.localtime(time.time() - since))
            then = f"this party joins again after {self.agreement.timeouts.idle:g} s of silence"
            log_warning("no message from the coordinator", since=start, next=then)
            self._wait_for([COORDINATOR])

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
        mark = mark_message((data,))
        try:
            message = decode(data, min(64 * len(data), self.transport.largest) if known is None else known)
        except ProtocolError:
            self.transcript.record("in", COORDINATOR, None, mark, self.stage)
            raise
        common = common_statements(message, self.model)
        self.transcript.record("in", COORDINATOR, message, mark, self.stage, common)
        self.ledger.record(type(message).__name__, "down", self.name, len(data))
        self._silent = False
        self._wait_for(message.missing if isinstance(message, Waiting) else [])
        if isinstance(message, Refused):
            raise ProtocolError(f"the coordinator refused: {message.reason}")
        if isinstance(message, Waiting) and message.second:
            log_warning("another process wanted to join under this party's name and was refused: stop it")
        return message

    def status(self) -> dict[str, Any]:
        """Return the status of the connection, which is all there is to say before a training."""
        sizes = {way: self.ledger.total(way) for way in ("up", "down")}
        coordinator = {"here": self.connected, "connected": self.connected, "heard": self.heard}
        return {
            "ready": self.connected and not self._silent,
            "stage": self.stage,
            "state": "gathering" if self.waits_for else "aligning",
            "waits_for": self.waits_for,
            "waits_since": self.waits_since,
            "bytes": sizes,
            "parties": {
                self.name: {"here": False, "joined": self.connected, **sizes},
                COORDINATOR: {**coordinator, "up": 0, "down": 0},
            },
        }


# -- what every party must receive alike, as short statements that parties can compare --------------------------------------
#
# A statement has a subject, such as `update 4`, and a value. Arrays are replaced by their SHA-256. Parties that write down the
# statements they received can find out later whether a coordinator said different things to different parties.

Statements = dict[str, dict[str, Any]]
"""Values by subject; each value has named fields."""


def common_statements(message: Message, model: Model | None) -> Statements:
    """Return what `message` says to all parties alike; `model` is that of the training, None before it."""
    match message:
        case AlignStart():
            keys = repr([message.seal_keys, message.seal_signatures]).encode()
            return {f"alignment {message.session}": {"keys": hashlib.sha256(keys).hexdigest()}}
        case UserRows():
            return {f"rows {message.session}": {"users": message.users}}
        case Welcome():
            training = {"name": message.training, "configuration": message.config}
            sizes = {"items": message.items, "ratings": message.ratings, "typical": message.typical}
            digest = {f"digest {message.round}": {"digest": message.digest}}
            return {"training": training | sizes, **digest, **_state_copy(message, message.round)}
        case RoundStart():
            return _state_round(message, model)
        case Survivors():
            return {f"survivors {message.round}.{message.attempt}": {"survivors": message.survivors}}
        case Finish():
            fields = "round", "best_round", "digest"
            return {"result": {name: getattr(message, name) for name in fields}}
    return {}


def _state_round(message: RoundStart, model: Model | None) -> Statements:
    statements: Statements = {
        f"instruction {message.round}.{message.attempt}": {
            "active": message.active,
            "evaluate": message.evaluate,
            "best_round": message.best_round,
        }
    }
    for update in [] if model is None else split_updates(message, model.size):
        statements[f"update {update.round}"] = _state_sum(update.parties, update.total)
    if message.neighbourhoods is not None:
        subject = f"neighbourhoods {message.neighbourhood_round}"
        statements[subject] = _state_sum(message.neighbourhood_parties, message.neighbourhoods)
    return statements | _state_copy(message, message.round - 1)


def _state_sum(parties: list[int], total: NDArray[Any]) -> dict[str, Any]:
    return {"parties": parties, "sum": _hash_array(total)}


def _state_copy(message: Welcome | RoundStart, round: int) -> Statements:
    copy = {name: _hash_array(values) for name, values in copied_state(message).items()}
    return {f"parameters {round}": copy} if copy else {}


def _hash_array(values: NDArray[Any]) -> str:
    digest = hashlib.sha256(f"{values.dtype.str} {values.shape} ".encode())
    digest.update(as_bytes(np.ascontiguousarray(values)))
    return digest.hexdigest()

"""The transport inside a FLARE job: messages pushed between the job's processes over the cells that FLARE has connected.

FLARE delivers messages in a pool of threads, where they overtake each other, and loses those that are in flight when a
connection breaks. Messages to a peer are therefore numbered, and the recipient takes them in order. Each side sends a
*pulse* every few seconds: the last number that it sent, and the last one that it took. A peer without pulses has left. A
message that stays missing starts a new *epoch*: numbers begin again, and both sides see the peer leave and join, so the
services repeat what was lost.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from nvflare.fuel.f3.cellnet.cell import Cell
from nvflare.fuel.f3.cellnet.defs import MessagePropKey
from nvflare.fuel.f3.message import Message

from verfedgnn.federation.transport import (
    OUTBOX_BYTES,
    OUTBOX_MESSAGES,
    PART_BYTES,
    TransportEvent,
    size_of,
    too_large,
)
from verfedgnn.protocol.messages import EncodedMessage

CHANNEL = "verfedgnn"
MOST_WAITING = 16
"""Number of messages of one peer that may wait to be handled, and number that may wait for an earlier one."""
LARGE_MESSAGE = 1 << 20
"""Number of bytes from which a message is sent through FLARE's streams."""
PULSE_SECONDS = 2.0
"""Longest time between two pulses."""

_MESSAGE = "message"
_PULSE = "pulse"
_EPOCH = "verfedgnn.epoch"
_NUMBER = "verfedgnn.number"
_SEEN_EPOCH = "verfedgnn.seen_epoch"
_TAKEN = "verfedgnn.taken"
_BYE = "verfedgnn.bye"

Identify = Callable[[Message], str | None]
"""Return the name of a message's sender according to FLARE's authentication; None if it is no peer."""


class _Outbox:
    """Messages for one peer, written in order by one thread, so that a slow peer delays nobody else.

    `write` sends one message; `lose` is called when that fails or too much is waiting.
    """

    def __init__(self, peer: str, write: Callable[[bytes], None], lose: Callable[[], None]) -> None:
        self._write = write
        self._lose = lose
        self._waiting: queue.Queue[tuple[EncodedMessage, ...]] = queue.Queue(OUTBOX_MESSAGES)
        self._size = 0
        self._limit = OUTBOX_BYTES
        threading.Thread(target=self._run, name=f"to-{peer}", daemon=True).start()

    def put(self, *messages: EncodedMessage) -> None:
        """Queue messages and return at once."""
        size = size_of(*messages)
        self._limit = max(self._limit, 2 * size)
        try:
            if self._size > self._limit:
                raise queue.Full
            self._waiting.put_nowait(messages)
            self._size += size
        except queue.Full:
            self._lose()

    def drain(self, seconds: float) -> None:
        """Wait until all messages are written, at most for some seconds."""
        deadline = time.monotonic() + seconds
        while self._waiting.unfinished_tasks and time.monotonic() < deadline:
            time.sleep(0.01)

    def _run(self) -> None:
        while True:
            messages = self._waiting.get()
            size = size_of(*messages)
            try:
                for message in messages:
                    self._write(b"".join(message))
            except Exception:
                # The peer is gone, or FLARE has lost track of its connection. On joining again it gets what it missed.
                with contextlib.suppress(Exception):
                    self._lose()
            finally:
                del messages  # they may hold a copy of all public parameters
                self._size -= size
                self._waiting.task_done()


class _PeerLink:
    """The state of the connection to one peer; the transport's lock protects it."""

    def __init__(self, fqcn: str) -> None:
        self.fqcn = fqcn
        self.joined = False
        self.heard = 0.0
        """Time (monotonic) of the last message or pulse."""
        self.epoch = 0
        """Number of the present epoch of messages to the peer; later epochs have larger numbers."""
        self.renew()
        self.peer_epoch = 0
        self.taken = 0
        """Number of the peer's last message that was taken."""
        self.held: dict[int, bytes] = {}
        """Messages that overtook an earlier one, by number."""
        self.waiting = 0
        """Number of messages that were taken and not yet handled."""

    def renew(self) -> None:
        """Begin a new epoch, whose messages are numbered from the start."""
        self.epoch = max(self.epoch + 1, time.time_ns())
        self.numbered = 0
        """Number of the last message of this epoch that was given a number."""
        self.written = 0
        """Number of the last message of this epoch that was handed to FLARE."""
        self.due = 0
        """Number of the last message that had been written when the peer's last pulse came."""
        self.confirmed = 0
        """Number of the last message that the peer took, according to its last pulse."""


class JobTransport:
    """The end of one member: of the coordinator to the `peers` (name to cell) of all parties, or of a party to the coordinator.

    A peer that was silent for `link_seconds` has left.
    """

    def __init__(
        self, cell: Cell, peers: Mapping[str, str], identify: Identify, *, link_seconds: float
    ) -> None:
        self.largest = PART_BYTES
        """Number of bytes of the largest message to accept from a peer."""
        self.holds: dict[str, str] = {}
        self._cell = cell
        self._identify = identify
        self._link_seconds = link_seconds
        self._events: queue.Queue[TransportEvent] = queue.Queue()
        self._lock = threading.RLock()
        self._closed = threading.Event()
        self._links = {name: _PeerLink(fqcn) for name, fqcn in peers.items()}
        self._outboxes = {
            name: _Outbox(name, partial(self._write, link), partial(self._begin_epoch, name, link))
            for name, link in self._links.items()
        }
        cell.register_request_cb(channel=CHANNEL, topic=_MESSAGE, cb=self._take_message)
        cell.register_request_cb(channel=CHANNEL, topic=_PULSE, cb=self._take_pulse)
        self._pulses = threading.Thread(target=self._send_pulses, name="pulses", daemon=True)
        self._pulses.start()

    # -- Transport ---------------------------------------------------------------------------------------

    def send(self, to: str, *messages: EncodedMessage) -> None:
        """Queue messages for a peer; one that is not in this job gets nothing."""
        if to in self._outboxes:
            self._outboxes[to].put(*messages)

    def next(self, timeout: float) -> TransportEvent | None:
        """Return the next event, or None after `timeout` seconds without one."""
        try:
            event = self._events.get(timeout=max(0.0, timeout))
        except queue.Empty:
            return None
        if event.kind == "message":
            with self._lock:
                link = self._links[event.peer]
                link.waiting -= 1
                self._release(event.peer, link)
            if len(event.data) > self.largest:
                return too_large(event.peer, self.largest)
        return event

    def close(self) -> None:
        """Deliver queued messages for two seconds at most, and tell the peers that this member leaves."""
        if self._closed.is_set():
            return
        for outbox in self._outboxes.values():
            outbox.drain(2.0)
        self._closed.set()
        self._pulses.join(2.0)
        for link in self._links.values():
            self._send_pulse(link, {_BYE: True})

    # -- sending -----------------------------------------------------------------------------------------

    def _write(self, link: _PeerLink, data: bytes) -> None:
        with self._lock:
            link.numbered += 1
            epoch = link.epoch
            number = link.numbered
        message = Message({_EPOCH: epoch, _NUMBER: number}, data)
        if len(data) < LARGE_MESSAGE:
            self._fire(link, _MESSAGE, message)
        else:
            self._cell.fire_and_forget(
                channel=CHANNEL, topic=_MESSAGE, targets=link.fqcn, message=message, optional=True
            )
            message.get_prop(MessagePropKey.FUTURES)[link.fqcn].result()
        with self._lock:
            if link.epoch == epoch:
                link.written = number

    def _fire(self, link: _PeerLink, topic: str, message: Message) -> None:
        """Send one message, without the acknowledgements of FLARE's streams."""
        errors = self._cell.core_cell.fire_and_forget(CHANNEL, topic, link.fqcn, message, optional=True)
        if errors.get(link.fqcn):
            raise ConnectionError(errors[link.fqcn])

    def _begin_epoch(self, name: str, link: _PeerLink) -> None:
        """Begin a new epoch after a failure, so that the services start over with the peer."""
        with self._lock:
            link.renew()
            if link.joined:
                self._events.put(TransportEvent("left", name))
                self._events.put(TransportEvent("joined", name))

    # -- pulses ------------------------------------------------------------------------------------------

    def _send_pulses(self) -> None:
        while not self._closed.is_set():
            for name, link in self._links.items():
                self._check_silence(name, link)
                self._send_pulse(link, {})
            self._closed.wait(min(PULSE_SECONDS, self._link_seconds / 5))

    def _check_silence(self, name: str, link: _PeerLink) -> None:
        with self._lock:
            if link.joined and time.monotonic() - link.heard > self._link_seconds:
                link.joined = False
                link.renew()
                self._events.put(TransportEvent("left", name))

    def _send_pulse(self, link: _PeerLink, headers: dict[str, Any]) -> None:
        with self._lock:
            about = {_EPOCH: link.epoch, _SEEN_EPOCH: link.peer_epoch, _TAKEN: link.taken} | headers
        with contextlib.suppress(Exception):  # the peer is not there yet, or no longer
            self._fire(link, _PULSE, Message(about, b""))

    def _take_pulse(self, message: Message) -> None:
        """Note a peer's pulse; begin a new epoch if a message to the peer was lost."""
        name = self._identify(message)
        link = self._links.get(name or "")
        if name is None or link is None:
            return
        epoch, seen, taken = (_read_number(message, key) for key in (_EPOCH, _SEEN_EPOCH, _TAKEN))
        with self._lock:
            known = link.joined and epoch == link.peer_epoch
            if not self._note(name, link, epoch):
                return
            if message.get_header(_BYE):
                link.joined = False
                self._events.put(TransportEvent("left", name))
                return
            if not known:
                threading.Thread(target=self._send_pulse, args=(link, {}), daemon=True).start()
            if seen == link.epoch:
                if taken < link.due and taken == link.confirmed:
                    self._begin_epoch(name, link)
                    return
                link.confirmed = taken
                link.due = link.written

    # -- receiving ---------------------------------------------------------------------------------------

    def _take_message(self, message: Message) -> None:
        """Queue a message, and those that waited for it."""
        name = self._identify(message)
        link = self._links.get(name or "")
        data = message.payload
        if name is None or link is None or not isinstance(data, bytes | bytearray | memoryview):
            return
        with self._lock:
            if not self._note(name, link, _read_number(message, _EPOCH)):
                return
            number = _read_number(message, _NUMBER)
            if link.taken < number <= link.taken + MOST_WAITING:
                link.held.setdefault(number, bytes(data))
            self._release(name, link)

    def _release(self, name: str, link: _PeerLink) -> None:
        """Queue the held messages whose turn it is, while few of the peer's messages are waiting."""
        while link.waiting < MOST_WAITING and link.taken + 1 in link.held:
            link.taken += 1
            link.waiting += 1
            self._events.put(TransportEvent("message", name, link.held.pop(link.taken)))

    def _note(self, name: str, link: _PeerLink, epoch: int) -> bool:
        """Note a sign of a peer, and let it join with its first one in an epoch; return whether the epoch is current."""
        if epoch < link.peer_epoch or epoch <= 0 or self._closed.is_set():
            return False
        link.heard = time.monotonic()
        if epoch > link.peer_epoch:
            link.peer_epoch = epoch
            link.taken = 0
            link.held.clear()
            if link.joined:
                self._events.put(TransportEvent("left", name))
            link.joined = False
        if not link.joined:
            link.joined = True
            self._events.put(TransportEvent("joined", name))
        return True


def _read_number(message: Message, key: str) -> int:
    value = message.get_header(key)
    return value if isinstance(value, int) else 0

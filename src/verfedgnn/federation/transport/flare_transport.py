"""The transport between organisations: NVIDIA FLARE endpoints over mutual TLS.

FLARE's communicator gives framing, an endpoint's name bound to its certificate, heartbeats and reconnection. Its layers above
(cell routing, object decoding) are left out: a message is bytes for the peer at the other end, nothing is forwarded, nothing is
turned into objects.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from nvflare.fuel.f3.cellnet.identity import CellIdentityResolver
from nvflare.fuel.f3.communicator import Communicator
from nvflare.fuel.f3.connection import Connection
from nvflare.fuel.f3.drivers.connector_info import Mode
from nvflare.fuel.f3.endpoint import Endpoint, EndpointMonitor, EndpointState
from nvflare.fuel.f3.message import Message, MessageReceiver
from nvflare.fuel.f3.sfm import conn_manager

from verfedgnn.federation.transport.interface import TransportEvent
from verfedgnn.federation.transport.tls_driver import PinnedTls, _Connection

COORDINATOR = "server"
"""The coordinator's endpoint; FLARE knows its root by this name."""
_APP = 1
_OUTBOX, _OUTBOX_BYTES = 64, 1 << 31
"""Messages and bytes that may wait for one slow peer; beyond that it is cut off."""

logging.getLogger("nvflare").setLevel(
    logging.CRITICAL
)  # what matters of the network is told as events; its own log names peers
conn_manager.MAX_WAIT = 4  # seconds between two attempts to reconnect, at most


class FlareTransport(MessageReceiver, EndpointMonitor):  # type: ignore[misc]
    """One endpoint. The coordinator's listens, a party's dials out and keeps dialling."""

    def __init__(self, name: str, driver: PinnedTls, address: tuple[str, int], *, listen: bool) -> None:
        self.name, self._closed = name, False
        self._events: queue.Queue[tuple[TransportEvent, Callable[[], None] | None]] = queue.Queue()
        self._release: Callable[[], None] | None = None
        self._outboxes: dict[str, _Outbox] = {}
        endpoint = Endpoint(name=name, conn_props={})
        self.communicator = Communicator(endpoint, identity_resolver=CellIdentityResolver(local_fqcn=name))
        self.communicator.register_message_receiver(_APP, self)
        self.communicator.register_monitor(self)
        params: dict[str, Any] = {"scheme": "stcp", "host": address[0], "port": address[1], "path": ""}
        mode = Mode.PASSIVE if listen else Mode.ACTIVE
        self.communicator.add_connector_advanced(driver, mode, params, secure=True)
        self.communicator.start()

    # -- Transport ---------------------------------------------------------------------------------------------------------

    def send(self, to: str, data: bytes) -> None:
        """See `Transport`. A thread a peer does the writing, so that a slow one delays nobody else."""
        if to not in self._outboxes:
            self._outboxes[to] = _Outbox(self.communicator, to)
        self._outboxes[to].put(data)

    def next(self, timeout: float) -> TransportEvent | None:
        """See `Transport`. Taking an event says that the one before has been handled."""
        if self._release is not None:
            self._release()
            self._release = None
        try:
            event, self._release = self._events.get(timeout=max(0.0, timeout))
        except queue.Empty:
            return None
        return event

    def close(self) -> None:
        """See `Transport`."""
        if not self._closed:
            self._closed = True
            for outbox in self._outboxes.values():
                outbox.drain(2.0)
            self.communicator.stop()

    # -- FLARE's callbacks, from its threads ---------------------------------------------------------------------------------

    def process_message(
        self, endpoint: Endpoint, connection: Connection, app_id: int, message: Message
    ) -> None:
        """A message came; the sender is who its certificate says, whatever the endpoint calls itself."""
        assert isinstance(connection, _Connection)
        if endpoint.name != connection.peer:
            connection.close()
            return
        connection.taken = True
        payload = bytes(message.payload) if message.payload is not None else b""
        self._events.put((TransportEvent("message", connection.peer, payload), connection.release))

    def state_change(self, endpoint: Endpoint) -> None:
        """A peer came or went."""
        if endpoint.state == EndpointState.READY:
            self._events.put((TransportEvent("joined", endpoint.name), None))
        elif not self._closed:
            self._events.put((TransportEvent("left", endpoint.name), None))


class _Outbox:
    """Messages for one peer, written in order by one thread."""

    def __init__(self, communicator: Communicator, peer: str) -> None:
        self.communicator, self.peer = communicator, peer
        self.waiting: queue.Queue[bytes] = queue.Queue(_OUTBOX)
        self.size = 0
        threading.Thread(target=self._run, name=f"to-{peer}", daemon=True).start()

    def put(self, data: bytes) -> None:
        try:
            if self.size > _OUTBOX_BYTES:
                raise queue.Full
            self.waiting.put_nowait(data)
            self.size += len(data)
        except queue.Full:
            self.communicator.remove_endpoint(self.peer)

    def drain(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self.waiting.unfinished_tasks and time.monotonic() < deadline:
            time.sleep(0.01)

    def _run(self) -> None:
        while True:
            data = self.waiting.get()
            try:
                endpoint = self.communicator.find_endpoint(self.peer)
                if endpoint is not None:
                    self.communicator.send(endpoint, _APP, Message({}, data))
            except Exception:
                # The peer is gone, or FLARE has lost track of its connection. What it missed it gets on joining again.
                with contextlib.suppress(Exception):
                    self.communicator.remove_endpoint(self.peer)
            finally:
                self.size -= len(data)
                self.waiting.task_done()

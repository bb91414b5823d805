"""The transport between organisations: NVIDIA FLARE endpoints over mutual TLS.

FLARE's communicator provides framing, endpoint names bound to certificates, heartbeats and reconnection. Its upper
layers (cell routing, object decoding) are not used: a message is bytes for the peer at the other end. Nothing is
forwarded, and nothing is decoded into objects.
"""

from __future__ import annotations

import logging
import queue
import secrets
from collections.abc import Iterator
from functools import partial
from typing import Any

from nvflare.fuel.f3.cellnet.identity import CellIdentityResolver
from nvflare.fuel.f3.communicator import Communicator
from nvflare.fuel.f3.connection import Connection
from nvflare.fuel.f3.drivers.connector_info import Mode
from nvflare.fuel.f3.endpoint import Endpoint, EndpointMonitor, EndpointState
from nvflare.fuel.f3.message import Message, MessageReceiver
from nvflare.fuel.f3.sfm import conn_manager

from verfedgnn.core.version import installed_version
from verfedgnn.federation.transport.frames import FrameJoiner, join_frames
from verfedgnn.federation.transport.interface import TransportEvent
from verfedgnn.federation.transport.outbox import Outbox
from verfedgnn.federation.transport.tls_driver import INSTANCE, VERSION, PinnedTls, _Connection
from verfedgnn.protocol.wire.framing import EncodedMessage

COORDINATOR = "server"
"""Name of the coordinator's endpoint, which FLARE reserves for its root."""
_APP = 1

# FLARE's own log names peers; the events that matter are logged by the services.
logging.getLogger("nvflare").setLevel(logging.CRITICAL)
conn_manager.MAX_WAIT = 4  # maximum seconds between two attempts to reconnect


class FlareTransport(MessageReceiver, EndpointMonitor):  # type: ignore[misc]
    """One endpoint: the coordinator's listens, a party's connects and reconnects."""

    def __init__(self, name: str, driver: PinnedTls, address: tuple[str, int], *, listen: bool) -> None:
        self.name = name
        self._closed = False
        self._events: queue.Queue[tuple[TransportEvent, _Connection | None]] = queue.Queue()
        """Events, and the connection of a frame."""
        self._handled: _Connection | None = None
        """Connection of the frame that was taken last."""
        self._joiner = FrameJoiner()
        self._joined: Iterator[TransportEvent] = iter(())
        """What is left of the frame that was taken last."""
        self._outboxes: dict[str, Outbox] = {}
        driver.second = self._report_second
        # A random name of this process, by which the coordinator tells a lost connection from a second process.
        about = {INSTANCE: secrets.token_hex(16), VERSION: installed_version()}
        endpoint = Endpoint(name=name, properties=about, conn_props={})
        self.communicator = Communicator(endpoint, identity_resolver=CellIdentityResolver(local_fqcn=name))
        self.communicator.register_message_receiver(_APP, self)
        self.communicator.register_monitor(self)
        params: dict[str, Any] = {"scheme": "stcp", "host": address[0], "port": address[1], "path": ""}
        mode = Mode.PASSIVE if listen else Mode.ACTIVE
        self.communicator.add_connector_advanced(driver, mode, params, secure=True)
        self.communicator.start()

    # -- Transport ---------------------------------------------------------------------------------------------------------

    @property
    def largest(self) -> int:
        """Number of bytes of the largest message to accept from a peer."""
        return self._joiner.largest

    @largest.setter
    def largest(self, size: int) -> None:
        self._joiner.largest = size

    def send(self, to: str, *messages: EncodedMessage) -> None:
        """Queue messages that travel together. Each peer has a thread that writes, so that a slow peer delays nobody else."""
        if to not in self._outboxes:
            self._outboxes[to] = Outbox(
                to, partial(self._write, to), partial(self.communicator.remove_endpoint, to)
            )
        self._outboxes[to].put(*messages)

    def next(self, timeout: float) -> TransportEvent | None:
        """Return the next event. Taking one marks the frame of the previous one as handled."""
        for event in self._joined:
            return event
        if self._handled is not None:
            self._handled.release()
            self._handled = None
        try:
            frame, self._handled = self._events.get(timeout=max(0.0, timeout))
        except queue.Empty:
            return None
        source = "" if self._handled is None else self._handled.name
        self._joined = join_frames(self._joiner, frame, source)
        return next(self._joined)

    def close(self) -> None:
        """Deliver queued messages for two seconds at most, then end all connections."""
        if not self._closed:
            self._closed = True
            for outbox in self._outboxes.values():
                outbox.drain(2.0)
            self.communicator.stop()

    def _write(self, to: str, frame: bytes) -> None:
        endpoint = self.communicator.find_endpoint(to)
        if endpoint is not None:
            self.communicator.send(endpoint, _APP, Message({}, frame))

    # -- FLARE's callbacks, from its threads ---------------------------------------------------------------------------------

    def process_message(
        self, endpoint: Endpoint, connection: Connection, app_id: int, message: Message
    ) -> None:
        """Queue a message event; close the connection if the endpoint's name is not its certificate's."""
        assert isinstance(connection, _Connection)
        if endpoint.name != connection.peer:
            connection.close()
            return
        connection.taken = True
        frame = b"" if message.payload is None else message.payload
        self._events.put((TransportEvent("message", connection.peer, frame), connection))

    def _report_second(self, peer: str) -> None:
        """Queue an event for a second process under the name of a connected peer."""
        self._events.put((TransportEvent("second", peer), None))

    def state_change(self, endpoint: Endpoint) -> None:
        """Queue an event for a peer that joined or left."""
        if endpoint.state == EndpointState.READY:
            self._events.put((TransportEvent("joined", endpoint.name), None))
        elif not self._closed:
            self._events.put((TransportEvent("left", endpoint.name), None))

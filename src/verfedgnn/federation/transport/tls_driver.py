"""Connections under mutual TLS 1.3 between pinned certificates, as a driver for NVIDIA FLARE's connection manager.

FLARE's own tcp driver accepts any certificate of the authority, performs the TLS handshake in the thread that accepts (one silent
stranger stops all others from joining), takes frames of 2 GB from anyone, and reads and writes one TLS object from two threads.
Here: handshakes in their own threads and in bounded time, only certificates of the roster, frames no larger than agreed, few of
them in flight (a flood stalls its own sender), every use of a TLS object under its lock, cut links noticed by the kernel.
"""

from __future__ import annotations

import contextlib
import hashlib
import select
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Any

import msgpack
from nvflare.fuel.f3.comm_error import CommError
from nvflare.fuel.f3.connection import BytesAlike, Connection
from nvflare.fuel.f3.drivers.base_driver import BaseDriver
from nvflare.fuel.f3.drivers.driver import ConnectorInfo
from nvflare.fuel.f3.drivers.driver_params import DriverCap, DriverParams
from nvflare.fuel.f3.sfm.constants import HandshakeKeys, Types
from nvflare.fuel.f3.sfm.prefix import PREFIX_LEN, Prefix

HANDSHAKE_SECONDS = 10.0
MAX_HANDSHAKES = 64
"""Strangers that may be shaking hands at the same time; more are turned away unheard."""
FRAMES_IN_FLIGHT = 4
"""Data frames of one connection that may be read and not yet handled."""
FRAME_MARGIN = 4096
"""Bytes of a frame besides the message: FLARE's prefix and headers."""
_CHUNK, _PART = 1 << 18, 1 << 22


def tls_context(*, server: bool, authority: str, certificate: str, key: Path) -> ssl.SSLContext:
    """Mutual TLS 1.3 under one authority (PEM). Host names are not checked because the peer's very certificate is."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=authority)
    with tempfile.NamedTemporaryFile(
        "w", suffix=".pem"
    ) as file:  # the ssl module takes certificates from files only
        file.write(certificate)
        file.flush()
        context.load_cert_chain(file.name, key)
    return context


class PinnedTls(BaseDriver):  # type: ignore[misc]
    """Listens or connects; admits exactly the certificates in `roster` (SHA-256 of the certificate -> name)."""

    def __init__(
        self,
        context: ssl.SSLContext,
        roster: Mapping[str, str],
        *,
        largest: int,
        link_seconds: float,
        refused: Callable[[str], None],
    ) -> None:
        super().__init__()
        self.context, self.roster, self.largest, self.link_seconds = (
            context,
            roster,
            largest + FRAME_MARGIN,
            link_seconds,
        )
        self.refused = refused
        """Told the reason whenever a connection is not admitted."""
        self.server: _Server | None = None
        self.stopping = self.listening = False

    @staticmethod
    def supported_transports() -> list[str]:
        """Never chosen by scheme; this driver is handed over as an object."""
        return []

    @staticmethod
    def capabilities() -> dict[str, Any]:
        """FLARE sends heartbeats, and need not wrap anything."""
        return {DriverCap.SEND_HEARTBEAT.value: True, DriverCap.SUPPORT_SSL.value: True}

    @staticmethod
    def get_urls(scheme: str, resources: dict[str, Any]) -> tuple[str, str]:
        """Addresses are given, never searched for."""
        raise NotImplementedError

    def bind(self, address: tuple[str, int]) -> None:
        """Take the port now; FLARE, which calls `listen` later, would try a port in use for ever without a word."""
        self.server = _Server(self, address)

    def listen(self, connector: ConnectorInfo) -> None:
        """Accept connections until `shutdown`."""
        self.connector = connector
        assert self.server is not None, "bind comes first"
        self.listening = not self.stopping
        if self.listening:
            with self.server:
                self.server.serve_forever(poll_interval=0.2)

    def connect(self, connector: ConnectorInfo) -> None:
        """Hold one connection until it ends; FLARE calls again, after a growing pause."""
        self.connector = connector
        address = (connector.params["host"], int(connector.params["port"]))
        try:
            raw = socket.create_connection(address, timeout=HANDSHAKE_SECONDS)
        except OSError as error:
            self.refused(f"cannot reach {address[0]}:{address[1]} ({_reason(error)})")
            raise
        connection = self.admit(raw, server_side=False)
        if connection is not None:
            self.hold(connection)
            if not connection.heard and not self.stopping:
                self.refused(
                    "the coordinator ends the connection at once: it does not know this party's certificate"
                )

    def admit(self, raw: socket.socket, *, server_side: bool) -> _Connection | None:
        """Shake hands and check who it is; None if it is nobody of the roster."""
        raw.settimeout(HANDSHAKE_SECONDS)
        try:
            sock = self.context.wrap_socket(raw, server_side=server_side)
            certificate = sock.getpeercert(binary_form=True) or b""
        except (OSError, ValueError) as error:
            self.refused(f"TLS handshake failed ({_reason(error)})")
            raw.close()
            return None
        name = self.roster.get(hashlib.sha256(certificate).hexdigest())
        if name is None:
            self.refused(f"the certificate of {_common_name(sock)} is not in the roster")
            sock.close()
            return None
        self._tune(sock)
        return _Connection(sock, self.connector, name, self.largest, self.link_seconds)

    def hold(self, connection: _Connection) -> None:
        """Read until the connection ends; a member has one, and a newer one takes the place of an older."""
        with self.conn_lock:
            older = [other for other in self.connections.values() if other.peer == connection.peer]
        for other in older:
            other.close()
        self.add_connection(connection)
        try:
            if not self.stopping:
                connection.read_loop()
        finally:
            connection.close()
            self.close_connection(connection)

    def shutdown(self) -> None:
        """End the listener and all connections, and those that are only being made."""
        self.stopping = True
        self.close_all()
        if self.server is not None:
            if self.listening:
                self.server.shutdown()
            self.server.server_close()

    def _tune(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        seconds = max(3, round(self.link_seconds))
        for option, value in (
            ("TCP_KEEPIDLE", seconds // 3),
            ("TCP_KEEPINTVL", seconds // 3),
            ("TCP_KEEPCNT", 2),
        ):
            if hasattr(socket, option):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * seconds)


class _Server(ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, driver: PinnedTls, address: tuple[str, int]) -> None:
        self.driver = driver
        self.shaking = threading.BoundedSemaphore(MAX_HANDSHAKES)
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)


class _Handler(BaseRequestHandler):
    def handle(self) -> None:
        server = self.server
        assert isinstance(server, _Server)
        if not server.shaking.acquire(blocking=False):
            server.driver.refused("too many connections at once")
            return
        try:
            connection = server.driver.admit(self.request, server_side=True)
        finally:
            server.shaking.release()
        if connection is not None:
            server.driver.hold(connection)


class _Connection(Connection):  # type: ignore[misc]
    """Frames over one TLS connection."""

    def __init__(
        self, sock: ssl.SSLSocket, connector: ConnectorInfo, peer: str, largest: int, patience: float
    ) -> None:
        super().__init__(connector)
        self.sock, self.peer, self.largest, self.patience = sock, peer, largest, patience
        self.closing = self.heard = self.taken = False
        """Whether the connection is to end; whether hands were shaken; whether the last data frame was handed over."""
        self._lock = threading.Lock()
        self._flight = threading.BoundedSemaphore(FRAMES_IN_FLIGHT)

    def get_conn_properties(self) -> dict[str, Any]:
        """The peer's name goes to FLARE, which binds it to the endpoint's; addresses are nobody's business."""
        return {
            DriverParams.PEER_CN.value: self.peer,
            DriverParams.PEER_ADDR.value: "-",
            DriverParams.LOCAL_ADDR.value: "-",
        }

    def close(self) -> None:
        """End the connection, whoever is reading or writing."""
        self.closing = True
        with self._lock:  # a TLS socket that is shut down while somebody writes to it would write in clear
            with contextlib.suppress(OSError):  # closed already, by the peer or by us
                socket.socket.shutdown(self.sock, socket.SHUT_RDWR)
            self.sock.close()

    def send_frame(self, frame: BytesAlike) -> None:
        """Write a whole frame, or close the connection: half a frame would garble everything after it."""
        view = memoryview(frame)
        try:
            while view:
                with self._lock:
                    if self.closing:
                        raise OSError("closed")
                    try:
                        sent = self.sock.send(view[:_CHUNK])
                    except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
                        sent = 0
                view = view[sent:]
                if not sent:
                    self._wait(select.POLLOUT, time.monotonic() + self.patience)
        except (OSError, ValueError) as error:
            self.close()
            raise CommError(
                CommError.CLOSED, f"connection to {self.peer} ended while sending: {_reason(error)}"
            ) from None

    def read_loop(self) -> None:
        """Hand frames on until the connection ends."""
        try:
            while not self.closing:
                self._next_frame()
        except (OSError, ValueError, CommError, msgpack.UnpackException):
            pass  # the end of the connection, noticed by reading; whoever needs to know hears of the disconnection

    def release(self) -> None:
        """A data frame of this connection has been handled."""
        self._flight.release()

    def process_frame(self, frame: BytesAlike) -> None:
        """FLARE's handling of a frame, here and now: its pool of threads would let messages overtake each other."""
        receiver = self.frame_receiver
        receiver.conn.last_activity = time.time()
        receiver.conn_manager.process_frame_task(receiver.conn, frame)

    def _next_frame(self) -> None:
        head = bytearray(PREFIX_LEN)
        self._read(memoryview(head))
        prefix = Prefix.from_bytes(head)
        largest = self.largest if prefix.type == Types.DATA else FRAME_MARGIN
        if not PREFIX_LEN <= prefix.length <= largest or prefix.header_len > min(
            FRAME_MARGIN, prefix.length - PREFIX_LEN
        ):
            raise CommError(CommError.BAD_DATA, f"a frame of {prefix.length} bytes")
        frame = head
        while len(frame) < prefix.length:  # memory grows with what has come, not with what was announced
            part = bytearray(min(_PART, prefix.length - len(frame)))
            self._read(memoryview(part))
            frame += part
        if prefix.type in (Types.HELLO, Types.READY):
            self._check_name(prefix, frame)
        elif prefix.type == Types.DATA and not self.heard:
            raise CommError(CommError.BAD_DATA, "data before a handshake")
        self.heard = True
        if prefix.type != Types.DATA:
            self.process_frame(frame)
            return
        while not self._flight.acquire(timeout=1.0):
            if self.closing:
                return
        self.taken = False
        self.process_frame(frame)
        if not self.taken:
            self.release()

    def _check_name(self, prefix: Prefix, frame: bytearray) -> None:
        """One handshake, under the certificate's name and no other; FLARE would take any below it, and any number."""
        about = msgpack.unpackb(bytes(frame[PREFIX_LEN + prefix.header_len :]))
        if self.heard or not isinstance(about, dict) or about.get(HandshakeKeys.ENDPOINT_NAME) != self.peer:
            raise CommError(CommError.BAD_DATA, "a handshake under another name, or a second one")

    def _read(self, view: memoryview) -> None:
        while view:
            with self._lock:
                if self.closing:
                    raise OSError("closed")
                try:
                    count = self.sock.recv_into(view)
                except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    count = -1
            if count == 0:
                raise CommError(CommError.CLOSED, "closed by the peer")
            if count > 0:
                view = view[count:]
            else:
                self._wait(select.POLLIN, None)

    def _wait(self, event: int, deadline: float | None) -> None:
        poll = select.poll()
        poll.register(self.sock, event)
        while not poll.poll(1000):
            if self.closing:
                raise OSError("closed")
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"nothing taken for {self.patience:g} s")


def _common_name(sock: ssl.SSLSocket) -> str:
    """The name in the peer's certificate, which our authority signed."""
    parts: Any = (sock.getpeercert() or {}).get("subject", ())
    return next((value for part in parts for key, value in part if key == "commonName"), "somebody")


def _reason(error: BaseException) -> str:
    """Why, without anything the peer wrote."""
    return getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__

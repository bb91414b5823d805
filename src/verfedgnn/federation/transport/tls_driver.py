"""A driver for NVIDIA FLARE's connection manager: mutual TLS 1.3 between pinned certificates.

FLARE's own tcp driver has four problems that this one avoids:

- It accepts any certificate of the authority. Here only certificates of the roster are admitted.
- It performs the TLS handshake in the accepting thread, where one silent stranger blocks all others. Here each
  handshake has its own thread and a time limit, and strangers share a bounded table of handshakes.
- It accepts frames of 2 GB from anyone. Here frames are bounded and few are in flight, so a flood stalls its sender.
- It uses one TLS object from two threads. Here every use of a TLS object holds its lock.

The kernel detects cut links.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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

from verfedgnn.core.connection_table import ConnectionTable
from verfedgnn.federation.transport.frames import LARGEST_FRAME

HANDSHAKE_SECONDS = 10.0
"""Number of seconds that a whole handshake may take."""
FRAMES_IN_FLIGHT = 4
"""Number of data frames of one connection that may be read but not yet handled."""
FRAME_MARGIN = 4096
"""Number of bytes around a frame: FLARE's prefix and headers."""
INSTANCE = "instance"
"""Key of the process's random name in FLARE's handshake."""
VERSION = "version"
"""Key of the version of verfedgnn in FLARE's handshake."""
REFUSED = 200
"""Type of the frame by which the coordinator says why it ends a connection; FLARE has no such type."""
_CHUNK = 1 << 18
_PART = 1 << 22


def tls_context(*, server: bool, authority: str, certificate: str, key: bytes) -> ssl.SSLContext:
    """Return a context for mutual TLS 1.3 with a certificate and its private key, both in PEM.

    Host names are not checked, because the peer's certificate is pinned.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=authority)
    with _as_file(certificate.encode()) as certificate_file, _as_file(key) as key_file:
        context.load_cert_chain(certificate_file, key_file)
    return context


@contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """Yield a name under which `data` can be read once: the ssl module takes names only, and a key stays off the disk."""
    reader, writer = os.pipe()
    try:
        with open(writer, "wb") as file:
            file.write(data)
        yield f"/dev/fd/{reader}"
    finally:
        os.close(reader)


class PinnedTls(BaseDriver):  # type: ignore[misc]
    """A listening or connecting driver that admits only the certificates in `roster` (SHA-256 to name)."""

    def __init__(
        self,
        context: ssl.SSLContext,
        roster: Mapping[str, str],
        *,
        link_seconds: float,
        refused: Callable[[str], None],
    ) -> None:
        super().__init__()
        self.context = context
        self.roster = roster
        self.link_seconds = link_seconds
        self.refused = refused
        """Callback that receives the reason whenever a connection is not admitted."""
        self.second: Callable[[str], None] = lambda peer: None
        """Callback that receives the name of a connected peer under which a second process wants to join."""
        self.server: _Server | None = None
        self.stopping = False
        self.listening = False

    @staticmethod
    def supported_transports() -> list[str]:
        """Return nothing: this driver is passed as an object and never chosen by scheme."""
        return []

    @staticmethod
    def capabilities() -> dict[str, Any]:
        """Ask FLARE for heartbeats, and for no TLS of its own."""
        return {DriverCap.SEND_HEARTBEAT.value: True, DriverCap.SUPPORT_SSL.value: True}

    @staticmethod
    def get_urls(scheme: str, resources: dict[str, Any]) -> tuple[str, str]:
        """Raise, because addresses are always given."""
        raise NotImplementedError

    def bind(self, address: tuple[str, int]) -> None:
        """Bind the port now: FLARE calls `listen` later and would silently retry a port in use forever."""
        self.server = _Server(self, address)

    def listen(self, connector: ConnectorInfo) -> None:
        """Accept connections until `shutdown`."""
        self.connector = connector
        assert self.server is not None, "call bind first"
        self.listening = not self.stopping
        if self.listening:
            with self.server:
                self.server.serve_forever(poll_interval=0.2)

    def connect(self, connector: ConnectorInfo) -> None:
        """Hold one connection until it ends; FLARE calls this again after a growing pause."""
        self.connector = connector
        address = (connector.params["host"], int(connector.params["port"]))
        try:
            raw = socket.create_connection(address, timeout=HANDSHAKE_SECONDS)
        except OSError as error:
            self.refused(f"cannot reach {address[0]}:{address[1]} ({_reason(error)})")
            raise
        connection = self.admit(self.wrap(raw, server_side=False))
        if connection is not None:
            self.hold(connection)
            if connection.reason:
                self.refused(connection.reason)
            elif not connection.heard and not self.stopping:
                self.refused(
                    "the coordinator closed the connection at once: it does not know this party's certificate"
                )

    def wrap(self, raw: socket.socket, *, server_side: bool) -> ssl.SSLSocket:
        """Return a TLS socket whose handshake is yet to come."""
        raw.settimeout(HANDSHAKE_SECONDS)
        try:
            return self.context.wrap_socket(raw, server_side=server_side, do_handshake_on_connect=False)
        except OSError:
            raw.close()
            raise

    def admit(self, sock: ssl.SSLSocket) -> _Connection | None:
        """Perform the handshake and return the connection, or None if the peer is not in the roster."""
        try:
            sock.do_handshake()
            certificate = sock.getpeercert(binary_form=True) or b""
        except (OSError, ValueError) as error:
            self.refused(f"TLS handshake failed ({_reason(error)})")
            sock.close()
            return None
        name = self.roster.get(hashlib.sha256(certificate).hexdigest())
        if name is None:
            self.refused(f"the certificate of {_common_name(sock)} is not in the roster")
            sock.close()
            return None
        self._tune(sock)
        return _Connection(sock, self, name, self.link_seconds)

    def claim(self, connection: _Connection) -> None:
        """Give a peer's name to a connection whose handshake has arrived; raise `CommError` if another process has it.

        A peer has one connection. A newer one of the same process replaces an older one.
        """
        with self.conn_lock:
            others = [other for other in self.connections.values() if other.peer == connection.peer]
            older = [other for other in others if other.heard and not other.closing]
            if any(other.instance != connection.instance for other in older):
                older = []
                second = True
            else:
                second = False
                connection.heard = True
        for other in older:
            other.close()
        if second:
            connection.send_reason(
                f"another process of {connection.peer} is connected to the coordinator; stop one of the two"
            )
            self.second(connection.peer)
            raise CommError(CommError.BAD_DATA, "a second process of a connected peer")

    def hold(self, connection: _Connection) -> None:
        """Read until the connection ends."""
        self.add_connection(connection)
        try:
            if not self.stopping:
                connection.read_loop()
        finally:
            connection.close()
            self.close_connection(connection)

    def shutdown(self) -> None:
        """Stop the listener and end all connections, including those in a handshake."""
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
    request_queue_size = 1024

    def __init__(self, driver: PinnedTls, address: tuple[str, int]) -> None:
        self.driver = driver
        self.strangers = ConnectionTable()
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)

    def get_request(self) -> tuple[ssl.SSLSocket, Any]:
        raw, address = super().get_request()
        return self.driver.wrap(raw, server_side=True), address

    def process_request(self, request: Any, client_address: Any) -> None:
        self.strangers.add(request, client_address[0])
        super().process_request(request, client_address)

    def close_request(self, request: Any) -> None:
        super().close_request(request)
        self.strangers.remove(request)


class _Handler(BaseRequestHandler):
    def handle(self) -> None:
        server = self.server
        assert isinstance(server, _Server)
        connection = server.driver.admit(self.request)
        if connection is not None:
            server.strangers.remove(self.request)
            server.driver.hold(connection)


class _Connection(Connection):  # type: ignore[misc]
    """One TLS connection that carries frames."""

    def __init__(self, sock: ssl.SSLSocket, driver: PinnedTls, peer: str, patience: float) -> None:
        super().__init__(driver.connector)
        self.driver = driver
        self.sock = sock
        self.peer = peer
        self.patience = patience
        self.closing = False
        """Whether the connection is about to end."""
        self.heard = False
        """Whether the peer has sent FLARE's handshake and was accepted."""
        self.instance = ""
        """Random name of the peer's process."""
        self.reason = ""
        """Why the coordinator refused this connection; empty if it did not."""
        self.taken = False
        """Whether the last data frame was handed over."""
        self._lock = threading.Lock()
        self._flight = threading.BoundedSemaphore(FRAMES_IN_FLIGHT)

    def get_conn_properties(self) -> dict[str, Any]:
        """Give FLARE the peer's name, which it binds to the endpoint's, and no addresses."""
        return {
            DriverParams.PEER_CN.value: self.peer,
            DriverParams.PEER_ADDR.value: "-",
            DriverParams.LOCAL_ADDR.value: "-",
        }

    def close(self) -> None:
        """End the connection, even while another thread reads or writes."""
        self.closing = True
        with self._lock:  # a TLS socket that is shut down during a write would write unencrypted data
            with contextlib.suppress(OSError):  # already closed by either side
                socket.socket.shutdown(self.sock, socket.SHUT_RDWR)
            self.sock.close()

    def send_frame(self, frame: BytesAlike) -> None:
        """Write a whole frame or close the connection: half a frame would garble everything after it."""
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

    def send_reason(self, text: str) -> None:
        """Tell the peer why the connection ends."""
        data = text.encode()
        frame = bytearray(PREFIX_LEN) + data
        Prefix(length=len(frame), type=REFUSED).to_buffer(frame, 0)
        with contextlib.suppress(CommError):
            self.send_frame(frame)

    def read_loop(self) -> None:
        """Read and process frames until the connection ends."""
        try:
            while not self.closing:
                self._next_frame()
        except (OSError, ValueError, CommError, msgpack.UnpackException):
            pass  # the connection has ended; FLARE reports the disconnection

    def release(self) -> None:
        """Mark a data frame of this connection as handled."""
        self._flight.release()

    def process_frame(self, frame: BytesAlike) -> None:
        """Process a frame in this thread: in FLARE's thread pool messages would overtake each other."""
        receiver = self.frame_receiver
        receiver.conn.last_activity = time.time()
        receiver.conn_manager.process_frame_task(receiver.conn, frame)

    def _next_frame(self) -> None:
        head = bytearray(PREFIX_LEN)
        self._read(memoryview(head))
        prefix = Prefix.from_bytes(head)
        largest = LARGEST_FRAME + FRAME_MARGIN if prefix.type == Types.DATA else FRAME_MARGIN
        if not PREFIX_LEN <= prefix.length <= largest or prefix.header_len > min(
            FRAME_MARGIN, prefix.length - PREFIX_LEN
        ):
            raise CommError(CommError.BAD_DATA, f"a frame of {prefix.length} bytes")
        frame = head
        while (
            len(frame) < prefix.length
        ):  # memory grows with the bytes received, not with the announced length
            part = bytearray(min(_PART, prefix.length - len(frame)))
            self._read(memoryview(part))
            frame += part
        if prefix.type == REFUSED:
            self.reason = frame[PREFIX_LEN:].decode("utf-8", "replace")
            raise CommError(CommError.CLOSED, "refused")
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
        """Require one handshake, under the certificate's name; FLARE would accept others, and any number of them."""
        about = msgpack.unpackb(bytes(frame[PREFIX_LEN + prefix.header_len :]))
        if self.heard or not isinstance(about, dict) or about.get(HandshakeKeys.ENDPOINT_NAME) != self.peer:
            raise CommError(CommError.BAD_DATA, "a handshake under another name, or a second handshake")
        self.instance = str(about.get(INSTANCE, ""))
        self.driver.claim(self)

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
                raise TimeoutError(f"the peer read nothing for {self.patience:g} s")


def _common_name(sock: ssl.SSLSocket) -> str:
    """Return the name in the peer's certificate, which the authority signed."""
    parts: Any = (sock.getpeercert() or {}).get("subject", ())
    return next((value for part in parts for key, value in part if key == "commonName"), "an unnamed peer")


def _reason(error: BaseException) -> str:
    """Return the reason of an error without any text from the peer."""
    return getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__

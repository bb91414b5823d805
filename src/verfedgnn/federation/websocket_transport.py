"""The transport between organisations: websockets over mutual TLS 1.3 between pinned certificates.

    party                                                      coordinator
    TLS handshake, in which each side checks the other's certificate against the roster
    GET / with the random name of its process           ->
                                                        <-     101, or 409 and the reason
    reports "joined", sends an empty message            ->     reports "joined"
    messages                                            <->    messages

A party that the coordinator reports can therefore already send. A websocket message is one message, in fragments of a
bounded size; one that is larger than `largest` ends its connection before it is read. Each member has a thread with an
event loop, which reads, writes and dials; the services call `send` and `next` from their own.
The kernel detects cut links: it answers for a process that is stopped or busy, and nobody answers for a cut cable.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import queue
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from itertools import chain
from typing import Any

from verfedgnn.core.array_files import cut
from verfedgnn.core.connection_table import ConnectionTable, shut_down
from verfedgnn.core.errors import ConfigError
from verfedgnn.core.installed import installed_version
from verfedgnn.federation.agreement import FILE, read_agreement
from verfedgnn.federation.certificates import error_reason, peer_fingerprint, pinned_tls
from verfedgnn.federation.roster import MemberIdentity
from verfedgnn.federation.transport import (
    ABOUT,
    AGREEMENT,
    HOLDS,
    OUTBOX_BYTES,
    OUTBOX_MESSAGES,
    PART_BYTES,
    TransportEvent,
    size_of,
    too_large,
)
from verfedgnn.protocol.messages import EncodedMessage

try:
    from websockets.asyncio.client import ClientConnection
    from websockets.asyncio.client import connect as dial
    from websockets.asyncio.connection import Connection
    from websockets.asyncio.server import ServerConnection, serve
    from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
    from websockets.frames import CloseCode
    from websockets.http11 import Request, Response
    from websockets.protocol import State
except ModuleNotFoundError:
    raise ConfigError(
        "a federation needs websockets; run in a checkout: pip install '.[federation]'"
    ) from None

HANDSHAKE_SECONDS = 10.0
"""Number of seconds that a TLS handshake, or the request after it, may take."""
MESSAGES_IN_FLIGHT = 2
"""Number of messages of one peer that may be read but not yet handled."""
MOST_PARTS = 4096
"""Number of fragments that a message may have."""
CLOSE_SECONDS = 2.0
"""Number of seconds for which queued messages are still delivered when a transport closes."""
PAUSES = (0.1, 0.2, 0.5, 1.0, 2.0, 4.0)
"""Seconds between attempts to connect; the last one repeats."""
_PROCESS = "Verfedgnn-Process"
_BACKLOG = 1024
_LIMITS: dict[str, Any] = {
    "compression": None,
    "max_size": (PART_BYTES, PART_BYTES),
    "max_queue": 1,
    "open_timeout": HANDSHAKE_SECONDS,
    "close_timeout": CLOSE_SECONDS,
    "ping_interval": 20,  # keeps the connection known to firewalls
    "ping_timeout": None,
}

# Its log names peers; the events that matter are logged by the services.
logging.getLogger("websockets").setLevel(logging.CRITICAL)


class _Bounded(Connection):
    """A websocket that ends when its peer takes no answers: every ping is answered, and answers wait without a bound."""

    def data_received(self, data: bytes) -> None:
        """Read and answer; parts to write wait for each other, so more than two are the answers to pings."""
        super().data_received(data)
        if self.transport.get_write_buffer_size() > 2 * PART_BYTES:
            self.transport.abort()


class _BoundedServer(_Bounded, ServerConnection): ...


class _BoundedClient(_Bounded, ClientConnection): ...


class _Link:
    """One connection to a peer, which the event loop owns."""

    def __init__(self, peer: str, process: str, websocket: Connection) -> None:
        self.peer = peer
        self.process = process
        """Random name of the peer's process."""
        self.websocket = websocket
        self.joined = False
        self.outbox: asyncio.Queue[tuple[EncodedMessage, ...] | None] = asyncio.Queue()
        """Messages to write; None is the end."""
        self.waiting = 0
        """Number of bytes in the outbox."""
        self.limit = OUTBOX_BYTES
        self.writer: asyncio.Task[None] | None = None
        self.reader: asyncio.Task[Any] | None = None

    def put(self, messages: tuple[EncodedMessage, ...]) -> None:
        """Queue messages, or end the connection if the peer lets too much wait."""
        size = size_of(*messages)
        self.limit = max(self.limit, 2 * size)
        if self.outbox.qsize() >= OUTBOX_MESSAGES or self.waiting > self.limit:
            self.websocket.transport.abort()
        else:
            self.waiting += size
            self.outbox.put_nowait(messages)

    async def write(self) -> None:
        """Write messages until the end of the outbox or of the connection."""
        try:
            while (messages := await self.outbox.get()) is not None:
                for message in messages:
                    parts = chain.from_iterable(cut(memoryview(part)) for part in message)
                    await self.websocket.send(parts)
                    del message, parts
                self.waiting -= size_of(*messages)
                del messages  # they may hold a copy of all public parameters
        except Exception:
            # The peer is gone, or memory is short. On joining again it gets what it missed.
            self.websocket.transport.abort()

    async def read(self, progress: Callable[[], None]) -> memoryview:
        """Return the next message; call `progress` for each full part of a large one."""
        data = bytearray()
        parts = 0
        async for part in self.websocket.recv_streaming(decode=False):
            data += part
            parts += 1
            if len(part) == PART_BYTES:
                progress()
            if parts > MOST_PARTS:
                self.websocket.transport.abort()
        return memoryview(data)

    async def finish(self) -> None:
        """Write what is queued, then close the connection; the peer's answer says that it has read everything."""
        self.outbox.put_nowait(None)
        if self.writer is not None:
            await asyncio.wait([self.writer])
        await self.websocket.close()


class WebsocketTransport:
    """One member's end: the coordinator's listens, a party's connects and reconnects. Only the agreed peers are admitted."""

    def __init__(
        self,
        identity: MemberIdentity,
        refused: Callable[[str], object],
        listen: tuple[str, int] | None = None,
    ) -> None:
        """`refused` is called with the reason whenever a connection fails. By default, `listen` is the agreed address."""
        agreement = identity.agreement
        server = identity.is_coordinator
        peers = agreement.parties if server else (agreement.coordinator,)
        self._roster = {peer.parsed.fingerprint: peer.name for peer in peers}
        self._context = identity.tls_context()
        self._context.sslobject_class = pinned_tls(self._roster, refused)
        self._address = listen or agreement.endpoint
        self._link_seconds = agreement.timeouts.link
        self._refused = refused
        self._listener = _Listener(self._address) if server else None
        self._process = secrets.token_hex(16)
        self._file = identity.key_file.parent / FILE
        self.holds: dict[str, str] = {}
        """SHA-256 of the agreement that peers said they hold, besides their messages."""
        self._links: dict[str, _Link] = {}
        self._rooms = {peer: asyncio.Semaphore(MESSAGES_IN_FLIGHT) for peer in self._roster.values()}
        """Room for messages of each peer that were read and not yet handled; a new connection brings no more of it."""
        self._largest = PART_BYTES
        self._lost = 0
        """Number of connections that have ended."""
        self._events: queue.Queue[tuple[TransportEvent, asyncio.Semaphore | None]] = queue.Queue()
        """Events, and the room that a message takes."""
        self._taken: asyncio.Semaphore | None = None
        """Room of the message that is being handled."""
        self._runner = asyncio.Runner(loop_factory=asyncio.SelectorEventLoop)
        self._loop = self._runner.get_loop()
        self._closing = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="transport", daemon=True)
        self._thread.start()

    # -- Transport, from the thread of a service ---------------------------------------------------------

    @property
    def largest(self) -> int:
        """Number of bytes of the largest message to accept from a peer."""
        return self._largest

    @largest.setter
    def largest(self, size: int) -> None:
        self._largest = size
        self._call(self._limit)

    def send(self, to: str, *messages: EncodedMessage) -> None:
        """Queue messages and return at once."""
        self._call(self._put, to, messages)

    def next(self, timeout: float) -> TransportEvent | None:
        """Return the next event. Taking one marks the message of the previous one as handled."""
        if self._taken is not None:
            self._call(self._taken.release)
            self._taken = None
        with contextlib.suppress(queue.Empty):
            event, self._taken = self._events.get(timeout=max(0.0, timeout))
            return event
        return None

    def close(self) -> None:
        """Deliver queued messages for two seconds at most, then end all connections."""
        self._call(self._closing.set)
        self._thread.join(2 * CLOSE_SECONDS)

    def _call(self, function: Callable[..., object], *values: object) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            self._loop.call_soon_threadsafe(function, *values)

    # -- the event loop ----------------------------------------------------------------------------------

    def _run(self) -> None:
        with self._runner:
            self._runner.run(self._carry())

    async def _carry(self) -> None:
        if self._listener is None:
            dialing = asyncio.create_task(self._dial())
            await self._closing.wait()
            await self._finish()
            dialing.cancel()
            return
        server = await serve(
            self._serve, sock=self._listener, ssl=self._context, backlog=_BACKLOG,
            process_request=self._answer, server_header=None, create_connection=_BoundedServer, **_LIMITS,
        )  # fmt: skip
        await self._closing.wait()
        server.close(close_connections=False)
        await self._finish()
        for stranger in self._listener.strangers:
            shut_down(stranger)

    async def _finish(self) -> None:
        """Deliver what is queued, and end all connections."""
        finishing = [asyncio.create_task(link.finish()) for link in self._links.values()]
        if finishing:
            await asyncio.wait(finishing, timeout=CLOSE_SECONDS)
        for link in list(self._links.values()):
            link.websocket.transport.abort()

    def _put(self, to: str, messages: tuple[EncodedMessage, ...]) -> None:
        link = self._links.get(to)
        if link is not None and link.joined:
            link.put(messages)

    def _report(self, kind: Any, peer: str) -> None:
        self._events.put((TransportEvent(kind, peer), None))

    def _limit(self) -> None:
        for link in self._links.values():
            link.websocket.protocol.max_message_size = self._largest

    async def _hold(self, link: _Link) -> None:
        """Carry messages both ways until the connection ends."""
        room = self._rooms[link.peer]
        link.joined = True
        self._report("joined", link.peer)
        link.reader = asyncio.current_task()
        try:
            if self._listener is None:
                await link.websocket.send(b"")
            link.writer = asyncio.create_task(link.write())
            while True:
                await room.acquire()
                try:
                    data = await link.read(lambda: self._report("part", link.peer))
                except BaseException:
                    room.release()
                    raise
                self._events.put((TransportEvent("message", link.peer, data), room))
        except ConnectionClosed as error:
            if error.sent is not None and error.sent.code == CloseCode.MESSAGE_TOO_BIG:
                self._events.put((too_large(link.peer, self._largest), None))
        finally:
            if link.writer is not None:
                link.writer.cancel()
            self._lose(link)

    def _lose(self, link: _Link) -> None:
        """Forget a connection; report the peer as gone unless another connection has taken its place."""
        if self._links.get(link.peer) is link:
            del self._links[link.peer]
            self._lost += 1
            if self._lost % 16 == 0:
                gc.collect()  # a websocket refers to itself, and holds what was read and not taken
            if link.joined and not self._closing.is_set():
                self._report("left", link.peer)

    def _peer(self, websocket: Connection) -> str:
        tls = websocket.transport.get_extra_info("ssl_object")
        return self._roster[peer_fingerprint(tls)]

    # -- the coordinator's side --------------------------------------------------------------------------

    def _answer(self, websocket: ServerConnection, request: Request) -> Response | None:
        """Answer a peer's request: let it join, unless another process has its name, or tell it about this side.

        A newer connection of the same process takes the place of an older one.
        """
        assert self._listener is not None
        sock = websocket.transport.get_extra_info("socket")
        self._listener.forget(sock.fileno())
        peer = self._peer(websocket)
        process = request.headers.get(_PROCESS, "")
        if HOLDS in request.headers:
            self.holds[peer] = request.headers[HOLDS][:64]
        if request.path == AGREEMENT:
            return websocket.respond(HTTPStatus.OK, self._file.read_text("utf-8"))
        older = self._links.get(peer)
        if older is not None and older.websocket.state <= State.OPEN and older.process != process:
            if request.path != ABOUT:
                self._report("second", peer)
            reason = f"another process of {peer} is connected to the coordinator; stop one of the two"
            return websocket.respond(HTTPStatus.CONFLICT, reason)
        if request.path == ABOUT:
            offered = read_agreement(self._file.read_bytes(), FILE, dates=False).digest()
            about = {"time": time.time(), "version": installed_version(), "agreement": offered}
            return websocket.respond(HTTPStatus.OK, json.dumps(about))
        if older is not None:
            self._lose(older)
            older.websocket.transport.abort()
            if older.reader is not None:  # it may be waiting for room
                older.reader.cancel()
        _notice_cuts(sock, self._link_seconds)
        self._links[peer] = _Link(peer, process, websocket)
        self._limit()
        return None

    async def _serve(self, websocket: ServerConnection) -> None:
        link = self._links.get(self._peer(websocket))
        if link is None or link.websocket is not websocket:
            return
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                ready = await websocket.recv(decode=False)
        except (ConnectionClosed, TimeoutError):
            ready = b"not ready"
        if ready == b"" and self._links.get(link.peer) is link:
            await self._hold(link)
        self._lose(link)

    # -- a party's side ----------------------------------------------------------------------------------

    async def _dial(self) -> None:
        """Hold a connection to the coordinator, again and again."""
        attempts = 0
        while not self._closing.is_set():
            link = await self._reach()
            if link is not None:
                attempts = 0
                self._links[link.peer] = link
                self._limit()
                await self._hold(link)
            await asyncio.sleep(PAUSES[min(attempts, len(PAUSES) - 1)])
            attempts += 1

    async def _reach(self) -> _Link | None:
        """Connect to the coordinator once; report why that fails."""
        host, port = self._address
        try:
            # With a host of its own, a redirection elsewhere is not followed.
            websocket = await dial(
                "wss://coordinator/", host=host, port=port, ssl=self._context, server_hostname="", proxy=None,
                additional_headers={_PROCESS: self._process}, user_agent_header=None,
                create_connection=_BoundedClient, **_LIMITS,
            )  # fmt: skip
            _notice_cuts(websocket.transport.get_extra_info("socket"), self._link_seconds)
            return _Link(self._peer(websocket), self._process, websocket)
        except ssl.SSLError:
            pass  # reported during the handshake
        except OSError as error:
            self._refused(f"cannot reach {host}:{port} ({error_reason(error)})")
        except InvalidStatus as error:
            self._refused((error.response.body or b"")[:500].decode("utf-8", "replace"))
        except (InvalidHandshake, ValueError):
            unknown = "it does not know this party's certificate"
            self._refused(f"the coordinator closed the connection at once: {unknown}")
        return None


class _Listener(socket.socket):
    """A listening socket whose connections are strangers at first."""

    def __init__(self, address: tuple[str, int]) -> None:
        # Only where the protocol is named does asyncio turn off Nagle's algorithm, which delays answers by 40 ms.
        super().__init__(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, proto=socket.IPPROTO_TCP)
        self.strangers = ConnectionTable(patience=0.0)
        try:
            self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.bind(address)
            self.listen(_BACKLOG)
        except OSError as error:
            self.close()
            where = f"{address[0]}:{address[1]}"
            remedy = "free the port or use another --listen"
            raise ConfigError(f"cannot listen on {where}: {error.strerror or error}; {remedy}") from None

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection and put it on the table of strangers."""
        sock, address = super().accept()
        self.forget()
        self.strangers.add(sock, address[0])
        return sock, address

    def forget(self, number: int = -1) -> None:
        """Take closed connections off the table, and the one with a file number, whose peer is no longer a stranger."""
        for sock in self.strangers:
            if sock.fileno() in (-1, number):
                self.strangers.remove(sock)


def _notice_cuts(sock: Any, link_seconds: float) -> None:
    """Let the kernel end a connection whose other end has not answered for that many seconds."""
    seconds = max(3, round(link_seconds))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in {
        "TCP_KEEPIDLE": seconds // 3,
        "TCP_KEEPINTVL": seconds // 3,
        "TCP_KEEPCNT": 2,
        "TCP_USER_TIMEOUT": 1000 * seconds,
    }.items():
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)

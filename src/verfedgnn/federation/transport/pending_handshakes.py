"""The TLS handshakes that a listener has begun and not finished, bounded in all and per address.

Anybody who reaches the port can begin a handshake. A new connection is therefore never turned away: it takes the
place of the oldest unfinished handshake of the address that has most. A member's handshake takes milliseconds. To
push it out, strangers must begin as many handshakes as the table holds within that time.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

MAX_HANDSHAKES = 64
"""Number of handshakes that may be unfinished at a time."""
MAX_HANDSHAKES_PER_ADDRESS = 16
"""Number of handshakes that one address may have unfinished; several members may share an address."""


class PendingHandshakes:
    """A table of the sockets whose handshake is unfinished, oldest first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._networks: dict[socket.socket, str] = {}
        self._counts: Counter[str] = Counter()

    @contextmanager
    def hold(self, sock: socket.socket, address: str) -> Iterator[None]:
        """Keep `sock` in the table during the block, and end another handshake if the table is full."""
        network = _network(address)
        with self._lock:
            if self._counts[network] >= MAX_HANDSHAKES_PER_ADDRESS:
                self._evict(network)
            elif len(self._networks) >= MAX_HANDSHAKES:
                self._evict(max(self._networks.values(), key=self._counts.__getitem__))
            self._networks[sock] = network
            self._counts[network] += 1
        try:
            yield
        finally:
            with self._lock:
                self._forget(sock)

    def _evict(self, network: str) -> None:
        oldest = next(sock for sock, other in self._networks.items() if other == network)
        self._forget(oldest)
        with contextlib.suppress(OSError):  # already closed by the peer
            socket.socket.shutdown(oldest, socket.SHUT_RDWR)  # wakes the thread that waits for the peer

    def _forget(self, sock: socket.socket) -> None:
        network = self._networks.pop(sock, None)
        if network is not None:
            self._counts[network] -= 1
            if not self._counts[network]:
                del self._counts[network]


def _network(address: str) -> str:
    """Return an IPv4 address, or the /64 of an IPv6 address, since a single host may use all of that."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        return str(ip.ipv4_mapped or ipaddress.ip_network((ip, 64), strict=False))
    return str(ip)

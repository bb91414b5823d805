"""The connections of strangers that a server keeps open, bounded in all and per address.

Anybody who reaches a port can open connections and send nothing. A new connection is therefore never turned away:
it takes the place of the oldest connection of the address that has most. A TLS handshake or a request takes
milliseconds. To push it out, strangers must open as many connections as the table holds within that time.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import threading
from collections import Counter

MAX_CONNECTIONS = 64
"""Number of connections that strangers may have open at a time."""
MAX_PER_ADDRESS = 16
"""Number of connections that one address may have open; several members may share an address."""
_CLOSE_SECONDS = 1.0


class ConnectionTable:
    """A table of open sockets, oldest first."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._networks: dict[socket.socket, str] = {}
        self._counts: Counter[str] = Counter()

    def add(self, sock: socket.socket, address: str) -> None:
        """Add a socket. If the table is full, end another connection and wait until its thread has closed it."""
        network = _network(address)
        with self._changed:
            if self._counts[network] >= MAX_PER_ADDRESS:
                self._evict(network)
            elif len(self._networks) >= MAX_CONNECTIONS:
                self._evict(max(self._networks.values(), key=self._counts.__getitem__))
            self._networks[sock] = network
            self._counts[network] += 1

    def remove(self, sock: socket.socket) -> None:
        """Remove a socket that is closed or whose peer is no longer a stranger."""
        with self._changed:
            self._forget(sock)
            self._changed.notify_all()

    def _evict(self, network: str) -> None:
        oldest = next(sock for sock, other in self._networks.items() if other == network)
        with contextlib.suppress(OSError):  # already closed by the peer
            socket.socket.shutdown(oldest, socket.SHUT_RDWR)  # wakes the thread that waits for the peer
        self._changed.wait_for(lambda: oldest not in self._networks, _CLOSE_SECONDS)
        self._forget(oldest)

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

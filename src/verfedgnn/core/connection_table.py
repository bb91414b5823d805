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
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

MAX_CONNECTIONS = 64
"""Number of connections that strangers may have open at a time."""
MAX_PER_ADDRESS = 16
"""Number of connections that one address may have open; several members may share an address."""


def shut_down(sock: socket.socket) -> None:
    """End the connection of a socket; this wakes the thread that waits for the peer."""
    with contextlib.suppress(OSError):  # already closed by the peer
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


class ConnectionTable:
    """A table of open connections, oldest first: sockets with a thread each, or whatever `end` ends."""

    def __init__(
        self,
        end: Callable[[Any], object] = shut_down,
        *,
        most: int = MAX_CONNECTIONS,
        per_address: int = MAX_PER_ADDRESS,
        patience: float = 1.0,
    ) -> None:
        """`patience` is how long to wait until the thread of a connection has closed it, in seconds."""
        self._end = end
        self._most = most
        self._per_address = per_address
        self._patience = patience
        self._changed = threading.Condition()
        self._networks: dict[Any, str] = {}

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._networks))

    def add(self, connection: Any, address: str) -> None:
        """Add a connection as the newest. If the table is full, end another one."""
        network = _network(address)
        with self._changed:
            self._networks.pop(connection, None)
            counts = Counter(self._networks.values())
            if counts[network] >= self._per_address:
                self._evict(network)
            elif len(self._networks) >= self._most:
                self._evict(max(counts, key=counts.__getitem__))
            self._networks[connection] = network

    def remove(self, connection: Any) -> None:
        """Remove a connection that is closed or whose peer is no longer a stranger."""
        with self._changed:
            self._networks.pop(connection, None)
            self._changed.notify_all()

    def _evict(self, network: str) -> None:
        oldest = next(each for each, other in self._networks.items() if other == network)
        self._end(oldest)
        self._changed.wait_for(lambda: oldest not in self._networks, self._patience)
        self._networks.pop(oldest, None)


@lru_cache(1024)
def _network(address: str) -> str:
    """Return an IPv4 address, or the /64 of an IPv6 address, since a single host may use all of that."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        return str(ip.ipv4_mapped or ipaddress.ip_network((ip, 64), strict=False))
    return str(ip)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach `host`."""
    return ipaddress.ip_address(host).is_loopback if is_address(host) else host.lower() == "localhost"


def is_address(host: str) -> bool:
    """Return whether `host` is an IP address and not a name."""
    with contextlib.suppress(ValueError):
        return bool(ipaddress.ip_address(host))
    return False


def parse_host_header(header: str) -> str:
    """Return the host that a Host header names, without its port and without the brackets of an IPv6 address."""
    return header.partition("]")[0][1:] if header.startswith("[") else header.partition(":")[0]

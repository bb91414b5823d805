"""Host names and addresses: which of them only this machine can reach, and what a Host header names."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def is_address(host: str) -> bool:
    """Return whether `host` is an IP address and not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def parse_host_header(header: str) -> str:
    """Return the host that a Host header names, without its port and without the brackets of an IPv6 address."""
    return header.partition("]")[0][1:] if header.startswith("[") else header.partition(":")[0]

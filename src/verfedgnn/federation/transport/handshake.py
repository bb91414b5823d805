"""One handshake with the coordinator over an open TLS connection, without joining: for checks before the day."""

from __future__ import annotations

import secrets
import ssl
import time
from typing import NamedTuple

import msgpack
from nvflare.fuel.f3.sfm.constants import HandshakeKeys, Types
from nvflare.fuel.f3.sfm.prefix import PREFIX_LEN, Prefix

from verfedgnn.federation.transport.tls_driver import FRAME_MARGIN, INSTANCE, REFUSED, VERSION


class Handshake(NamedTuple):
    """What the coordinator says about itself."""

    skew: float
    """Number of seconds by which its clock is ahead of this one."""
    version: str
    """Its version of verfedgnn."""


def exchange_handshakes(connection: ssl.SSLSocket, name: str) -> Handshake | str:
    """Return the coordinator's handshake, or why the coordinator refuses this party."""
    about = {
        HandshakeKeys.ENDPOINT_NAME: name,
        HandshakeKeys.TIMESTAMP: time.time(),
        INSTANCE: secrets.token_hex(16),
    }
    data = msgpack.packb(about)
    frame = bytearray(PREFIX_LEN) + data
    Prefix(length=len(frame), type=Types.HELLO, stream_id=1).to_buffer(frame, 0)
    sent = time.time()
    connection.sendall(frame)
    prefix = Prefix.from_bytes(_read(connection, PREFIX_LEN))
    received = time.time()
    if not PREFIX_LEN <= prefix.length <= FRAME_MARGIN:
        raise OSError("the coordinator sent a frame of an unexpected size")
    body = _read(connection, prefix.length - PREFIX_LEN)
    if prefix.type == REFUSED:
        return body.decode("utf-8", "replace")
    answer = msgpack.unpackb(body[prefix.header_len :])
    skew = float(answer[HandshakeKeys.TIMESTAMP]) - (sent + received) / 2
    return Handshake(skew, str(answer.get(VERSION, "unknown")))


def _read(connection: ssl.SSLSocket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise OSError("the coordinator closed the connection: it does not know this party's certificate")
        data += part
    return data

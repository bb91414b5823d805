"""One handshake with the coordinator over an open TLS connection, without joining: for checks before the day."""

from __future__ import annotations

import secrets
import ssl
import time

import msgpack
from nvflare.fuel.f3.sfm.constants import HandshakeKeys, Types
from nvflare.fuel.f3.sfm.prefix import PREFIX_LEN, Prefix

from verfedgnn.federation.transport.tls_driver import FRAME_MARGIN, INSTANCE, REFUSED


def exchange_handshakes(connection: ssl.SSLSocket, name: str) -> float | str:
    """Return how many seconds the coordinator's clock is ahead of this one, or why the coordinator refuses this party."""
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
    return float(answer[HandshakeKeys.TIMESTAMP]) - (sent + received) / 2


def _read(connection: ssl.SSLSocket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise OSError("the coordinator closed the connection: it does not know this party's certificate")
        data += part
    return data

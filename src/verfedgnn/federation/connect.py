"""Open the transport of a member: the coordinator listens, a party dials, and each admits only its agreed peers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from verfedgnn.core.errors import ConfigError
from verfedgnn.federation.event_log import log_warning
from verfedgnn.federation.identity import MemberIdentity
from verfedgnn.federation.transport.interface import Transport

_REPEAT_SECONDS = 60.0


def connect(
    identity: MemberIdentity, refused: Callable[[str], None], listen: tuple[str, int] | None = None
) -> Transport:
    """Open the coordinator's listener at `listen`, or a party's connection to the agreed address.

    `refused` is called with the reason whenever a connection fails or a peer is not admitted.
    """
    try:
        from verfedgnn.federation.transport.websocket_transport import WebsocketTransport, tls_context
    except ModuleNotFoundError:
        raise ConfigError("a federation needs websockets: pip install 'verfedgnn[federation]'") from None
    agreement = identity.agreement
    peers = agreement.parties if identity.is_coordinator else (agreement.coordinator,)
    context = tls_context(
        server=identity.is_coordinator,
        authority=agreement.authority,
        certificate=identity.member.certificate,
        key=identity.key_pem(),
    )
    address = listen or (agreement.host, agreement.port)
    try:
        return WebsocketTransport(
            context,
            {peer.fingerprint: peer.name for peer in peers},
            address,
            listen=identity.is_coordinator,
            link_seconds=agreement.timeouts.link,
            refused=refused,
        )
    except OSError as error:
        where = f"{address[0]}:{address[1]}"
        raise ConfigError(
            f"cannot listen on {where}: {error.strerror or error}; free the port or use another --listen"
        ) from None


@contextmanager
def connected(identity: MemberIdentity, listen: tuple[str, int] | None = None) -> Iterator[Transport]:
    """Open the transport, log failed connections, and close the transport at the end."""
    transport = connect(identity, _FailureLog(), listen)
    try:
        yield transport
    finally:
        transport.close()


class _FailureLog:
    """Log lines on failed connections: each reason at once, then at most once a minute with the number of times."""

    def __init__(self) -> None:
        self._logged: dict[str, float] = {}
        self._since: Counter[str] = Counter()

    def __call__(self, reason: str) -> None:
        self._since[reason] += 1
        now = time.monotonic()
        if now - self._logged.get(reason, -_REPEAT_SECONDS) >= _REPEAT_SECONDS:
            self._logged[reason] = now
            log_warning("connection failed", reason=reason, times=self._since.pop(reason))

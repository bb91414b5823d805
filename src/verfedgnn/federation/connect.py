"""From an identity to a transport: who listens, who dials, and whom each lets in."""

from __future__ import annotations

from collections.abc import Callable

from verfedgnn.core.errors import ConfigError
from verfedgnn.federation.identity import MemberIdentity
from verfedgnn.federation.transport.interface import Transport


def connect(
    identity: MemberIdentity, refused: Callable[[str], None], listen: tuple[str, int] | None = None
) -> Transport:
    """The coordinator's listener at `listen`, or a party's connection to the agreed address.

    `refused` is told why, whenever somebody was not let in.
    """
    try:
        from verfedgnn.federation.transport.flare_transport import FlareTransport
        from verfedgnn.federation.transport.tls_driver import PinnedTls, tls_context
    except ModuleNotFoundError:
        raise ConfigError("a federation needs NVIDIA FLARE: pip install 'verfedgnn[federation]'") from None
    agreement = identity.agreement
    peers = agreement.parties if identity.is_coordinator else (agreement.coordinator,)
    context = tls_context(
        server=identity.is_coordinator,
        authority=agreement.authority,
        certificate=identity.member.certificate,
        key=identity.key_file,
    )
    driver = PinnedTls(
        context,
        {peer.fingerprint: peer.name for peer in peers},
        largest=agreement.max_message,
        link_seconds=agreement.timeouts.link,
        refused=refused,
    )
    address = listen or (agreement.host, agreement.port)
    if identity.is_coordinator:
        try:
            driver.bind(address)
        except OSError as error:
            where = f"{address[0]}:{address[1]}"
            raise ConfigError(
                f"cannot listen on {where}: {error.strerror or error}; free it, or use another --listen"
            ) from None
    return FlareTransport(identity.name, driver, address, listen=identity.is_coordinator)

"""What the commands of a running federation share: their options, their log, their connection."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from verfedgnn.cli.completion import among
from verfedgnn.cli.shared_options import RUN, use_threads
from verfedgnn.core.errors import ConfigError
from verfedgnn.federation.key_files import PARTY_KEY

if TYPE_CHECKING:
    from verfedgnn.federation.identity import MemberIdentity
    from verfedgnn.federation.status_server import StatusPublisher
    from verfedgnn.federation.transport.interface import Transport

FEDERATION = "Federation"
"""A panel of the help."""


def _run(*names: str, text: str, **options: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=RUN, **options)


ServiceThreads = Annotated[
    int, _run(text="Processor threads; 0: all. More than 1 pays from about a million ratings.", min=0)
]
Every = Annotated[int, _run(text="Rounds between two checkpoints.", min=1)]
Status = Annotated[
    str | None, _run(text="HOST:PORT of a status page, with /metrics for Prometheus; unset: none.")
]
LogFormat = Annotated[
    str,
    _run(
        "--log",
        text="text or json, a line per event on standard error.",
        autocompletion=among(("text", "json")),
    ),
]
FederationFile = Annotated[
    Path,
    typer.Option(
        "--federation", help="The coordinator's federation.toml, or its folder.", rich_help_panel=FEDERATION
    ),
]
KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--key",
        help=f"Your private key; unset: {PARTY_KEY} beside the federation file.",
        rich_help_panel=FEDERATION,
    ),
]


def begin(log: str, quiet: bool, threads: int) -> None:
    """Logs and threads as asked for."""
    from verfedgnn.federation.event_log import configure_log

    if log not in ("text", "json"):
        raise ConfigError(f"--log takes text or json, not '{log}'")
    configure_log(as_json=log == "json", quiet=quiet)
    use_threads(threads)


def member(federation: Path, key: Path | None) -> MemberIdentity:
    """The party whose key this is."""
    from verfedgnn.federation.agreement import load_agreement
    from verfedgnn.federation.identity import MemberIdentity

    folder = federation if federation.is_dir() else federation.parent
    identity = MemberIdentity(load_agreement(federation), key or folder / PARTY_KEY)
    if identity.is_coordinator:
        raise ConfigError(
            "this is the coordinator's key; a party has its own, from `verfedgnn federation join-request`"
        )
    return identity


def make_watch(folder: Path, status: str | None, tensorboard: Path | None = None) -> StatusPublisher:
    """Status on disk, and where asked for over HTTP and for TensorBoard."""
    from verfedgnn.federation.status_server import StatusPublisher

    return StatusPublisher(folder, port=address(status, "--status"), tensorboard=tensorboard)


def address(text: str | None, option: str) -> tuple[str, int] | None:
    """HOST:PORT as a pair."""
    if text is None:
        return None
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{option} takes HOST:PORT, not '{text}'; for example {option} 127.0.0.1:9100")
    return host.strip("[]"), int(port)


class _Complaints:
    """Why a connection did not come about, in the log: at once, then a reason at most once a minute, with how often."""

    def __init__(self) -> None:
        self._told: dict[str, float] = {}
        self._since: Counter[str] = Counter()

    def __call__(self, reason: str) -> None:
        from verfedgnn.federation.event_log import log_warning

        self._since[reason] += 1
        if time.monotonic() - self._told.get(reason, -60.0) >= 60:
            self._told[reason] = time.monotonic()
            log_warning("no connection", reason=reason, times=self._since.pop(reason))


@contextmanager
def connected(identity: MemberIdentity, listen: tuple[str, int] | None = None) -> Iterator[Transport]:
    """The transport, closed in the end whatever happens."""
    from verfedgnn.federation.connect import connect

    transport = connect(identity, _Complaints(), listen)
    try:
        yield transport
    finally:
        transport.close()

"""What the commands of a running federation share: their options, their stop signal, their connection."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from verfedgnn.cli.federation import PARTY_KEY
from verfedgnn.errors import ConfigError
from verfedgnn.federation.agreement import FILE, load_agreement
from verfedgnn.federation.connect import connect
from verfedgnn.federation.identity import Identity
from verfedgnn.federation.log import set_up, warn
from verfedgnn.federation.watch import Watch
from verfedgnn.runtime.transport import Transport

DATA, FEDERATION, RUN = "Data", "Federation", "Run"
"""Panels of the help."""


def _run(*names: str, text: str, min: int | None = None) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=RUN, min=min)


Threads = Annotated[int, _run(text="Processor threads; 0: all. More than 1 pays from about a million ratings.", min=0)]
Device = Annotated[str, _run(text="cpu, cuda or cuda:N.")]
Every = Annotated[int, _run(text="Rounds between two checkpoints.", min=1)]
Status = Annotated[str | None, _run(text="HOST:PORT of a status page, with /metrics for Prometheus; unset: none.")]
LogFormat = Annotated[str, _run("--log", text="text or json, a line per event on standard error.")]
Quiet = Annotated[bool, _run("--quiet", text="Only warnings.")]
FederationFile = Annotated[
    Path, typer.Option("--federation", help=f"The coordinator's {FILE}, or its folder.", rich_help_panel=FEDERATION)
]
KeyFile = Annotated[
    Path | None,
    typer.Option("--key", help=f"Your private key; unset: {PARTY_KEY} beside the federation file.", rich_help_panel=FEDERATION),
]


def begin(log: str, quiet: bool, threads: int) -> None:
    """Logs and threads as asked for."""
    if log not in ("text", "json"):
        raise ConfigError(f"--log takes text or json, not '{log}'")
    set_up(as_json=log == "json", quiet=quiet)
    if threads:
        torch.set_num_threads(threads)


def member(federation: Path, key: Path | None) -> Identity:
    """The party whose key this is."""
    folder = federation if federation.is_dir() else federation.parent
    identity = Identity(load_agreement(federation), key or folder / PARTY_KEY)
    if identity.is_coordinator:
        raise ConfigError("this is the coordinator's key; a party has its own, from `verfedgnn federation join-request`")
    return identity


def make_watch(folder: Path, status: str | None, tensorboard: Path | None = None) -> Watch:
    """Status on disk, and where asked for over HTTP and for TensorBoard."""
    return Watch(folder, port=address(status, "--status"), tensorboard=tensorboard)


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
        self._since[reason] += 1
        if time.monotonic() - self._told.get(reason, -60.0) >= 60:
            self._told[reason] = time.monotonic()
            warn("no connection", reason=reason, times=self._since.pop(reason))


@contextmanager
def connected(identity: Identity, listen: tuple[str, int] | None = None) -> Iterator[Transport]:
    """The transport, closed in the end whatever happens."""
    transport = connect(identity, _Complaints(), listen)
    try:
        yield transport
    finally:
        transport.close()


@contextmanager
def stopping() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C or a service manager asked to stop; the second time stops at once."""
    asked = False

    def ask(*_: object) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

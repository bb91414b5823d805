"""Options and set-up shared by the commands `party`, `align` and `coordinator`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from verfedgnn.cli.completion import among
from verfedgnn.cli.shared_options import RUN, use_threads
from verfedgnn.core.errors import ConfigError
from verfedgnn.core.hosts import is_loopback
from verfedgnn.federation import PARTY_KEY

if TYPE_CHECKING:
    from verfedgnn.federation.status import StatusPublisher
    from verfedgnn.runs.tracking.tracker import TrackedRun

FEDERATION = "Federation"
"""Help panel of the options that name the federation."""


def _run(*names: str, text: str, **options: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=RUN, **options)


ServiceThreads = Annotated[
    int, _run(text="CPU threads; 0 means all cores. More than 1 helps from about a million ratings.", min=0)
]
Every = Annotated[int, _run(text="Number of rounds between two checkpoints.", min=1)]
Status = Annotated[
    str | None,
    _run(text="Serve a status page, with /metrics for Prometheus, at a PORT of 127.0.0.1 or at HOST:PORT."),
]
LogFormat = Annotated[
    str,
    _run(
        "--log",
        text="Log format: text or json, one line per event on standard error.",
        autocompletion=among(("text", "json")),
    ),
]
FederationFile = Annotated[
    Path,
    typer.Option(
        "--federation",
        help="federation.toml from the coordinator, or the folder that holds it.",
        rich_help_panel=FEDERATION,
    ),
]
KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--key",
        help=f"Your private key. Default: {PARTY_KEY} beside federation.toml.",
        rich_help_panel=FEDERATION,
    ),
]


def prepare_service(log: str, quiet: bool, threads: int) -> None:
    """Configure the log and the number of threads of a service."""
    from verfedgnn.federation.event_log import configure_log

    if log not in ("text", "json"):
        raise ConfigError(f"--log takes text or json, not '{log}'")
    configure_log(as_json=log == "json", quiet=quiet)
    use_threads(threads)


def make_publisher(folder: Path, status: str | None, track: TrackedRun | None = None) -> StatusPublisher:
    """Return the publisher of the status: on disk and, where requested, over HTTP and in a tracking tool."""
    from verfedgnn.federation.event_log import log_warning
    from verfedgnn.federation.status import StatusPublisher

    if status is not None and status.isdigit():
        status = f"127.0.0.1:{status}"
    address = parse_address(status, "--status")
    if address is not None and not is_loopback(address[0]):
        log_warning("the status page has no password, and other machines can reach it", address=status)
    return StatusPublisher(folder, port=address, track=track)


def parse_address(text: str | None, option: str) -> tuple[str, int] | None:
    """Return the host and port in HOST:PORT, or None if the option is not given."""
    if text is None:
        return None
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{option} takes HOST:PORT, not '{text}'; for example {option} 127.0.0.1:9100")
    return host.strip("[]"), int(port)

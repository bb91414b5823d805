"""One server process for a run, on a socket that is already listening."""

from __future__ import annotations

import gc
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SWITCH_INTERVAL = 0.0005
"""Seconds after which the event loop yields the interpreter to the scoring thread. Python's default of 0.005 s adds tens of
milliseconds per batch under load."""
KEEP_ALIVE = 75
"""Seconds after which an idle connection is closed. Clients and proxies usually close theirs earlier, so that no connection is
closed while a request is being sent."""


@dataclass(frozen=True)
class ServeOptions:
    """The run to serve and how to serve it."""

    run: Path
    party: str | None
    """Name of the only party to serve; None serves all."""
    key: str | None
    """API key that requests must carry; None serves this machine only."""
    approximate: bool
    """Whether large catalogues get an approximate index."""
    threads: int
    """Threads that compute scores; 0 uses all cores."""


def serve(options: ServeOptions, listener: socket.socket, ready: Callable[[], None]) -> None:
    """Serve until SIGINT or SIGTERM; uvicorn then finishes open requests and raises the signal again."""
    import torch
    import uvicorn

    from verfedgnn.runs.run import Run
    from verfedgnn.serving.catalogue import Catalogue
    from verfedgnn.serving.http.app import make_app

    if options.threads:
        torch.set_num_threads(options.threads)
    run = Run.load(options.run)
    catalogue = Catalogue(run, options.run.resolve().name, options.party, approximate=options.approximate)
    app = make_app(catalogue, key=options.key)
    sys.setswitchinterval(SWITCH_INTERVAL)
    gc.collect()
    gc.freeze()  # the run stays in memory: collecting it again and again would delay requests
    ready()
    # There is no access log, because requests contain user ids.
    config = uvicorn.Config(
        app,
        access_log=False,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=5,
        timeout_keep_alive=KEEP_ALIVE,
    )
    uvicorn.Server(config).run([listener])

"""One process that serves a run at a socket that listens already."""

from __future__ import annotations

import gc
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SWITCH = 0.0005
"""Seconds after which the event loop hands the interpreter to the scores' thread; Python's own 0.005 s would add up to tens of
milliseconds a batch under load."""
KEEP_ALIVE = 75
"""Seconds after which an idle connection is closed: longer than clients and proxies usually keep one, so that it is they who
close it and none is closed in the moment in which a request is sent."""


@dataclass(frozen=True)
class Served:
    """What is served, and to whom."""

    run: Path
    party: str | None
    key: str | None
    approximate: bool
    threads: int
    """Of the scores; 0: all."""


def serve(served: Served, listener: socket.socket, ready: Callable[[], None]) -> None:
    """Serve until SIGINT or SIGTERM, after which uvicorn finishes what is under way and sends itself the signal once more."""
    import torch
    import uvicorn

    from verfedgnn.runs.run import Run
    from verfedgnn.serving.catalogue import Catalogue
    from verfedgnn.serving.http.app import make_app

    if served.threads:
        torch.set_num_threads(served.threads)
    run = Run.load(served.run)
    app = make_app(
        Catalogue(run, served.run.resolve().name, served.party, approximate=served.approximate),
        key=served.key,
    )
    sys.setswitchinterval(SWITCH)
    gc.collect()
    gc.freeze()  # what is loaded stays: looking through it again would hold up requests
    ready()
    # Requests name users, so that none is logged.
    config = uvicorn.Config(
        app,
        access_log=False,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=5,
        timeout_keep_alive=KEEP_ALIVE,
    )
    uvicorn.Server(config).run([listener])

"""A run served as users see it: over HTTP, from a thread of the test."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from fastapi import FastAPI

import verfedgnn as vf
from verfedgnn.serving.server import make_server


@contextmanager
def serving(app: FastAPI, send_buffer: int = 0) -> Iterator[str]:
    """The address of the running application; `send_buffer` bounds what the system holds for a client, in bytes."""
    listener = socket.create_server(("127.0.0.1", 0))
    if send_buffer:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    server = make_server(app)
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def as_alone(run: vf.Run) -> vf.Run:
    """Return the run that serves what each party has alone."""
    assert run.alone is not None
    assert run.lists is not None
    assert run.lists.alone is not None
    return replace(run, models=run.alone, lists=replace(run.lists, models=run.lists.alone))


def without_alone(run: vf.Run) -> vf.Run:
    """Return the run without the models of the parties alone."""
    assert run.lists is not None
    return replace(run, alone=None, lists=replace(run.lists, alone=None))

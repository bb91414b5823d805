"""Several server processes on one listening socket: each loads the run and accepts connections, and all stop together."""

from __future__ import annotations

import os
import signal
import socket
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from tempfile import TemporaryDirectory

from verfedgnn.core.errors import ConfigError, PluginWarning, VerFedGNNError
from verfedgnn.runs.run import read_run_config
from verfedgnn.serving.http.server_process import ServeOptions, serve

STOP_TIMEOUT = 10
"""Seconds that a worker has to stop; uvicorn gives open requests 5."""


def serve_with_workers(
    count: int, options: ServeOptions, listener: socket.socket, ready: Callable[[], None]
) -> None:
    """Serve with `count` processes until `KeyboardInterrupt`; raise `ConfigError` if a worker exits."""
    read_run_config(options.run)  # issues warnings about the run once, for all workers
    with _share_metrics():
        workers, pipes = _start_workers(count, options, listener)
        # A shell starts background jobs (`&`) with SIGINT ignored; without this they could not be interrupted.
        previous = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            for number, pipe in enumerate(pipes):
                try:
                    error = pipe.recv()
                except EOFError:
                    raise _describe_exit(number, workers) from None
                if error is not None:
                    raise error
            ready()
            ended = wait([worker.sentinel for worker in workers])
            number = next(number for number, worker in enumerate(workers) if worker.sentinel in ended)
            raise _describe_exit(number, workers)
        finally:
            _stop_workers(workers)
            signal.signal(signal.SIGINT, previous)


@contextmanager
def _share_metrics() -> Iterator[None]:
    """Give the workers a folder for their metrics, so that any of them can add up all of them for /metrics."""
    from verfedgnn.serving.http.server_metrics import SHARED_FOLDER

    with TemporaryDirectory(prefix="verfedgnn-metrics-") as folder:
        os.environ[SHARED_FOLDER] = folder
        try:
            yield
        finally:
            del os.environ[SHARED_FOLDER]


def _start_workers(
    count: int, options: ServeOptions, listener: socket.socket
) -> tuple[list[SpawnProcess], list[Connection]]:
    """Start processes that ignore SIGINT until they serve: a terminal sends it to all, but the parent stops them."""
    context = get_context("spawn")
    workers: list[SpawnProcess] = []
    pipes: list[Connection] = []
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        for _ in range(count):
            pipe, other = context.Pipe(duplex=False)
            worker = context.Process(target=_run_worker, args=(options, listener, other), daemon=True)
            worker.start()
            other.close()
            workers.append(worker)
            pipes.append(pipe)
    finally:
        signal.signal(signal.SIGINT, previous)
    return workers, pipes


def _run_worker(options: ServeOptions, listener: socket.socket, pipe: Connection) -> None:
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    warnings.simplefilter("ignore", PluginWarning)
    try:
        serve(options, listener, lambda: pipe.send(None))
    except VerFedGNNError as error:
        pipe.send(error)


def _exit_with_parent() -> None:
    """Stop this worker when the parent is gone: a parent that was killed cannot stop it."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def _describe_exit(number: int, workers: Sequence[SpawnProcess]) -> VerFedGNNError:
    workers[number].join()
    code = workers[number].exitcode or 0
    how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
    return ConfigError(
        f"worker {number + 1} of {len(workers)} {how}, so the other workers were stopped. "
        "Start the server again, with fewer --workers if memory is short."
    )


def _stop_workers(workers: Sequence[SpawnProcess]) -> None:
    for worker in workers:
        worker.terminate()
    for worker in workers:
        worker.join(STOP_TIMEOUT)
        worker.kill()
        worker.join()

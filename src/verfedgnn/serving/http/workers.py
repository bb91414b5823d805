"""Several processes at one listening socket: each loads the run and answers whichever connections it takes; they end together."""

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
from verfedgnn.serving.http.server_process import Served, serve

LONGEST_STOP = 10
"""Seconds in which a worker has to end when it is asked to; uvicorn gives requests under way 5."""


def serve_by(count: int, served: Served, listener: socket.socket, ready: Callable[[], None]) -> None:
    """Serve by so many processes until interrupted (`KeyboardInterrupt`), or until one of them ends by itself, an error."""
    read_run_config(served.run)  # warns, if need be, for all of them
    with _common_figures():
        workers, lines = _start(count, served, listener)
        before = signal.signal(
            signal.SIGINT, signal.default_int_handler
        )  # also where a shell started us deaf, by `&`
        try:
            for number, line in enumerate(lines):
                try:
                    error = line.recv()
                except EOFError:
                    raise _ended(number, workers) from None
                if error is not None:
                    raise error
            ready()
            ended = wait([worker.sentinel for worker in workers])
            raise _ended(
                next(number for number, worker in enumerate(workers) if worker.sentinel in ended), workers
            )
        finally:
            _stop(workers)
            signal.signal(signal.SIGINT, before)


@contextmanager
def _common_figures() -> Iterator[None]:
    """A folder in which the workers' figures meet: whichever is asked for /metrics adds them up."""
    from verfedgnn.serving.http.server_metrics import SHARED

    with TemporaryDirectory(prefix="verfedgnn-figures-") as folder:
        os.environ[SHARED] = folder
        try:
            yield
        finally:
            del os.environ[SHARED]


def _start(
    count: int, served: Served, listener: socket.socket
) -> tuple[list[SpawnProcess], list[Connection]]:
    """Processes that do not hear Ctrl-C before they serve: a terminal sends it to all, and it is for the parent to stop them."""
    context, workers, lines = get_context("spawn"), [], []
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        for _ in range(count):
            line, other = context.Pipe(duplex=False)
            worker = context.Process(target=_work, args=(served, listener, other), daemon=True)
            worker.start()
            other.close()
            workers.append(worker)
            lines.append(line)
    finally:
        signal.signal(signal.SIGINT, before)
    return workers, lines


def _work(served: Served, listener: socket.socket, line: Connection) -> None:
    threading.Thread(target=_leave_with_the_parent, daemon=True).start()
    warnings.simplefilter("ignore", PluginWarning)
    try:
        serve(served, listener, lambda: line.send(None))
    except VerFedGNNError as error:
        line.send(error)


def _leave_with_the_parent() -> None:
    """A parent that was killed can stop nobody any more."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def _ended(number: int, workers: Sequence[SpawnProcess]) -> VerFedGNNError:
    workers[number].join()
    code = workers[number].exitcode or 0
    how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
    return ConfigError(
        f"worker {number + 1} of {len(workers)} {how}, and the others were stopped with it; "
        "start again, with fewer --workers where memory is short"
    )


def _stop(workers: Sequence[SpawnProcess]) -> None:
    for worker in workers:
        worker.terminate()
    for worker in workers:
        worker.join(LONGEST_STOP)
        worker.kill()
        worker.join()

"""The processes of a party or coordinator with several workers: started on one machine, or by torchrun on several."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from verfedgnn.core.errors import ConfigError
from verfedgnn.core.worker_group import LostWorkerError, WorkerGroup
from verfedgnn.federation.event_log import log_event
from verfedgnn.protocol.round.worker_orders import Order, tell_all

RANK = "RANK"
SIZE = "WORLD_SIZE"
"""Environment variables of torchrun, which processes started here have, too."""
MEETING = "VERFEDGNN_MEETING"
"""The file through which workers of one machine find each other."""
END_SECONDS = 10
"""How long to wait for workers to end."""


def worker_rank() -> int:
    """Return the number of this process among the workers."""
    return int(os.environ.get(RANK, "0"))


def count_workers(wanted: int) -> int:
    """Return the number of workers: as torchrun started them, or as `wanted` on this machine."""
    started = int(os.environ.get(SIZE, "1"))
    if wanted > 1 and started not in (1, wanted):
        raise ConfigError(
            f"--workers {wanted} does not fit the {started} processes of torchrun; leave --workers out"
        )
    return max(wanted, started)


def join_workers() -> WorkerGroup:
    """Connect this process, one of several, with the first worker."""
    meeting = os.environ.get(MEETING)
    return WorkerGroup.connect(
        worker_rank(), int(os.environ[SIZE]), None if meeting is None else Path(meeting)
    )


def work_for_first(work: Callable[[WorkerGroup], None]) -> None:
    """Do the `work` of one of the other workers until the first one ends. A Ctrl-C is for the first worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    workers = join_workers()
    try:
        work(workers)
    except LostWorkerError:
        log_event("another worker has ended, so this one ends, too", worker=workers.rank)
    workers.close()


class WorkerProcesses:
    """All workers of a party or coordinator, for the first of them. `group` starts the others or waits for those of torchrun."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._group: WorkerGroup | None = None
        self._processes: list[subprocess.Popen[bytes]] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> WorkerProcesses:
        return self

    @property
    def group(self) -> WorkerGroup | None:
        """The connected workers; None if there is one process."""
        if self._group is None and self.count > 1:
            if SIZE not in os.environ:
                self._start()
            self._group = join_workers()
        return self._group

    def _start(self) -> None:
        """Start the other workers with the command of this process, on the loopback interface."""
        self._folder = tempfile.TemporaryDirectory()
        os.environ[MEETING] = str(Path(self._folder.name) / "workers")
        os.environ[SIZE] = str(self.count)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        for rank in range(1, self.count):
            command = [sys.executable, "-m", "verfedgnn", *sys.argv[1:]]
            self._processes.append(subprocess.Popen(command, env=os.environ | {RANK: str(rank)}))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the workers; they also end when the first one does."""
        if self._group is not None:
            try:
                if error is None:
                    tell_all(self._group, Order.END)
            except LostWorkerError:
                pass  # they have ended
            self._group.close()
        for process in self._processes:
            try:
                process.wait(END_SECONDS if error is None else 1)
            except subprocess.TimeoutExpired:
                process.terminate()
                process.wait()
        if self._folder is not None:
            self._folder.cleanup()

"""Measurements one after the other, each in a process of its own, with a record of each in `records/NAME.json`.

A fresh process keeps a measurement from inheriting the peak memory of the one before it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from verfedgnn.core.errors import Interrupted
from verfedgnn.core.files import write_bytes, writing
from verfedgnn.research.bench.bench_suite import Task
from verfedgnn.research.bench.measure import machine
from verfedgnn.research.experiments.job_queue import QueueProgress, Record, run_queue
from verfedgnn.research.experiments.training_cell import commit

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


class TaskRecords:
    """The records of a bench, one JSON file for each task."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "records"

    def get(self, task: Task) -> Record | None:
        """Return the record of a task, also of a failed one; None if it was measured with other arguments or not at all."""
        path = self.folder / f"{task.name}.json"
        try:
            record: Record = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError):
            return None
        return record if {key: record.get(key) for key in task.about} == task.about else None

    def finished(self, task: Task) -> Record | None:
        """Return the record of a task that succeeded, or None if it has to be measured."""
        record = self.get(task)
        return None if record is None or "failed" in record else record

    def put(self, task: Task, record: Mapping[str, Any]) -> None:
        """Write the record of a task."""
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_bytes(
                self.folder / f"{task.name}.json",
                (json.dumps(record, indent=1, allow_nan=False) + "\n").encode(),
            )


class TaskRunner:
    """Runs a task in a child process that can be terminated from another thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: subprocess.Popen[str] | None = None
        self._halted = False

    def measure(self, task: Task, command: str, memory: float) -> Record:
        """Return the record of a task; a record with `failed` says why there are no figures."""
        if task.needs > memory:
            reason = f"needs about {task.needs:.0f} GB of memory, but only {memory:.0f} GB may be used"
            return {"name": task.name, **task.about, "failed": reason}
        began = time.time()
        about = {"command": command, "commit": commit(), "machine": machine()}
        status, output, errors = self._run_child(task)
        if status in (130, -signal.SIGINT, -signal.SIGTERM):
            raise Interrupted("the measurement was interrupted")
        record = {"name": task.name, **task.about, **about, "took": round(time.time() - began, 1)}
        try:
            return {**record, "figures": json.loads(output.splitlines()[-1])}
        except (IndexError, ValueError):
            lines = errors.strip().splitlines()
            return {**record, "failed": lines[-1] if lines else f"ended with status {status}"}

    def halt(self) -> None:
        """Terminate the running child and start no other."""
        with self._lock:
            self._halted = True
            if self._child is not None:
                self._child.terminate()

    def _run_child(self, task: Task) -> tuple[int, str, str]:
        threads = {name: str(task.threads) for name in THREAD_VARIABLES}
        with self._lock:
            if self._halted:
                raise Interrupted("the measurement was interrupted")
            child = self._child = subprocess.Popen(
                [sys.executable, "-m", "verfedgnn.research.bench.bench_child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, **threads},
            )
        try:
            output, errors = child.communicate(json.dumps(task.about))
        finally:
            with self._lock:
                self._child = None
        return child.returncode, output, errors


class _TaskWorkers:
    """Tasks under way in one thread."""

    def __init__(self, runner: TaskRunner, futures: Sequence[Future[Record]]) -> None:
        self.futures = futures
        self.halt = runner.halt

    def shares(self) -> Sequence[float]:
        return [float(future.done()) for future in self.futures]


def run_tasks(
    tasks: Sequence[Task],
    folder: Path,
    *,
    command: Callable[[Task], str],
    memory: Callable[[], float],
    watch: Callable[[QueueProgress], None] | None = None,
) -> None:
    """Measure all tasks without a record in `folder`; `command` is what a record names as its origin.

    Tasks that need more than `memory()` GB at their turn get a record that says so.
    """

    @contextmanager
    def start(missing: list[Task]) -> Iterator[_TaskWorkers]:
        runner = TaskRunner()

        def measure(task: Task) -> Record:
            return runner.measure(task, command(task), memory())

        with ThreadPoolExecutor(1) as pool:
            try:
                yield _TaskWorkers(runner, [pool.submit(measure, task) for task in missing])
            finally:
                runner.halt()
                pool.shutdown(cancel_futures=True)

    run_queue(
        tasks,
        TaskRecords(folder),
        start,
        noun="measurements",
        describe=lambda task, record: f"{task.name}: {record.get('failed', 'measured')}",
        watch=watch,
    )

"""Trainings in parallel processes. Each finished record is on disk at once, so that an interrupted experiment resumes.

Processes rather than threads, because a round is bound by one core. On a GPU several processes share it, at full speed with
NVIDIA's multi-process service.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait as wait_for
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from verfedgnn.core.errors import Interrupted, RunError
from verfedgnn.training.loop import usable_device
from verfedgnn.training.progress import Progress
from verfedgnn_research.baselines import Where
from verfedgnn_research.experiments.training_cell import Cell, Record, commit

MEMORY = 2 << 30
"""GPU memory that is set aside for each process."""


class Job(Protocol):
    """Something to compute in a process of its own."""

    @property
    def name(self) -> str:
        """Name of the job in progress lines and errors."""
        ...

    def run(self, where: Where) -> Record:
        """Compute and return the record."""
        ...


AnyJob = TypeVar("AnyJob", bound=Job)
StoredJob = TypeVar("StoredJob", bound=Job, contravariant=True)


class RecordStore(Protocol[StoredJob]):
    """Records on disk, found by job."""

    def finished(self, job: StoredJob) -> Record | None:
        """Return the record of a job, or None if the job has to be run."""
        ...

    def put(self, job: StoredJob, record: Record) -> None:
        """Keep the record of a job."""
        ...


@dataclass(frozen=True)
class QueueProgress:
    """State of a queue, for progress bars."""

    done: int
    """Number of jobs whose records are on disk."""
    total: int
    seconds_left: float | None
    last: str
    """Name and result of the job that finished last."""


def run_queue(
    jobs: Sequence[AnyJob],
    records: RecordStore[AnyJob],
    *,
    processes: int = 0,
    device: str = "cpu",
    seconds: Callable[[AnyJob], float] = lambda job: 1.0,
    watch: Callable[[QueueProgress], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Run all jobs without a record, longest first, and keep each record as soon as it is there.

    Jobs run in `processes` processes at a time; 0 means as many as cores or GPU memory allow. `seconds` estimates how long a job
    takes. A failed job does not end the others; it is reported as `RunError` at the end.
    """
    fitting = _fitting_processes(usable_device(device))
    missing = [job for job in jobs if records.finished(job) is None]
    if not missing:
        return
    missing.sort(key=seconds, reverse=True)
    weights = [seconds(job) for job in missing]
    failed: list[str] = []
    done = len(jobs) - len(missing)
    last = ""
    began = time.monotonic()
    halted = False
    killed = False
    try:
        with _start_workers(min(processes or fitting, len(missing)), device, missing) as (futures, shared):
            running = dict(zip(futures, missing, strict=True))
            while running:
                finished, _ = wait(running, timeout=0.5, return_when=FIRST_COMPLETED)
                for future in finished:
                    job = running.pop(future)
                    try:
                        record = future.result()
                    except Interrupted:
                        halted = True
                        continue
                    except BrokenProcessPool:
                        killed = True
                        continue
                    except Exception as error:  # one failure must not end the others
                        failed.append(f"{job.name}: {error}")
                        last = failed[-1]
                        continue
                    records.put(job, record)
                    done += 1
                    last = _describe(job, record)
                if killed:
                    raise RunError(
                        f"a process was killed, probably for lack of memory; {done} of {len(jobs)} trainings are done. "
                        "Run the same command with fewer --jobs to resume"
                    )
                if watch is not None:
                    left = _seconds_left(weights, list(shared)[:-1], time.monotonic() - began)
                    watch(QueueProgress(done, len(jobs), left, last))
                if running and (halted or stop()):
                    halted = True
                    shared[-1] = 1.0
                    running = {future: job for future, job in running.items() if not future.cancel()}
    except KeyboardInterrupt:
        halted = True
    if halted and done + len(failed) < len(jobs):
        raise Interrupted(f"stopped with {done} of {len(jobs)} trainings done")
    if failed:
        raise RunError(
            f"{len(failed)} of {len(jobs)} trainings failed, the others are kept; the first: {failed[0]}"
        )


def _seconds_left(weights: Sequence[float], shares: Sequence[float], spent: float) -> float | None:
    """Estimate the seconds left; None while too little is known."""
    share = sum(weight * part for weight, part in zip(weights, shares, strict=True)) / max(sum(weights), 1e-9)
    return spent * (1 - share) / share if share > 0.01 and spent > 5 else None


def _describe(job: Job, record: Record) -> str:
    rmse = record.get("ratings", record)["test"]["rmse"]
    spent = record["cpu_seconds"]
    return f"{job.name}: {'' if rmse is None else f'RMSE {rmse:.4f}, '}{spent:.0f} s of CPU"


class CellRecords:
    """The finished cells of an experiment, one line each in `cells.jsonl`; those of other commits do not count."""

    def __init__(self, folder: Path, *, newest: bool = False) -> None:
        """Read the records of this commit; with `newest`, of the commit of the last record."""
        self.path = folder / "cells.jsonl"
        self.found: dict[tuple[str, str | None], Record] = {}
        """Records by the key of their cell and the commit."""
        self.code = commit()
        self._keys: dict[Cell, str] = {}
        text = self.path.read_text("utf-8") if self.path.is_file() else ""
        for line in text.splitlines():
            try:
                record = json.loads(line)
                self.found[record["key"], record["commit"]] = record
            except (ValueError, KeyError, TypeError):
                continue  # the line that was being written when the machine went down
        self.torn = bool(text) and not text.endswith("\n")
        if newest and self.found:
            _, self.code = list(self.found)[-1]

    def key(self, cell: Cell) -> tuple[str, str | None]:
        """Return the key of a cell, computed once, and the commit."""
        if cell not in self._keys:
            self._keys[cell] = cell.key()
        return self._keys[cell], self.code

    def finished(self, cell: Cell) -> Record | None:
        """Return the record of a cell, or None if it is not trained yet."""
        return self.found.get(self.key(cell))

    def put(self, cell: Cell, record: Record) -> None:
        """Append the record of a finished cell."""
        self.found[record["key"], record["commit"]] = record
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write("\n" * self.torn + json.dumps(record, allow_nan=False) + "\n")
            self.torn = False
        except OSError as error:
            raise RunError(
                f"cannot write {self.path} ({error.strerror or error}); choose another --out"
            ) from None


def run_cells(
    cells: Sequence[Cell],
    folder: Path,
    *,
    jobs: int = 0,
    device: str = "cpu",
    watch: Callable[[QueueProgress], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> dict[Cell, Record]:
    """Return the records of all cells, training those without a record in `folder`.

    Trainings run in `jobs` processes at a time; 0 means as many as cores or GPU memory allow.
    """
    records = CellRecords(folder)
    wanted = list(dict.fromkeys(cells))
    run_queue(
        list({records.key(cell): cell for cell in wanted}.values()),
        records,
        processes=jobs,
        device=device,
        seconds=_guess_seconds(records),
        watch=watch,
        stop=stop,
    )
    return {cell: records.found[records.key(cell)] for cell in wanted}


def finished_cells(cells: Sequence[Cell], folder: Path) -> dict[Cell, Record]:
    """Return the records of those cells that are finished in `folder`, at the commit of the last of them."""
    records = CellRecords(folder, newest=True)
    return {cell: record for cell in dict.fromkeys(cells) if (record := records.finished(cell)) is not None}


SLOW = ("ials", "pipeline", "lightgcn", "autorec", "best", "emcdr")
"""Starts of the names of methods that take long."""


def _guess_seconds(records: CellRecords) -> Callable[[Cell], float]:
    """Return a rough guess of how long a cell takes. It decides only the order of trainings and the time left."""

    def alike(cell: Cell | Record) -> tuple[Any, ...]:
        known = cell if isinstance(cell, dict) else {**vars(cell), "settings": dict(cell.settings)}
        return (*known["data"], known["method"], known["gnn"], *sorted(map(str, known["settings"].items())))

    seconds: dict[tuple[Any, ...], float] = {
        alike(record): max(record["seconds"], 0.1) for record in records.found.values()
    }

    def guess(cell: Cell) -> float:
        settings = dict(cell.settings)
        rough = {"gcn": 20.0, "gat": 40.0}.get(cell.gnn, 30.0) * (10 if "ml-1m" in cell.data[0] else 1)
        rough *= float(settings.get("training.epochs", 50)) / 50 * (4 if cell.method.startswith(SLOW) else 1)
        return seconds.get(alike(cell), rough)

    return guess


def _fitting_processes(device: torch.device) -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if device.type != "cuda":
        return cores
    free, _ = torch.cuda.mem_get_info(device)
    return max(1, min(cores, free // MEMORY))


# -- one worker ------------------------------------------------------------------------------------------------------------

_shared: Any = None
"""In a worker: the finished share of each job by position, then 1 if all shall stop.

It has no lock, since a worker that is killed while it holds one would stop the others for ever.
"""


def _begin_worker(shared: Any, code: str | None) -> None:
    global _shared
    _shared = shared
    if code is not None:
        os.environ["VERFEDGNN_COMMIT"] = code  # also if there is another one meanwhile
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent says when to stop
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    """Exit when the parent process is gone: a killed parent cannot ask for a stop."""
    parent = parent_process()
    if parent is not None:
        wait_for([parent.sentinel])
        os._exit(1)


def _run_job(job: Job, place: int, device: str) -> Record:
    shared = _shared

    def watch(event: Progress) -> None:
        shared[place] = max(shared[place], min(0.99, event.round / event.rounds))

    def stops() -> bool:
        return bool(shared[-1])

    if stops():
        raise Interrupted("stopped")
    began = time.process_time()
    record = job.run(Where(torch.device(device), watch, stops))
    shared[place] = 1.0
    return {"cpu_seconds": round(time.process_time() - began, 1), **record}


@contextmanager
def _ignored_signals() -> Iterator[None]:
    """Make processes that start meanwhile ignore SIGINT and SIGTERM from their first moment, before their imports."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _start_workers(
    processes: int, device: str, jobs: Sequence[Job]
) -> Iterator[tuple[list[Future[Record]], Any]]:
    """Run all jobs in processes of one core; return their futures, and what `_shared` is to them.

    Nothing is left running at the end, also after an error.
    """
    context = get_context("spawn")
    shared = context.Array("d", len(jobs) + 1, lock=False)
    with ProcessPoolExecutor(processes, context, _begin_worker, (shared, commit())) as pool:
        with _ignored_signals():
            futures = [pool.submit(_run_job, job, place, device) for place, job in enumerate(jobs)]
        try:
            yield futures, shared
        finally:
            shared[-1] = 1.0
            pool.shutdown(cancel_futures=True)

"""Trainings in parallel processes, with a record of each finished one in `cells.jsonl`.

Processes rather than threads, because a round is bound by one core. On a GPU several processes share it, at full speed with
NVIDIA's multi-process service.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait as wait_for
from pathlib import Path
from typing import Any

import torch

from verfedgnn.core.errors import Interrupted, RunError
from verfedgnn.training.loop import usable_device
from verfedgnn.training.progress import Progress
from verfedgnn_research.baselines import Where
from verfedgnn_research.experiments.job_queue import QueueProgress, Record, run_queue
from verfedgnn_research.experiments.training_cell import Cell

MEMORY = 2 << 30
"""GPU memory that is set aside for each process."""


class CellRecords:
    """The finished cells of an experiment, one line each in `cells.jsonl`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "cells.jsonl"
        self.found: dict[str, Record] = {}
        self._keys: dict[Cell, str] = {}
        text = self.path.read_text("utf-8") if self.path.is_file() else ""
        for line in text.splitlines():
            try:
                record = json.loads(line)
                self.found[record["key"]] = record
            except (ValueError, KeyError, TypeError):
                continue  # the line that was being written when the machine went down
        self.torn = bool(text) and not text.endswith("\n")

    def key(self, cell: Cell) -> str:
        """Return the key of a cell, computed once."""
        if cell not in self._keys:
            self._keys[cell] = cell.key()
        return self._keys[cell]

    def finished(self, cell: Cell) -> Record | None:
        """Return the record of a cell, or None if it is not trained yet."""
        return self.found.get(self.key(cell))

    def put(self, cell: Cell, record: Record) -> None:
        """Append the record of a finished cell."""
        self.found[record["key"]] = record
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
    fitting = _fitting_processes(usable_device(device))
    records = CellRecords(folder)
    wanted = list(dict.fromkeys(cells))
    run_queue(
        list({records.key(cell): cell for cell in wanted}.values()),
        records,
        lambda missing: _start_workers(min(jobs or fitting, len(missing)), device, missing),
        noun="trainings",
        describe=_describe,
        seconds=_DurationGuess(records).seconds,
        watch=watch,
        stop=stop,
    )
    return {cell: records.found[records.key(cell)] for cell in wanted}


def finished_cells(cells: Sequence[Cell], folder: Path) -> dict[Cell, Record]:
    """Return the records of those cells that are finished in `folder`."""
    records = CellRecords(folder)
    return {cell: record for cell in dict.fromkeys(cells) if (record := records.finished(cell)) is not None}


def _describe(cell: Cell, record: Record) -> str:
    rmse = record["test"]["rmse"]
    return f"{cell.name}: {'' if rmse is None else f'RMSE {rmse:.4f}, '}{record['seconds']:.0f} s"


class _DurationGuess:
    """A rough estimate of how long a cell takes, from similar records where there are any.

    It decides only the order of trainings and the time left.
    """

    def __init__(self, records: CellRecords) -> None:
        found = records.found.values()
        self.known: dict[tuple[Any, ...], float] = {
            _similar(tuple(r["data"]), r["method"], r["gnn"], r["settings"]): max(r["seconds"], 0.1)
            for r in found
        }

    def seconds(self, cell: Cell) -> float:
        settings = dict(cell.settings)
        rough = (
            20.0
            * {"gcn": 1.0, "gat": 2.0, "ggnn": 1.3}.get(cell.gnn, 1.5)
            * (10 if "ml-1m" in cell.data[0] else 1)
        )
        rough *= (
            float(settings.get("training.epochs", 50)) / 50 * (0.1 if "training.batch" in settings else 1)
        )
        return self.known.get(_similar(cell.data, cell.method, cell.gnn, settings), rough)


def _similar(data: tuple[str, ...], method: str, gnn: str, settings: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what cells of about the same duration have in common."""
    return data, method, gnn, settings.get("training.epochs"), settings.get("training.batch")


def _fitting_processes(device: torch.device) -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if device.type != "cuda":
        return cores
    free, _ = torch.cuda.mem_get_info(device)
    return max(1, min(cores, free // MEMORY))


# -- one worker ------------------------------------------------------------------------------------------------------------

_shared: Any = None
"""In a worker: the finished share of each cell by position, then 1 if all shall stop.

It has no lock, since a worker that is killed while it holds one would stop the others for ever.
"""


def _begin_worker(shared: Any, threads: int) -> None:
    global _shared
    _shared = shared
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent says when to stop
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(threads)
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    """Exit when the parent process is gone: a killed parent cannot ask for a stop."""
    parent = parent_process()
    if parent is not None:
        wait_for([parent.sentinel])
        os._exit(1)


def _train_cell(cell: Cell, place: int, device: str) -> Record:
    shared = _shared

    def watch(event: Progress) -> None:
        shared[place] = max(shared[place], min(0.99, event.round / event.rounds))

    def stops() -> bool:
        return bool(shared[-1])

    if stops():
        raise Interrupted("stopped")
    record = cell.run(Where(torch.device(device), watch, stops))
    shared[place] = 1.0
    return record


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


@dataclass(frozen=True)
class _TrainingWorkers:
    """Trainings under way in a pool of processes."""

    futures: list[Future[Record]]
    shared: Any

    def shares(self) -> Sequence[float]:
        return list(self.shared)[:-1]

    def halt(self) -> None:
        self.shared[-1] = 1.0


@contextmanager
def _start_workers(jobs: int, device: str, cells: Sequence[Cell]) -> Iterator[_TrainingWorkers]:
    """Train all cells in `jobs` processes; nothing is left running at the end, also after an error."""
    context = get_context("spawn")
    shared = context.Array("d", len(cells) + 1, lock=False)
    threads = 1 if jobs > 1 else torch.get_num_threads()
    with ProcessPoolExecutor(jobs, context, _begin_worker, (shared, threads)) as pool:
        with _ignored_signals():
            futures = [pool.submit(_train_cell, cell, place, device) for place, cell in enumerate(cells)]
        try:
            yield _TrainingWorkers(futures, shared)
        finally:
            shared[-1] = 1.0
            pool.shutdown(cancel_futures=True)

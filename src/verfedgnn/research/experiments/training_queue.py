"""Cells run side by side, each finished one kept at once: what is stopped goes on where it was.

Processes, because a round is bound by one core; on a GPU several share it (with NVIDIA's multi-process service at full speed).
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait as wait_for
from pathlib import Path
from typing import Any

import torch

from verfedgnn.core.errors import Interrupted, RunError
from verfedgnn.research.baselines import Where
from verfedgnn.research.experiments.training_cell import Cell
from verfedgnn.training.loop import usable_device
from verfedgnn.training.progress import Progress

Record = dict[str, Any]

MEMORY = 2 << 30
"""GPU memory that a process is given room for."""


@dataclass(frozen=True)
class Report:
    """How far an experiment is."""

    done: int
    """Cells that are finished or were there."""
    total: int
    seconds_left: float | None
    last: str
    """The last finished cell and what it reached."""


class Records:
    """The finished cells of an experiment, a line each in `cells.jsonl`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "cells.jsonl"
        self.found: dict[str, Record] = {}
        text = self.path.read_text("utf-8") if self.path.is_file() else ""
        for line in text.splitlines():
            try:
                record = json.loads(line)
                self.found[record["key"]] = record
            except (ValueError, KeyError, TypeError):
                continue  # the line that was being written when the machine went down
        self.torn = bool(text) and not text.endswith("\n")

    def add(self, record: Record) -> None:
        """Keep a finished cell."""
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
    watch: Callable[[Report], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> dict[Cell, Record]:
    """Records of all cells: those in `folder` as they are, the others trained in `jobs` processes (0: as many as fit)."""
    fitting = _fitting(usable_device(device))
    records = Records(folder)
    keys = {cell: cell.key() for cell in dict.fromkeys(cells)}
    missing = list({keys[cell]: cell for cell in keys if keys[cell] not in records.found}.values())
    if not missing:
        return {cell: records.found[key] for cell, key in keys.items()}
    guess = _Guess(records)
    missing.sort(key=guess.seconds, reverse=True)
    jobs = min(jobs or fitting, len(missing))
    failed: list[str] = []
    killed = False
    done, began, last = len(keys) - len(missing), time.monotonic(), ""
    total = sum(guess.seconds(cell) for cell in missing)
    with _workers(jobs, device, missing) as (running, progress, halt):
        while running:
            finished, _ = wait(running, timeout=0.5, return_when=FIRST_COMPLETED)
            for future in finished:
                cell = running.pop(future)
                try:
                    record = future.result()
                except Interrupted:
                    continue
                except BrokenProcessPool:
                    killed = True
                    continue
                except Exception as error:  # one that cannot be trained must not end the others
                    failed.append(f"{cell.name}: {error}")
                    last = failed[-1]
                    continue
                records.add(record)
                done += 1
                rmse = record["test"]["rmse"]
                last = f"{cell.name}: {'' if rmse is None else f'RMSE {rmse:.4f}, '}{record['seconds']:.0f} s"
            if killed:
                why = "a training was killed, probably for want of memory"
                raise RunError(
                    f"{why}; {done} of {len(keys)} are done, go on with the same command and fewer --jobs"
                )
            if watch is not None:
                share = sum(
                    guess.seconds(cell) * part for cell, part in zip(missing, progress, strict=True)
                ) / max(total, 1e-9)
                spent = time.monotonic() - began
                left = spent * (1 - share) / share if share > 0.01 and spent > 5 else None
                watch(Report(done, len(keys), left, last))
            if stop() and not halt.is_set():
                halt.set()
                for future in running:
                    future.cancel()
                running = {future: cell for future, cell in running.items() if not future.cancelled()}
        stopped = halt.is_set()
    if stopped:
        raise Interrupted(f"stopped with {done} of {len(keys)} trainings done")
    if failed:
        raise RunError(
            f"{len(failed)} of {len(keys)} trainings failed, the others are kept; the first: {failed[0]}"
        )
    return {cell: records.found[key] for cell, key in keys.items()}


def finished_cells(cells: Sequence[Cell], folder: Path) -> dict[Cell, Record]:
    """The records that are in `folder`, of some cells."""
    found = Records(folder).found
    return {cell: found[cell.key()] for cell in dict.fromkeys(cells) if cell.key() in found}


class _Guess:
    """How long a cell will take: what its like took, or a rough guess; only for the order and the time left."""

    def __init__(self, records: Records) -> None:
        found = records.found.values()
        self.known: dict[tuple[Any, ...], float] = {
            _alike(tuple(r["data"]), r["method"], r["gnn"], r["settings"]): max(r["seconds"], 0.1)
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
        return self.known.get(_alike(cell.shown, cell.method, cell.gnn, settings), rough)


def _alike(data: tuple[str, ...], method: str, gnn: str, settings: Mapping[str, Any]) -> tuple[Any, ...]:
    """What cells of about the same length have in common."""
    return data, method, gnn, settings.get("training.epochs"), settings.get("training.batch")


def _fitting(device: torch.device) -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if device.type != "cuda":
        return cores
    free, _ = torch.cuda.mem_get_info(device)
    return max(1, min(cores, free // MEMORY))


# -- one worker ------------------------------------------------------------------------------------------------------------

_shared: Any = None
"""In a worker: how far each running cell is, by place; and whether to stop."""


def _begin(progress: Any, halt: Any, threads: int) -> None:
    global _shared
    _shared = (progress, halt)
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent says when to stop
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(threads)
    threading.Thread(target=_leave_with_the_parent, daemon=True).start()


def _leave_with_the_parent() -> None:
    """A parent that was killed can ask for nothing any more."""
    parent = parent_process()
    if parent is not None:
        wait_for([parent.sentinel])
        os._exit(1)


def _work(cell: Cell, place: int, device: str) -> Record:
    progress, halt = _shared

    def watch(event: Progress) -> None:
        progress[place] = max(progress[place], min(0.99, event.round / event.rounds))

    if halt.is_set():
        raise Interrupted("stopped")
    record = cell.run(Where(torch.device(device), watch, halt.is_set))
    progress[place] = 1.0
    return record


@contextmanager
def _deaf() -> Iterator[None]:
    """Processes started meanwhile ignore both signals from their first moment, not only once they have imported everything."""
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
def _workers(
    jobs: int, device: str, cells: Sequence[Cell]
) -> Iterator[tuple[dict[Future[Record], Cell], Any, Any]]:
    """All cells under way, how far each one is, and the event that stops them; whatever happens, nothing is left running."""
    context = get_context("spawn")
    progress, halt = context.Array("d", len(cells), lock=False), context.Event()
    threads = 1 if jobs > 1 else torch.get_num_threads()
    with ProcessPoolExecutor(jobs, context, _begin, (progress, halt, threads)) as pool:
        with _deaf():
            running = {pool.submit(_work, cell, place, device): cell for place, cell in enumerate(cells)}
        try:
            yield running, progress, halt
        finally:
            halt.set()
            pool.shutdown(cancel_futures=True)

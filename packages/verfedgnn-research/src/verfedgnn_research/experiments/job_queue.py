"""The queue that runs many jobs and keeps each finished record on disk, so that an interrupted experiment resumes.

The queue decides what is missing, reports progress, keeps records and stops; the workers it is given decide in which
processes jobs run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from verfedgnn.core.errors import Interrupted, RunError

Record = dict[str, Any]
"""The result of a job, as JSON holds it."""


class QueuedJob(Protocol):
    """Something to compute, with a name for progress and errors."""

    @property
    def name(self) -> str:
        """Name of the job in progress lines and errors."""
        ...


Job = TypeVar("Job", bound=QueuedJob)
StoredJob = TypeVar("StoredJob", bound=QueuedJob, contravariant=True)


class RecordStore(Protocol[StoredJob]):
    """Records on disk, found by job."""

    def finished(self, job: StoredJob) -> Record | None:
        """Return the record of a job, or None if the job has to be run."""
        ...

    def put(self, job: StoredJob, record: Record) -> None:
        """Keep the record of a job."""
        ...


class Workers(Protocol):
    """Jobs under way."""

    @property
    def futures(self) -> Sequence[Future[Record]]:
        """Futures of the jobs, in the order of the jobs."""
        ...

    def shares(self) -> Sequence[float]:
        """Return the finished share of each job, in the same order."""
        ...

    def halt(self) -> None:
        """Make running jobs stop early and raise `Interrupted`."""
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
    jobs: Sequence[Job],
    records: RecordStore[Job],
    start: Callable[[list[Job]], AbstractContextManager[Workers]],
    *,
    noun: str,
    describe: Callable[[Job, Record], str],
    seconds: Callable[[Job], float] = lambda job: 1.0,
    watch: Callable[[QueueProgress], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Run all jobs without a record, longest first, and keep each record as soon as it is there.

    `start` starts workers for the missing jobs, and `seconds` estimates how long a job takes. A failed job does not end the
    others; it is reported as `RunError` at the end.
    """
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
        with start(missing) as workers:
            running = dict(zip(workers.futures, missing, strict=True))
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
                    last = describe(job, record)
                if killed:
                    raise RunError(
                        f"a process was killed, probably for lack of memory; {done} of {len(jobs)} {noun} are done. "
                        "Run the same command with fewer --jobs to resume"
                    )
                if watch is not None:
                    left = _seconds_left(weights, workers.shares(), time.monotonic() - began)
                    watch(QueueProgress(done, len(jobs), left, last))
                if running and (halted or stop()):
                    halted = True
                    workers.halt()
                    running = {future: job for future, job in running.items() if not future.cancel()}
    except KeyboardInterrupt:
        halted = True
    if halted and done + len(failed) < len(jobs):
        raise Interrupted(f"stopped with {done} of {len(jobs)} {noun} done")
    if failed:
        raise RunError(
            f"{len(failed)} of {len(jobs)} {noun} failed, the others are kept; the first: {failed[0]}"
        )


def _seconds_left(weights: Sequence[float], shares: Sequence[float], spent: float) -> float | None:
    """Estimate the seconds left; None while too little is known."""
    share = sum(weight * part for weight, part in zip(weights, shares, strict=True)) / max(sum(weights), 1e-9)
    return spent * (1 - share) / share if share > 0.01 and spent > 5 else None

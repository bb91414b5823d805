"""Tasks, the records they leave, and the questions they answer.

A task runs in a process of its own, so that no size inherits another's peak memory, and its record is written as soon as it is
there: a bench that was stopped goes on where it was.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verfedgnn.core.errors import RunError
from verfedgnn.core.files import write_bytes, writing
from verfedgnn.reports.document import Block
from verfedgnn.research.bench.measure import machine
from verfedgnn.research.experiments.training_cell import commit

Figures = dict[str, Any]


@dataclass(frozen=True)
class Scope:
    """How much is measured."""

    quick: bool = False
    """Small sizes and short trainings: minutes, and figures that only show that everything works."""
    data: str = "ml-1m"
    """The data set of peers and curves."""

    def pick(self, whole: Any, quick: Any) -> Any:
        """One of two."""
        return quick if self.quick else whole


@dataclass(frozen=True)
class Task:
    """One measurement: a function of the bench by name, and its arguments."""

    name: str
    function: str
    """`module:function` below verfedgnn.research.bench; it takes `arguments` and returns figures."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    threads: int = 1
    needs: float = 1.0
    """GB of memory, about."""

    @property
    def about(self) -> dict[str, Any]:
        """What a record must agree with to be this task's."""
        return {
            "function": self.function,
            "arguments": json.loads(json.dumps(self.arguments)),
            "threads": self.threads,
        }


@dataclass(frozen=True)
class Question:
    """What is asked, the tasks that measure it, and the part of the report that answers it."""

    name: str
    title: str
    tasks: Callable[[Scope], list[Task]]
    answer: Callable[[Mapping[str, Figures], str], Sequence[Block | None]]
    """From figures by task and the folder of pictures."""


class Records:
    """What was measured, a JSON file a task."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "records"

    def get(self, task: Task) -> dict[str, Any] | None:
        """The record of a task, if it was measured as it is asked now."""
        path = self.folder / f"{task.name}.json"
        try:
            record: dict[str, Any] = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError):
            return None
        return record if {key: record.get(key) for key in task.about} == task.about else None

    def put(self, task: Task, record: Mapping[str, Any]) -> None:
        """Keep one."""
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_bytes(
                self.folder / f"{task.name}.json",
                (json.dumps(record, indent=1, allow_nan=False) + "\n").encode(),
            )

    def known(self, task: Task) -> bool:
        """Whether it need not be measured again."""
        record = self.get(task)
        return record is not None and "failed" not in record


def take(task: Task, command: str, memory: float = math.inf) -> dict[str, Any]:
    """Measure in a process of its own; what went wrong there is a record, too, and tried again next time."""
    if task.needs > memory:
        reason = f"needs about {task.needs:.0f} GB of memory, {memory:.0f} were allowed"
        return {"name": task.name, **task.about, "failed": reason}
    threads = {
        name: str(task.threads)
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
    }
    began, about = time.time(), {"command": command, "commit": commit(), "machine": machine()}
    process = subprocess.run(
        [sys.executable, "-m", "verfedgnn.research.bench.bench_child"],
        input=json.dumps(task.about),
        capture_output=True,
        text=True,
        env={**os.environ, **threads},
    )
    record = {"name": task.name, **task.about, **about, "took": round(time.time() - began, 1)}
    if process.returncode in (130, -signal.SIGINT, -signal.SIGTERM):
        raise KeyboardInterrupt
    try:
        return {**record, "figures": json.loads(process.stdout.splitlines()[-1])}
    except (IndexError, ValueError):
        said = process.stderr.strip().splitlines()
        return {**record, "failed": said[-1] if said else f"ended with status {process.returncode}"}


def chosen(names: Sequence[str], questions: Mapping[str, Question]) -> list[Question]:
    """The questions of these names; all without any."""
    unknown = [name for name in names if name not in questions]
    if unknown:
        raise RunError(f"there is no '{unknown[0]}' to measure; there are: {', '.join(questions)}")
    return [question for name, question in questions.items() if not names or name in names]

"""Clocks and memory of a process, and a description of the machine."""

from __future__ import annotations

import math
import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch


def peak_memory() -> float:
    """Return the peak memory of this process in bytes.

    On Linux a child inherits its parent's peak in getrusage, so the peak is read from /proc where that
    exists.
    """
    status = Path("/proc/self/status")
    if status.is_file():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024.0 * int(line.split()[1])
    unit = 1 if sys.platform == "darwin" else 1024
    return float(unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def free_memory() -> float:
    """Return the available memory in GB, or infinity if it is unknown."""
    info = Path("/proc/meminfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) / 1e6
    return math.inf


def timed(action: Callable[[], object]) -> dict[str, float]:
    """Return CPU and wall seconds of one call; `system` is the kernel's share of CPU time, mostly for
    fresh memory.
    """
    wall = time.perf_counter()
    cpu = time.process_time()
    system = os.times().system
    action()
    return {
        "cpu": time.process_time() - cpu,
        "wall": time.perf_counter() - wall,
        "system": os.times().system - system,
    }


def medians(times: list[dict[str, float]]) -> dict[str, float]:
    """Return the median of each figure."""
    return {name: median(each.get(name, 0.0) for each in times) for name in times[0]} if times else {}


class Phases:
    """CPU seconds by phase; time counts for the innermost open phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._open = ["rest"]
        self._since = time.process_time()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time inside for `name`, except for phases opened within."""
        self._turn()
        self._open.append(name)
        try:
            yield
        finally:
            self._turn()
            self._open.pop()

    def _turn(self) -> None:
        now = time.process_time()
        self.seconds[self._open[-1]] = self.seconds.get(self._open[-1], 0.0) + now - self._since
        self._since = now

    def take(self) -> dict[str, float]:
        """Return the seconds counted since the last call."""
        self._turn()
        taken = self.seconds
        self.seconds = {}
        return taken

    @contextmanager
    def watching(self, places: dict[str, list[tuple[Any, str]]]) -> Iterator[None]:
        """Count calls of the functions at `places` (phase: owner and name) as phases."""
        patches = [
            patch.object(owner, word, self._counted(phase, owner, word))
            for phase, at in places.items()
            for owner, word in at
        ]
        for each in patches:
            each.start()
        try:
            yield
        finally:
            for each in patches:
                each.stop()

    def _counted(self, phase: str, owner: Any, name: str) -> Callable[..., Any]:
        function = getattr(owner, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            with self.phase(phase):
                return function(*args, **kwargs)

        return counted


def machine() -> dict[str, Any]:
    """Return a description of the machine."""
    model = platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        names = [
            line.split(":", 1)[1].strip()
            for line in info.read_text().splitlines()
            if line.startswith("model name")
        ]
        model = names[0] if names else model
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }

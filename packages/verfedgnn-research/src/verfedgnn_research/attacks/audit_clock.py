"""The time that an audit still takes, from the measured stages and the estimated work of the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class AuditStage:
    """A part of a step that reports its progress, such as recording rounds or attacking one sum after the other."""

    step: int
    """Number of the step that it belongs to."""
    kind: str
    """Stages of one kind take about as long as their work says, relative to each other."""
    work: float
    """Estimated seconds on a quiet machine; only the ratio to other stages matters."""


class AuditClock:
    """Measures stages and estimates the seconds that are left.

    The rest of the current stage follows from its finished share. A later stage takes what finished stages of its kind
    took per unit of work; without one, what all finished work took.
    """

    def __init__(self, stages: Sequence[AuditStage], now: Callable[[], float] = time.monotonic) -> None:
        self.stages = list(stages)
        self.now = now
        self.spent: dict[int, float] = {}
        """Measured seconds by the number of the stage."""
        self.shares: dict[int, float] = {}
        self._began: dict[int, float] = {}
        self._last = now()
        self._current: int | None = None

    def report(self, step: int, kind: str, share: float) -> None:
        """Note that a share of a stage is finished; a stage begins where the last report of another one ended."""
        number = next(n for n, stage in enumerate(self.stages) if (stage.step, stage.kind) == (step, kind))
        began = self._began.setdefault(number, self._last)
        self._current = number
        self._last = self.now()
        self.spent[number] = self._last - began
        self.shares[number] = min(1.0, share)

    def finish(self, step: int) -> None:
        """Note that a step is over. Its last stage took until now; stages that never reported were not needed."""
        self._last = self.now()
        if self._current is not None and self.stages[self._current].step == step:
            self.spent[self._current] = self._last - self._began[self._current]
        for number, stage in enumerate(self.stages):
            if stage.step == step:
                self.shares[number] = 1.0

    @property
    def share(self) -> float:
        """The finished share of all work."""
        done = sum(self.shares.get(number, 0.0) * stage.work for number, stage in enumerate(self.stages))
        return done / max(1e-9, sum(stage.work for stage in self.stages))

    @property
    def seconds_left(self) -> float | None:
        """The estimated seconds that are left; None before anything is measured."""
        left = 0.0
        for number, stage in enumerate(self.stages):
            undone = 1 - self.shares.get(number, 0.0)
            if undone:
                rate = self._rate(stage.kind) or self._rate(None)
                if rate is None:
                    return None
                left += rate * undone * stage.work
        return left

    def _rate(self, kind: str | None) -> float | None:
        """Return the measured seconds per unit of work of the stages of a kind, or of all; None without a measurement."""
        measured = [n for n in self.spent if kind in (None, self.stages[n].kind)]
        work = sum(self.shares[n] * self.stages[n].work for n in measured)
        return sum(self.spent[n] for n in measured) / work if work else None

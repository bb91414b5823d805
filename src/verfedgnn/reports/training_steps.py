"""The trainings that one `train` command runs, in order, and the time left for all of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from verfedgnn.reports.phrases import format_duration, format_size

if TYPE_CHECKING:
    from verfedgnn.config import Config
    from verfedgnn.training.cost_forecast import CostForecast

_LISTS = 1.5
"""Time of a training of lists, in trainings of ratings; measured on three small shops."""
_OWN = 0.5
"""Time of all parties' own models, in federated trainings; measured on three small shops."""
_ALL = ", all ratings"
"""Ending of the names of the federated trainings on all ratings."""


def list_steps(parties: Sequence[str], config: Config) -> list[str]:
    """Return the names of all trainings of a command, as progress reports call them."""
    loops = ["lists"] if config.ranks else ["federation", "lists"][: 1 + config.trains_lists]
    alone = [f"{name} alone{', lists' * (loop == 'lists')}" for loop in loops for name in parties]
    final = config.trains_final and config.model.form == "solved"
    return [
        *loops,
        *([f"{loop}{_ALL}" for loop in loops] if final else []),
        *(alone if config.training.gate else []),
    ]


def describe_cost(steps: Sequence[str], config: Config, expected: CostForecast, parties: int) -> str:
    """Say how long a command takes and what a party sends and receives, at most."""
    seconds = sum(expected.seconds_of(step) for step in steps)
    rounds = sum(cost.rounds for cost in expected.federated.values())
    own = sum(" alone" in step for step in steps)
    trainings = f"{rounds:,} rounds" + (f" and {own} trainings of single parties" if own else "")
    sent = format_size(expected.bytes / parties)
    early = ", and less if the validation error stops falling" if config.training.patience else ""
    return f"expected: about {format_duration(seconds)} for {trainings}, {sent} a party{early}"


class StepClock:
    """Measures the trainings of a command and estimates the time that is left for all of them.

    Trainings are estimated from those that are finished, or from the current one, by the ratio of their expected times
    (`cost_forecast`), or by the usual ratio.
    """

    def __init__(self, steps: Sequence[str], parties: int, expected: CostForecast | None = None) -> None:
        self.steps = list(steps)
        self.expected = expected
        weigh = partial(_weigh, parties=parties) if expected is None else expected.seconds_of
        self.weights = {step: weigh(step) for step in steps}
        self.spent: dict[str, float] = {}
        self.current = ""
        self.began = 0.0
        self.first = 0.0

    def report(self, step: str, done: float, now: float | None = None) -> None:
        """Note that `done` rounds of a step are finished."""
        moment = time.monotonic() if now is None else now
        if step != self.current:
            if self.current:
                self.spent[self.current] = moment - self.began
            self.current = step
            self.began = moment
            self.first = done

    def seconds_left(self, done: float, total: float, now: float | None = None) -> float | None:
        """Return the estimated seconds until all steps are finished; None if they are not known yet."""
        elapsed = (time.monotonic() if now is None else now) - self.began
        if self.current not in self.weights:
            return None
        if elapsed < 1 and not self.spent:
            return None if self.expected is None else sum(self.weights.values())
        share = (done - self.first) / max(1, total - self.first)
        whole = self.spent.get(self.current)
        if whole is None or whole <= elapsed:
            whole = elapsed / share if share else self._unit() * self.weights[self.current]
        known = sum(self.weights[step] for step in self.spent if step in self.weights)
        unit = self._unit() if known else whole / self.weights[self.current]
        later = self.steps[self.steps.index(self.current) + 1 :]
        rest = sum(self.spent.get(step, unit * self.weights[step]) for step in later)
        return max(0.0, whole - elapsed) + rest

    def describe(self, step: str) -> str:
        """Return the place of a step, such as `step 3 of 20, books alone`."""
        if step not in self.weights:
            return step
        return f"step {self.steps.index(step) + 1} of {len(self.steps)}, {step}"

    def _unit(self) -> float:
        """Return the seconds of a federated training of ratings, estimated from the finished steps."""
        known = [step for step in self.spent if step in self.weights]
        weight = sum(self.weights[step] for step in known)
        return sum(self.spent[step] for step in known) / weight if weight else 0.0


def _weigh(step: str, parties: int) -> float:
    whole = step.removesuffix(_ALL)
    share = 0.4 if whole != step else 1.0
    lists = _LISTS if whole.endswith("lists") else 1.0
    return share * lists if whole in ("federation", "lists") else _OWN * lists / parties

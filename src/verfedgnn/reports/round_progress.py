"""The progress of trainings on a terminal, in a file and in a notebook."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape as html_escape
from importlib import import_module
from multiprocessing import current_process
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from verfedgnn.reports.console import drawable, error_console
from verfedgnn.reports.phrases import format_duration, format_size

if TYPE_CHECKING:
    from verfedgnn.config import Config
    from verfedgnn.training.cost_forecast import Cost
    from verfedgnn.training.progress import Progress as RoundEvent
    from verfedgnn.training.progress import Watcher

STEP_SECONDS = 10.0
"""Fewest seconds between two lines about a training that is one of many."""
REFRESH_SECONDS = 0.2


@dataclass(frozen=True)
class TrainingPlan:
    """The trainings that one `train` command runs, in order, as progress reports call them, and what they are expected to cost."""

    steps: Sequence[str] = ()
    expected: Mapping[str, Cost] = field(default_factory=dict)
    """Expected cost of each step, by name; empty if there is no forecast."""

    @classmethod
    def of(
        cls, parties: Sequence[str], config: Config, expected: Mapping[str, Cost] | None = None
    ) -> TrainingPlan:
        """Return the trainings of a command for these parties."""
        loops = ["lists"] if config.ranks else ["federation", "lists"][: 1 + config.trains_lists]
        alone = [f"{name} alone{', lists' * (loop == 'lists')}" for loop in loops for name in parties]
        final = config.trains_final and config.model.solved
        again = [f"{loop}, all ratings" for loop in loops] if final else []
        return cls([*loops, *again, *(alone if config.training.gate else [])], expected or {})

    def describe(self, step: str) -> str:
        """Return the place of a step, such as `step 3 of 20, books alone`."""
        if step not in self.steps:
            return step
        return f"step {self.steps.index(step) + 1} of {len(self.steps)}, {step}"

    @property
    def seconds(self) -> float:
        """Seconds that all steps are expected to take."""
        return sum(self.expected[step].seconds for step in self.steps if step in self.expected)

    def describe_cost(self, parties: int) -> str:
        """Say how long the command takes and what each party sends and receives."""
        size = sum(self.expected[step].bytes for step in self.steps if step in self.expected)
        return (
            f"expected: about {format_duration(self.seconds)}, {format_size(size / parties)} for each party"
        )


class RoundProgress:
    """A progress bar of a training: round, validation error, bytes and time left. In a file it prints lines.

    With a plan, each training has its place among all of the command.
    """

    def __init__(self, *, hidden: bool, transient: bool = False) -> None:
        self.console = error_console()
        self.hidden = hidden
        self.plan = TrainingPlan()
        seen = not hidden and drawable(self.console)
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[note]}", markup=False),
            TextColumn("{task.fields[left]}"),
            console=self.console,
            transient=transient,
            disable=not seen,
        )
        self.plain = not hidden and not seen
        self.tasks: dict[str, TaskID] = {}
        self.last = ""
        """The line of the current training that is printed when it ends."""
        self.printed = 0
        self.printed_at = 0.0
        self.began = 0.0
        self.first = 0.0
        self.valid = ""

    def __enter__(self) -> RoundProgress:
        self.bar.start()
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        if failed is None:
            self._close()
        self.bar.stop()

    def _close(self) -> None:
        """Fill the bar of a training that stopped before its last round, and print its last line."""
        for task in self.bar.tasks[-1:]:
            early = "" if task.finished else " (no longer improving)"
            note = f"{task.fields['note'].rstrip()}{early}".strip()
            self.bar.update(task.id, total=task.completed, note=note, left="")
            if self.last:
                self._print(f"{self.last}{early}")
        self.last = ""

    def line(self, text: str) -> None:
        """Print a line above the bar."""
        if self.last:
            self._print(self.last)
            self.last = ""
        self._print(text)

    def round(self, event: RoundEvent) -> None:
        """Show a finished round of a training."""
        if event.label not in self.tasks:
            self.valid = ""  # the last value belongs to another training
        for name, value in (event.valid or {}).items():
            self.valid = f"{name.upper()} {value:.4f} (best {event.best[name]:.4f})  "
        travels = event.label.startswith(("federation", "lists"))  # alone, nothing does
        sent = format_size(event.bytes) if travels else ""
        self.step(event.label, event.round, event.rounds, f"{self.valid}{sent}")

    def step(self, label: str, done: float, total: int, note: str = "") -> None:
        """Show that `done` of `total` steps of the task `label` are finished."""
        name = self.plan.describe(label)
        if label not in self.tasks:
            self._close()
            self.began, self.first, self.printed = time.monotonic(), done, 0
            self.tasks[label] = self.bar.add_task(escape(name), total=total, note=note, left="")
        spent, left = time.monotonic() - self.began, ""
        if spent > 1 and self.first < done < total:
            left = f"about {format_duration(spent * (total - done) / (done - self.first))} left"
        self.bar.update(self.tasks[label], completed=done, note=note, left=left)
        self._show_line(f"{name}: {done:.0f}/{total} rounds  {note}".rstrip(), done, total, left)

    def _show_line(self, line: str, done: float, total: int, left: str) -> None:
        """Print the line of the current training after each tenth of it, where no bar can be drawn."""
        if not self.plain:
            return
        self.last = line
        tenth = int(10 * done // total)
        late = not self.plan.steps or time.monotonic() - self.printed_at >= STEP_SECONDS
        if tenth > self.printed and done < total and late:
            self.printed = tenth
            self.printed_at = time.monotonic()
            self._print(f"{line}  {left}".rstrip())

    def _print(self, text: str) -> None:
        if not self.hidden:
            self.console.print(text, markup=False, soft_wrap=True)


class NotebookProgress(RoundProgress):
    """A progress bar in the output of a notebook cell, which goes when the trainings are done."""

    def __init__(self, display: Any) -> None:
        """Create a bar; `display` is the module IPython.display."""
        super().__init__(hidden=True)
        self.html = display.HTML
        self.cell = display.display(display.HTML(""), display_id=True)
        self.shown = 0.0

    def __exit__(self, *_: object) -> None:
        self.cell.update(self.html(""))

    def _show_line(self, line: str, done: float, total: int, left: str) -> None:
        """Show the line in the cell, at most five times a second."""
        if time.monotonic() - self.shown >= REFRESH_SECONDS:
            self.shown = time.monotonic()
            bar = f'<progress value="{done}" max="{total}"></progress>'
            self.cell.update(self.html(f"{bar} {html_escape(f'{line}  {left}'.rstrip())}"))


@contextmanager
def watching(verbose: bool, watch: Watcher | None = None) -> Iterator[Watcher | None]:
    """Yield a watcher that shows the progress of trainings on a terminal or in a notebook, and passes it on to `watch`.

    Nothing is shown in a file, in a worker process or without `verbose`.
    """
    bar = _make_bar() if verbose else None
    if bar is None:
        yield watch
        return

    def both(event: RoundEvent) -> None:
        bar.round(event)
        if watch is not None:
            watch(event)

    with bar:
        yield both


def _make_bar() -> RoundProgress | None:
    if current_process().name != "MainProcess":
        return None
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None and getattr(shell, "kernel", None) is not None:
        return NotebookProgress(import_module("IPython.display"))
    return RoundProgress(hidden=False, transient=True) if drawable(error_console()) else None

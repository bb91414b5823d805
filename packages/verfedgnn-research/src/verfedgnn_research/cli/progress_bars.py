"""The progress bar of experiments for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, TaskID, TextColumn

from verfedgnn.reports.console import drawable, error_console
from verfedgnn.reports.phrases import format_duration

if TYPE_CHECKING:
    from verfedgnn_research.experiments.training_queue import QueueProgress


class CellProgress:
    """A progress bar of an experiment: finished trainings, the last one and the time left."""

    def __init__(self, *, hidden: bool) -> None:
        self.console = error_console()
        seen = not hidden and drawable(self.console)
        self.bar = Progress(
            BarColumn(bar_width=24),
            TextColumn("{task.completed:.0f}/{task.total:.0f} trainings"),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.fields[note]}", markup=False),
            console=self.console,
            disable=not seen,
        )
        self.plain = not hidden and not seen
        self.task: TaskID | None = None
        self.last = ""

    def __enter__(self) -> CellProgress:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def report(self, report: QueueProgress) -> None:
        """Show the state of the experiment."""
        left = "" if report.seconds_left is None else f"about {format_duration(report.seconds_left)} left"
        if self.task is None:
            self.task = self.bar.add_task("", total=report.total, left=left, note="")
        self.bar.update(self.task, total=report.total, completed=report.done, left=left, note=report.last)
        if self.plain and report.last != self.last:
            self.console.print(
                f"{report.done}/{report.total} {report.last}  {left}".rstrip(), markup=False, soft_wrap=True
            )
        self.last = report.last

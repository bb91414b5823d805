"""Progress and tables on the terminal. Progress goes to standard error, results to standard output."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from verfedgnn.evaluation.plots import band
from verfedgnn.experiments.queue import Report
from verfedgnn.reports.words import duration, figure, size
from verfedgnn.training import Progress as RoundEvent


def error_console() -> Console:
    """Where progress and remarks go."""
    return Console(stderr=True, highlight=False)


class RoundProgress:
    """A bar with the round, the validation RMSE (last and best), the bytes so far and the time left."""

    def __init__(self, *, hidden: bool, unit: str = "rounds") -> None:
        console, self.unit = error_console(), unit
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            console=console,
            disable=hidden or not console.is_terminal,
        )
        self.plain = console if not hidden and not console.is_terminal else None
        self.tasks: dict[str, TaskID] = {}
        self.printed = 0
        self.valid = ""

    def __enter__(self) -> RoundProgress:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._close()
        self.bar.stop()

    def _close(self) -> None:
        """A training that ended before its last round has stopped early: its bar is full."""
        for task in self.bar.tasks:
            if not task.finished:
                self.bar.update(task.id, total=task.completed, note=f"{task.fields['note']} (no longer improving)".strip())

    def round(self, event: RoundEvent) -> None:
        """After a round of the federation."""
        for name, value in (event.valid or {}).items():
            self.valid = f"{name.upper()} {value:.4f} (best {event.best[name]:.4f})  "
        sent = size(event.bytes) if event.label == "federation" else ""  # alone, nothing travels
        self.step(event.label, event.round, event.rounds, f"{self.valid}{sent}")

    def step(self, label: str, done: int, total: int, note: str = "") -> None:
        """After a round of any training."""
        if label not in self.tasks:
            self._close()
            self.tasks[label] = self.bar.add_task(label, total=total, note=note)
            self.printed = 0
        self.bar.update(self.tasks[label], completed=done, note=note)
        tenth = 10 * done // total
        if self.plain is not None and (tenth > self.printed or done == total):
            self.printed = tenth
            self.plain.print(f"{label}: {done}/{total} {self.unit}  {note}".rstrip())


class CellProgress:
    """A bar with the finished trainings of an experiment, the last one and the time left."""

    def __init__(self, *, hidden: bool) -> None:
        console = error_console()
        self.bar = Progress(
            BarColumn(bar_width=24),
            TextColumn("{task.completed:.0f}/{task.total:.0f} trainings"),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.fields[note]}", markup=False),
            console=console,
            disable=hidden or not console.is_terminal,
        )
        self.plain = console if not hidden and not console.is_terminal else None
        self.task: TaskID | None = None
        self.last = ""

    def __enter__(self) -> CellProgress:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def report(self, report: Report) -> None:
        """How far it is."""
        left = "" if report.seconds_left is None else f"about {duration(report.seconds_left)} left"
        if self.task is None:
            self.task = self.bar.add_task("", total=report.total, left=left, note="")
        self.bar.update(self.task, total=report.total, completed=report.done, left=left, note=report.last)
        if self.plain is not None and report.last != self.last:
            self.plain.print(f"{report.done}/{report.total} {report.last}  {left}".rstrip(), markup=False, soft_wrap=True)
        self.last = report.last


def run_table(metrics: dict[str, Any]) -> Table:
    """What a run reached, cost and protects."""
    privacy, cost = metrics["privacy"], metrics["bytes"]
    table = Table(title="Federation", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    test = metrics["test"]
    ranking = "  ".join(f"{name} {figure(value)}" for name, value in test.items() if "@" in name)
    valid = figure(metrics["valid"]["rmse"])
    table.add_row("test RMSE", f"{figure(test['rmse'])}   MAE {figure(test['mae'])}   (valid RMSE {valid})")
    table.add_row("ranking", ranking)
    rounds = f"{metrics['rounds']:,} in {metrics['seconds']:.1f} s; the model of round {metrics['best_round']:,} was kept"
    table.add_row("rounds", rounds)
    table.add_row(
        "bytes",
        f"{size(cost['up'])} up, {size(cost['down'])} down; {size(cost['per_party_per_round'])} a party and round",
    )
    table.add_row("gradients", _guarantee(privacy["gradients"]))
    table.add_row("neighbourhoods", _guarantee(privacy["neighbourhoods"]))
    return table


def _guarantee(part: dict[str, Any]) -> str:
    return part["guarantee"] if part["mechanism"] == "none" else f"{part['mechanism']}: {part['guarantee']}"


def party_table(metrics: dict[str, Any]) -> Table:
    """The figures of each party."""
    names = list(metrics["test"])
    table = Table("party", "items", "ratings", *names, title="Test part", title_justify="left")
    for party in metrics["parties"]:
        figures = [figure(party["test"][name]) for name in names]
        table.add_row(escape(party["name"]), f"{party['items']:,}", f"{party['ratings']:,}", *figures)
    table.add_section()
    table.add_row("overall", "", "", *(figure(metrics["test"][name]) for name in names), style="bold")
    return table


def lift_table(lift: dict[str, Any]) -> Table:
    """What joining is worth: test RMSE with biases, alone, federated, pooled; whether it pays."""
    table = _lift_table("party", "Lift (test RMSE, lower is better)")
    table.caption = (
        "biases: user and item means alone. alone, pooled: the same model without protection, on own and on all data.\n"
        "gain: by how much federated is below the better of biases and alone (chosen on validation), with a 95 % interval."
    )
    for row in lift["parties"]:
        table.add_row(*_lift_row(escape(row["name"]), row))
    table.add_section()
    table.add_row(*_lift_row("overall", lift["overall"]), style="bold")
    return table


def activity_table(lift: dict[str, Any]) -> Table:
    """The same by how many ratings a user has at the party that is judged."""
    table = _lift_table("ratings", "Lift by number of a user's training ratings at the party")
    for row in lift.get("by_own_ratings", []):
        table.add_row(*_lift_row(band(row), row))
    return table


def _lift_table(first: str, title: str) -> Table:
    columns = (first, "biases", "alone", "federated", "pooled", "gain", "pays")
    return Table(*columns, title=title, title_justify="left", caption_justify="left")


def _lift_row(name: str, row: dict[str, Any]) -> list[str]:
    found = row.get("gain")
    text = f"{found['rmse']:+.3f} ±{_reach(found):.3f}" if found else "-"
    return [name, *(figure(row[key]) for key in ("biases", "alone", "federated", "pooled")), text, row.get("pays", "-")]


def _reach(gain: dict[str, float]) -> float:
    """The longer side of a gain's interval, which is hardly ever much longer than the other."""
    return max(gain["rmse"] - gain["low"], gain["high"] - gain["rmse"])

"""Progress and tables on the terminal. Progress goes to standard error, results to standard output."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from verfedgnn.training import Progress as RoundEvent


def error_console() -> Console:
    """Where progress and remarks go."""
    return Console(stderr=True, highlight=False)


class RoundProgress:
    """A bar with the round, the validation RMSE, the bytes so far and the time left."""

    def __init__(self, *, hidden: bool) -> None:
        console = error_console()
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed:.0f}/{task.total:.0f} rounds"),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=hidden or not console.is_terminal,
        )
        self.plain = console if not hidden and not console.is_terminal else None
        self.tasks: dict[str, TaskID] = {}
        self.printed = 0

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
        note = f"{size(event.bytes)}"
        if event.best_rmse < float("inf"):
            note = f"valid RMSE {event.best_rmse:.4f}  {note}"
        self.step("federation", event.round, event.rounds, note)

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
            self.plain.print(f"{label}: {done}/{total} rounds  {note}".rstrip())


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
    table.add_row("gradients", f"{privacy['gradients']['mechanism']}: {privacy['gradients']['guarantee']}")
    table.add_row("neighbourhoods", f"{privacy['neighbourhoods']['mechanism']}: {privacy['neighbourhoods']['guarantee']}")
    return table


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
    """What joining is worth: test RMSE alone, federated, pooled."""
    table = Table(
        "party",
        "alone",
        "federated",
        "pooled",
        "gain",
        title="Lift (test RMSE of the same model, lower is better)",
        title_justify="left",
    )
    for row in [*lift["parties"], {"name": "overall", **lift["overall"]}]:
        if row["name"] == "overall":
            table.add_section()
        figures = [figure(row[key]) for key in ("alone", "federated", "pooled")]
        gain = f"{100 * (1 - row['federated'] / row['alone']):+.1f} %" if row["alone"] else "-"
        table.add_row(escape(row["name"]), *figures, gain, style="bold" if row["name"] == "overall" else "")
    return table


def figure(value: float | None) -> str:
    """A figure of merit; a dash where there was nothing to judge."""
    return "-" if value is None else f"{value:.4f}"


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1000
    raise AssertionError

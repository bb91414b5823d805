"""Progress and tables on the terminal. Progress goes to standard error, results to standard output."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from verfedgnn.training import Progress as RoundEvent


def error_console() -> Console:
    """Where progress and remarks go."""
    return Console(stderr=True, highlight=False)


class RoundProgress:
    """A bar with the round, the validation RMSE (last and best), the bytes so far and the time left."""

    def __init__(self, *, hidden: bool) -> None:
        console = error_console()
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
        if event.valid_rmse is not None:
            self.valid = f"RMSE {event.valid_rmse:.4f} (best {event.best_rmse:.4f})  "
        self.step("federation", event.round, event.rounds, f"{self.valid}{size(event.bytes)}")

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
    """What joining is worth: test RMSE with biases, alone, federated, pooled."""
    keys = ("biases", "alone", "federated", "pooled")
    table = Table(
        "party",
        *keys,
        "gain",
        title="Lift (test RMSE, lower is better)",
        title_justify="left",
        caption="biases: user and item means alone. alone, pooled: the same model without protection, on own and on all data.\n"
        "gain: federated against the better of biases and alone.",
        caption_justify="left",
    )
    for row in [*lift["parties"], {"name": "overall", **lift["overall"]}]:
        if row["name"] == "overall":
            table.add_section()
        known = [row[key] for key in ("biases", "alone") if row[key] is not None]
        gain = f"{100 * (1 - row['federated'] / min(known)):+.1f} %" if known else "-"
        figures = [figure(row[key]) for key in keys]
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

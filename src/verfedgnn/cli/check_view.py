"""What `data check` shows: problems with their places, and the distribution of ratings as bars."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.columns import Columns
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from verfedgnn.data.data_check import Checked, Common
from verfedgnn.data.number_parsing import quote_value
from verfedgnn.data.rating_distribution import Bars
from verfedgnn.data.ratings import format_count
from verfedgnn.data.row_problems import DataProblem

_WIDTH = 24
_EIGHTHS = " ▏▎▍▌▋▊▉"


def show_checked(console: Console, found: Checked) -> None:
    """One source: counts, problems, picture."""
    shape = found.shape
    console.print(f"[bold]{escape(found.name)}[/]  [dim]{escape(found.source)}[/]", soft_wrap=True)
    if shape is not None:
        counts = f"{format_count(shape.ratings, 'rating')} by {format_count(shape.users, 'user')} on {format_count(shape.items, 'item')}"
        span = f", {shape.first} to {shape.last}" if shape.first else ""
        share = float(f"{100 * shape.density:.2g}")  # two digits, and 100 without an exponent
        spread = f"{share:g} % of all pairs), {shape.lowest:g} to {shape.highest:g}, mean {shape.mean:.2f}"
        console.print(f"  {counts} ({spread}{span}", soft_wrap=True)
    for problem in found.problems:
        mark = "[bold red]error[/]  " if problem.fatal else "[yellow]warning[/]"
        console.print(f"  {mark} {escape(_sentence(problem, found.unit))}", soft_wrap=True)
    for note in found.notes:
        console.print(f"  [dim]note    {escape(note)}[/]", soft_wrap=True)
    if shape is not None:
        pictures = [
            ("ratings", shape.values),
            ("users by their ratings", shape.per_user),
            ("items by their ratings", shape.per_item),
        ]
        if shape.over_time:
            pictures.append(("ratings over time", shape.over_time))
        console.print(Columns([_bars(title, bars, console) for title, bars in pictures], padding=(1, 3)))
    verdict = "[bold green]usable[/]" if found.usable else "[bold red]not usable as it is[/]"
    console.print(f"  {verdict}\n", soft_wrap=True)


def show_common(console: Console, common: Common, found: list[Checked]) -> None:
    """Several sources: who is in all of them."""
    shares = ", ".join(
        f"{100 * common.users / max(1, len(each.users)):.0f} % of {each.name}'s" for each in found
    )
    console.print(
        f"[bold]in common[/]  {format_count(common.users, 'user')} in all {len(found)} ({escape(shares)})",
        soft_wrap=True,
    )
    if common.alike > common.users:
        more = f"{common.alike:,} would be if capitals did not matter; write ids in the same way everywhere"
        console.print(f"  [yellow]warning[/] {more}", soft_wrap=True)
    if not common.users:
        console.print(
            "  [bold red]error[/]   no user is in all of them; check that they write user ids in the same way",
            soft_wrap=True,
        )
    for one, other, items in common.items:
        text = f"{items:,} items are at both {one} and {other}; an item belongs to one party, drop it at one or prefix the ids"
        console.print(f"  [bold red]error[/]   {escape(text)}", soft_wrap=True)


def as_json(found: list[Checked], common: Common | None) -> dict[str, Any]:
    """The same for programs."""
    sources = [
        {
            "name": each.name,
            "source": each.source,
            "usable": each.usable,
            "unit": each.unit,
            "problems": [asdict(problem) for problem in each.problems],
            "notes": list(each.notes),
            "distribution": None if each.shape is None else asdict(each.shape),
        }
        for each in found
    ]
    usable = all(each.usable for each in found) and (common is None or common.usable)
    shared = (
        None
        if common is None
        else {"users": common.users, "users_ignoring_case": common.alike, "items": common.items}
    )
    return {"usable": usable, "sources": sources, "common": shared}


def _sentence(problem: DataProblem, unit: str) -> str:
    more = ", ..." if problem.count > len(problem.places) else ""
    values = problem.values or ("",) * len(problem.places)
    shown = (f" {quote_value(value)}" if value else "" for value in values)
    numbers = ", ".join(f"{place:,}{value}" for place, value in zip(problem.places, shown, strict=True))
    places = f" ({unit}{'s' if len(problem.places) > 1 else ''} {numbers}{more})" if problem.places else ""
    return f"{problem.text}{places}" + (f": {problem.remedy}" if problem.remedy else "")


def _bars(title: str, bars: Bars, console: Console) -> Table:
    table = Table(title=title, title_justify="left", box=None, show_header=False, padding=(0, 1, 0, 0))
    table.add_column(justify="right")
    table.add_column(style="cyan", width=_WIDTH)
    table.add_column(justify="right")
    most = max(count for _, count in bars)
    for label, count in bars:
        table.add_row(label, _bar(count / most, console), f"{count:,}")
    return table


def _bar(share: float, console: Console) -> str:
    if not console.encoding.lower().startswith("utf"):
        return "#" * round(share * _WIDTH)
    whole, part = divmod(round(share * _WIDTH * 8), 8)
    return "█" * whole + (_EIGHTHS[part] if part else "") or ("▏" if share else "")

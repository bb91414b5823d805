"""The output of `data check`: problems with their places, the distribution of ratings and the overlap of users."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from verfedgnn.core.option_names import option
from verfedgnn.data.data_check import Bars, CheckedSource, Conclusion, UserOverlap, foresee_training
from verfedgnn.data.rating_checks import DataProblem
from verfedgnn.data.ratings import format_count
from verfedgnn.reports import document
from verfedgnn.reports.document import Banner, Document, Points

_WIDTH = 24
_MOST_REGIONS = 16
"""Combinations of parties that are shown; the smaller ones are summed up."""
_MOST_COLUMNS = 8
"""Parties that get a column of their own in the picture of the overlap."""
_EIGHTHS = " ▏▎▍▌▋▊▉"


def show_checked(console: Console, found: CheckedSource) -> None:
    """Print one source: its counts, its problems and the distribution of its ratings."""
    shape = found.shape
    console.print(f"[bold]{escape(found.name)}[/]  [dim]{escape(found.source)}[/]", soft_wrap=True)
    if shape is not None:
        amounts = [
            format_count(shape.ratings, "rating"),
            format_count(shape.users, "user"),
            format_count(shape.items, "item"),
        ]
        counts = "{} by {} on {}".format(*amounts)
        span = f", {shape.first} to {shape.last}" if shape.first else ""
        spread = f"{shape.lowest:g} to {shape.highest:g}, mean {shape.mean:.2f}"
        console.print(f"  {counts}, {spread}{span}", soft_wrap=True)
    for problem in found.problems:
        mark = "[bold red]error[/]  " if problem.fatal else "[yellow]warning[/]"
        console.print(f"  {mark} {escape(_sentence(problem, found.unit))}", soft_wrap=True)
    for note in found.notes:
        console.print(f"  [dim]note    {escape(note)}[/]", soft_wrap=True)
    if shape is not None:
        console.print(_bars("ratings", shape.values, console))
    verdict = "[bold green]usable[/]" if found.usable else "[bold red]not usable[/]"
    console.print(f"  {verdict}\n", soft_wrap=True)


def show_overlap(console: Console, overlap: UserOverlap, found: list[CheckedSource]) -> None:
    """Print how many users are at exactly which parties, and how many take part under each rule."""
    console.print(_overlap_picture(overlap, [each.name for each in found], console))
    console.print(_rules_table(overlap))
    if overlap.shared_ignoring_case > overlap.shared:
        more = (
            f"{overlap.shared:,} users are at two or more parties, {overlap.shared_ignoring_case:,} if capitals did not matter:"
            " spell ids in the same way everywhere"
        )
        console.print(f"  [yellow]warning[/] {more}", soft_wrap=True)
    if not overlap.shared:
        text = "no user is at two parties: check that they spell user ids in the same way"
        console.print(f"  [bold red]error[/]   {text}", soft_wrap=True)
    for one, other, items in overlap.shared_items:
        text = (
            f"{format_count(items, 'item id')} at both {one} and {other}: they count as different items. If it is the same"
            " item, remove it at one party"
        )
        console.print(f"  [yellow]warning[/] {escape(text)}", soft_wrap=True)


def show_warnings(console: Console, warnings: list[str]) -> None:
    """Print what a training will meet."""
    for text in warnings:
        console.print(f"  [yellow]warning[/] {escape(text)}", soft_wrap=True)


def _overlap_picture(overlap: UserOverlap, names: list[str], console: Console) -> Table:
    """Return an UpSet plot: one row for each combination of parties, the largest first."""
    unicode = _is_unicode(console)
    mark, empty = ("●", "·") if unicode else ("x", ".")
    table = Table(
        title="users at exactly these parties", title_justify="left", box=None, padding=(0, 1, 0, 0)
    )
    table.add_column("users", justify="right")
    table.add_column("", style="cyan", width=_WIDTH)
    columns = len(names) <= _MOST_COLUMNS
    for name in names if columns else ["parties"]:
        table.add_column(escape(name), justify="center" if columns else "left", no_wrap=columns)
    most = max((region.users for region in overlap.regions), default=1)
    for region in overlap.regions[:_MOST_REGIONS]:
        marks = [mark if name in region.parties else empty for name in names]
        place = marks if columns else [escape(", ".join(region.parties))]
        table.add_row(f"{region.users:,}", _bar(region.users / most, console), *place)
    rest = overlap.regions[_MOST_REGIONS:]
    if rest:
        users = sum(region.users for region in rest)
        table.add_row(f"{users:,}", f"in {format_count(len(rest), 'other combination')}")
    return table


def _rules_table(overlap: UserOverlap) -> Table:
    table = Table(title="who takes part", title_justify="left", box=None, padding=(0, 2, 0, 0))
    table.add_column(option("users"))
    for name in ("users", "", "ratings", ""):
        table.add_column(name, justify="right")
    every_user, every_rating = overlap.count_from(1)
    for rule, (users, ratings) in overlap.count_rules().items():
        shares = [
            f"{100 * part / max(1, whole):.0f} %"
            for part, whole in ((users, every_user), (ratings, every_rating))
        ]
        table.add_row(rule, f"{users:,}", shares[0], f"{ratings:,}", shares[1])
    return table


def check_document(
    found: list[CheckedSource], overlap: UserOverlap | None, conclusion: Conclusion
) -> Document:
    """Return the result of a check as a document for a notebook: tables, problems, overlap and what a training will meet."""
    page = Document("Check")
    headline = "These ratings can be used." if conclusion.usable else "These ratings cannot be used yet."
    page.add(
        Banner("good" if conclusion.usable else "bad", headline, conclusion.text),
        document.Table(
            ["table", "ratings", "users", "items", "lowest", "highest", "mean", "usable"],
            [_shape_row(each) for each in found],
            "Tables of ratings",
            {"yes": "good", "no": "bad"},
        ),
        Points(
            [
                f"**{each.name}**, {'error' if problem.fatal else 'warning'}: {_sentence(problem, each.unit)}"
                for each in found
                for problem in each.problems
            ]
            + [f"**{each.name}**: {note}" for each in found for note in each.notes]
            + foresee_training(found, overlap)
        ),
    )
    if overlap is not None:
        rows = [
            [" and ".join(region.parties), f"{region.users:,}", f"{region.ratings:,}"]
            for region in overlap.regions[:_MOST_REGIONS]
        ]
        page.add(document.Table(["users at exactly", "users", "ratings"], rows, "Overlap of users"))
    return page


def _shape_row(found: CheckedSource) -> list[str]:
    shape = found.shape
    usable = "yes" if found.usable else "no"
    if shape is None:
        return [found.name, "", "", "", "", "", "", usable]
    counts = [f"{count:,}" for count in (shape.ratings, shape.users, shape.items)]
    return [found.name, *counts, f"{shape.lowest:g}", f"{shape.highest:g}", f"{shape.mean:.2f}", usable]


def build_json(
    found: list[CheckedSource], overlap: UserOverlap | None, conclusion: Conclusion
) -> dict[str, Any]:
    """Return the content of `--json`."""
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
    return {
        "usable": conclusion.usable,
        "sources": sources,
        "overlap": None if overlap is None else _overlap_json(overlap),
        "warnings": foresee_training(found, overlap),
        "conclusion": conclusion.text,
    }


def _overlap_json(overlap: UserOverlap) -> dict[str, Any]:
    return {
        "regions": [asdict(region) for region in overlap.regions],
        "rules": {
            rule: {"users": users, "ratings": ratings}
            for rule, (users, ratings) in overlap.count_rules().items()
        },
        "shared": overlap.shared,
        "shared_ignoring_case": overlap.shared_ignoring_case,
        "shared_items": overlap.shared_items,
    }


def _sentence(problem: DataProblem, unit: str) -> str:
    more = ", ..." if problem.count > len(problem.places) else ""
    numbers = ", ".join(f"{place:,}" for place in problem.places)
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
    if not _is_unicode(console):
        return "#" * round(share * _WIDTH)
    whole, part = divmod(round(share * _WIDTH * 8), 8)
    return "█" * whole + (_EIGHTHS[part] if part else "") or ("▏" if share else "")


def _is_unicode(console: Console) -> bool:
    return console.encoding.lower().startswith("utf")

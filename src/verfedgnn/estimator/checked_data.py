"""`check()`: what is wrong with tables of ratings, how their users overlap, and what a training will meet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from io import StringIO
from typing import Any, Literal

from rich.bar import Bar
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from verfedgnn.core.option_names import option, reading_table
from verfedgnn.data.data_check import (
    CheckedSource,
    UserOverlap,
    check_source,
    conclude,
    foresee,
    measure_overlap,
)
from verfedgnn.data.parties import name_sources
from verfedgnn.data.rating_checks import DataProblem
from verfedgnn.data.ratings import format_count
from verfedgnn.reports.console import SafeConsole

_MOST_REGIONS = 16
"""Combinations of parties that are shown; the smaller ones are summed up."""
_MOST_COLUMNS = 8
"""Parties that get a column of their own in the picture of the overlap."""


def check(data: Any, *, own: Mapping[str, Mapping[str, Any]] | None = None, **options: Any) -> DataCheck:
    """Check tables of ratings before a training: problems with their places, distributions, and the overlap of users.

    Args:
        data: One table per party, `{"film": frame, "books": "books.csv"}`, a data frame with a column "party", or one table.
        own: Options for single parties, by name: `{"books": {"columns": {"item": "isbn"}}}`.
        **options: Options for all tables, as in `fit`: columns, missing, duplicates, events, scale, catalogue.
    """
    sources, _, options = name_sources(data, options)
    read = {name: {**options, **(own or {}).get(name, {})} for name in sources}
    return check_sources(sources, read, named=isinstance(data, Mapping))


def check_sources(
    sources: Mapping[str, Any], options: Mapping[str, Mapping[str, Any]], *, named: bool = False
) -> DataCheck:
    """Check sources by name, each with its own options."""
    checked = []
    for name, source in sources.items():
        with reading_table(name if len(sources) > 1 else None):
            checked.append(check_source(name, source, **options[name]))
    return DataCheck(checked, named=named)


class DataCheck:
    """The result of `check`; notebooks and terminals show it."""

    def __init__(self, sources: list[CheckedSource], *, named: bool = False) -> None:
        self.sources = sources
        """The tables, with their problems, notes and distributions."""
        read = all(source.shape is not None for source in sources)
        self.overlap: UserOverlap | None = measure_overlap(sources) if len(sources) > 1 and read else None
        """How the users of several readable tables overlap; None for one table."""
        self.warnings = foresee(sources, self.overlap)
        """What a training will meet, each with its remedy."""
        self.usable, self.doubtful, self.conclusion = conclude(sources, self.overlap, named=named)
        """Whether these tables can be trained on together, whether a training may refuse them, and what it does or why it does not."""

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain values."""
        sources = [
            {
                "name": source.name,
                "source": source.source,
                "usable": source.usable,
                "unit": source.unit,
                "problems": [asdict(problem) for problem in source.problems],
                "notes": list(source.notes),
                "distribution": None if source.shape is None else asdict(source.shape),
            }
            for source in self.sources
        ]
        overlap = None
        if self.overlap is not None:
            counts = self.overlap.count_rules().items()
            rules = {rule: {"users": users, "ratings": ratings} for rule, (users, ratings) in counts}
            overlap = {**asdict(self.overlap), "rules": rules, "shared": self.overlap.shared}
        return {
            "usable": self.usable,
            "sources": sources,
            "overlap": overlap,
            "warnings": self.warnings,
            "conclusion": self.conclusion,
        }

    def show(self, console: Console) -> None:
        """Print the sources, their overlap and what a training will meet, without the conclusion."""
        for source in self.sources:
            _show_source(console, source)
        if self.overlap is not None:
            console.print(_overlap_picture(self.overlap, [source.name for source in self.sources]))
            console.print(_rules_table(self.overlap))
        for text in self.warnings:
            _say(console, "warning", text)

    def _console(self) -> Console:
        """Return a console that holds the whole result and prints nothing by itself."""
        look: dict[str, Any] = {"highlight": False, "force_jupyter": False, "force_terminal": False}
        console = SafeConsole(file=StringIO(), record=True, width=110, **look)
        self.show(console)
        console.print(self.conclusion, markup=False, soft_wrap=True)
        return console

    def __repr__(self) -> str:
        return self._console().export_text().rstrip()

    def _repr_html_(self) -> str:
        """Show the same in a notebook, in colour."""
        return self._console().export_html(
            inline_styles=True, code_format='<div class="verfedgnn"><pre>{code}</pre></div>'
        )


def _say(console: Console, kind: Literal["error", "warning", "note"], text: str) -> None:
    style = {"error": "bold red", "warning": "yellow", "note": "dim"}[kind]
    console.print(f"  [{style}]{kind:7}[/] {escape(text)}", soft_wrap=True)


def _show_source(console: Console, found: CheckedSource) -> None:
    """Print one source: its counts, its problems and the distribution of its ratings."""
    shape = found.shape
    console.print(f"[bold]{escape(found.name)}[/]  [dim]{escape(found.source)}[/]", soft_wrap=True)
    if shape is not None:
        likes = shape.likes == shape.ratings
        ratings = format_count(shape.ratings, "like" if likes else "rating")
        users = format_count(shape.users, "user")
        counts = f"{ratings} by {users} on {format_count(shape.items, 'item')}"
        span = f", {shape.first} to {shape.last}" if shape.first else ""
        spread = "" if likes else f", {shape.lowest:g} to {shape.highest:g}, mean {shape.mean:.2f}"
        console.print(f"  {counts}{spread}{span}", soft_wrap=True)
    for problem in found.problems:
        _say(console, "error" if problem.fatal else "warning", _sentence(problem, found.unit))
    for note in found.notes:
        _say(console, "note", note)
    if shape is not None and not likes:
        sides = [Column(justify="right"), Column(), Column(justify="right")]
        table = _plain_table("ratings", *sides, show_header=False)
        most = max(count for _, count in shape.values)
        for label, count in shape.values:
            table.add_row(label, _bar(count / most), f"{count:,}")
        console.print(table)
    verdict = "[bold green]usable[/]" if found.usable else "[bold red]not usable[/]"
    console.print(f"  {verdict}\n", soft_wrap=True)


def _overlap_picture(overlap: UserOverlap, names: list[str]) -> Table:
    """Return an UpSet plot: one row for each combination of parties, the largest first."""
    columns = len(names) <= _MOST_COLUMNS
    header = [Column(escape(name), justify="center", no_wrap=True) for name in names if columns]
    users, bars = Column("users", justify="right"), Column()
    table = _plain_table("users at exactly these parties", users, bars, *(header or [Column("parties")]))
    most = max((region.users for region in overlap.regions), default=1)
    for region in overlap.regions[:_MOST_REGIONS]:
        marks = ["●" if name in region.parties else "·" for name in names]
        place = marks if columns else [escape(", ".join(region.parties))]
        table.add_row(f"{region.users:,}", _bar(region.users / most), *place)
    if rest := overlap.regions[_MOST_REGIONS:]:
        count = sum(region.users for region in rest)
        table.add_row(f"{count:,}", f"in {format_count(len(rest), 'other combination')}")
    return table


def _rules_table(overlap: UserOverlap) -> Table:
    counts = [Column(name, justify="right") for name in ("users", "", "ratings", "")]
    table = _plain_table("who takes part", Column(option("users")), *counts, gap=2)
    everything = overlap.count_from(1)
    for rule, some in overlap.count_rules().items():
        cells = [(f"{n:,}", f"{100 * n / max(1, of):.0f} %") for n, of in zip(some, everything, strict=True)]
        table.add_row(rule, *cells[0], *cells[1])
    return table


def _plain_table(title: str, *columns: Column, gap: int = 1, show_header: bool = True) -> Table:
    """Return a table without lines."""
    look: dict[str, Any] = {"title_justify": "left", "box": None, "padding": (0, gap, 0, 0)}
    return Table(*columns, title=title, show_header=show_header, **look)


def _bar(share: float) -> Bar:
    return Bar(1, 0, share, width=24, color="cyan")


def _sentence(problem: DataProblem, unit: str) -> str:
    more = ", ..." if problem.count > len(problem.places) else ""
    numbers = ", ".join(f"{place:,}" for place in problem.places)
    places = f" ({unit}{'s' if len(problem.places) > 1 else ''} {numbers}{more})" if problem.places else ""
    return f"{problem.text}{places}" + (f": {problem.remedy}" if problem.remedy else "")

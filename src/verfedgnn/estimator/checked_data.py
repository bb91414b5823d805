"""`check()`: what is wrong with tables of ratings, how their users overlap, and what a training will meet."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from io import StringIO
from typing import Any

from verfedgnn.core.option_names import reading_table
from verfedgnn.data.data_check import (
    CheckedSource,
    Conclusion,
    UserOverlap,
    check_source,
    conclude,
    foresee_training,
    measure_overlap,
)
from verfedgnn.data.parties import name_sources
from verfedgnn.reports.check_view import build_json, check_document, show_checked, show_overlap, show_warnings
from verfedgnn.reports.console import SafeConsole


def check(data: Any, *, own: Mapping[str, Mapping[str, Any]] | None = None, **options: Any) -> DataCheck:
    """Check tables of ratings before a training: problems with their places, distributions, and the overlap of users.

    Args:
        data: One table per party, `{"film": frame, "books": "books.csv"}`, a data frame with a column "party", or one table.
        own: Options for single parties, by name: `{"books": {"columns": {"item": "isbn"}}}`.
        **options: Options for all tables, as in `fit`: columns, missing, duplicates, events, scale, catalogue.
    """
    sources, _, options = name_sources(data, options)
    found = []
    for name, source in sources.items():
        with reading_table(name if len(sources) > 1 else None):
            found.append(check_source(name, source, **{**options, **(own or {}).get(name, {})}))
    return DataCheck(found, named=isinstance(data, Mapping))


class DataCheck:
    """The result of `check`; notebooks and terminals show it."""

    def __init__(self, sources: list[CheckedSource], *, named: bool = False) -> None:
        self.sources = sources
        """The tables, with their problems, notes and distributions."""
        self._named = named

    @cached_property
    def overlap(self) -> UserOverlap | None:
        """How the users of several readable tables overlap; None for one table."""
        read = all(each.shape is not None for each in self.sources)
        return measure_overlap(self.sources) if len(self.sources) > 1 and read else None

    @property
    def usable(self) -> bool:
        """Whether these tables can be trained on together."""
        return self._conclusion.usable

    @property
    def warnings(self) -> list[str]:
        """What a training will meet, each with its remedy."""
        return foresee_training(self.sources, self.overlap)

    @property
    def conclusion(self) -> str:
        """What a training will do with these tables, or why it refuses them and what to do."""
        return self._conclusion.text

    @cached_property
    def _conclusion(self) -> Conclusion:
        return conclude(self.sources, self.overlap, named=self._named)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain values."""
        return build_json(self.sources, self.overlap, self._conclusion)

    def __repr__(self) -> str:
        text = StringIO()
        console = SafeConsole(
            file=text, width=110, highlight=False, force_jupyter=False, force_terminal=False
        )
        for each in self.sources:
            show_checked(console, each)
        if self.overlap is not None:
            show_overlap(console, self.overlap, self.sources)
        show_warnings(console, self.warnings)
        console.print(self.conclusion, markup=False, soft_wrap=True)
        return text.getvalue().rstrip()

    def _repr_html_(self) -> str:
        """Show the tables, their problems and the overlap in a notebook."""
        return check_document(self.sources, self.overlap, self._conclusion).fragment()

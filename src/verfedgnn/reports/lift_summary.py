"""The top of every document about a lift: the verdict, the figures that decide it, and one row for each kind of prediction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from verfedgnn.evaluation.verdict import NO, YES, deciding_figures, headline, verdict
from verfedgnn.reports.document import Banner, Document, Paragraph, Table
from verfedgnn.reports.lift_view import SHORT_HEADER, SHORT_NOTE, short_rows

NOT_JUDGED = (
    "This run has no models of the parties alone to compare with. Train with preset `best` and `--lift` "
    "(in Python: `verfedgnn.lift(run)`)."
)


def add_verdict(document: Document, lift: Mapping[str, Any] | None) -> None:
    """Add the verdict in words and colour, the summary, and a short table; or say that there is no verdict."""
    if lift is None:
        document.add(Banner("unclear", "Whether joining pays was not judged.", NOT_JUDGED))
        return
    tones: dict[str, Literal["good", "bad"]] = {YES: "good", NO: "bad"}
    document.add(
        Banner(tones.get(verdict(lift), "unclear"), headline(lift), deciding_figures(lift)),
        Table(SHORT_HEADER, short_rows(lift)),
        Paragraph(SHORT_NOTE),
        Paragraph(str(lift["summary"])),
    )


def lift_html(lift: Mapping[str, Any]) -> str:
    """Return the verdict and the short table of a lift as HTML for a notebook."""
    document = Document("Lift")
    add_verdict(document, lift)
    return document.fragment()

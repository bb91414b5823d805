"""How far the data of a run are from those of the run before it, as a section of its reports."""

from __future__ import annotations

from verfedgnn.reports.document import Document, Heading, Paragraph, Table
from verfedgnn.runs.run import Run


def add_drift(document: Document, run: Run) -> None:
    """Add the drift of every party since the run before, if one was named."""
    before = run.metrics.get("after")
    if before is None:
        return
    rows = [
        [
            name,
            "-" if drift["rating_distance"] is None else f"{100 * drift['rating_distance']:.1f} %",
            f"{100 * drift['unknown_users']:.1f} %",
            f"{100 * drift['unknown_items']:.1f} %",
        ]
        for name, drift in before["drift"].items()
    ]
    document.add(
        Heading("Since the run before"),
        Paragraph(
            f"The run before has the public parameters `{before['public'][:16]}`. `verfedgnn diff EARLIER LATER` compares two runs."
        ),
        Table(
            ["party", "ratings with another value", "new users", "new items"],
            rows,
            "Drift of the parties' data",
        ),
    )

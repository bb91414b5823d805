"""A run as HTML for a notebook: verdict, table and learning curve."""

from __future__ import annotations

from verfedgnn.evaluation.lift import quick_lift
from verfedgnn.reports.document import Document, Paragraph
from verfedgnn.reports.lift_report import add_groups, add_verdict
from verfedgnn.reports.run_report import accuracy_table, describe_data, training_curves
from verfedgnn.runs.run import Run


def run_html(run: Run) -> str:
    """Return the verdict, groups of customers, the accuracy of each party and the learning curves as HTML for a notebook.

    The verdict is that of `run.metrics["lift"]` or, as in the report, of the models that the run holds. Nothing is trained.
    """
    document = Document("Run")
    document.add(Paragraph(describe_data(run)))
    lift = run.metrics.get("lift") or quick_lift(run)
    add_verdict(document, lift)
    if lift is not None:
        add_groups(document, lift)
    document.add(accuracy_table(run.metrics), *training_curves(run)[: 1 if run.lists is None else 2])
    return document.fragment()

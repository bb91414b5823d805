"""What changed from the run that a run started from, as a section of its reports."""

from __future__ import annotations

import json
from pathlib import Path

from verfedgnn.core.errors import RunError
from verfedgnn.evaluation.matched_runs import compare_runs, in_both_tests, match_parties
from verfedgnn.evaluation.run_difference import compare_data
from verfedgnn.reports.difference_view import figure_tables
from verfedgnn.reports.document import Document, Heading, Paragraph, Table
from verfedgnn.runs.run import Run


def add_ancestor(document: Document, run: Run, folder: Path) -> None:
    """Add what changed from the run that `run` started from, if it did and that run is beside `folder`."""
    ancestor = run.metrics.get("from")
    if ancestor is None:
        return
    document.add(Heading("Since the run it started from"))
    place = _find_run(folder, ancestor["public"])
    if place is None:
        document.add(
            Paragraph(
                f"This run started from one with the public parameters `{ancestor['public'][:16]}`, which is not in the same "
                "folder. `verfedgnn diff EARLIER LATER` compares two runs."
            )
        )
        return
    before = Run.load(place, added=False)
    parties = match_parties(before, run)
    data = compare_data(before, run, parties)
    changes = [
        f"{party['name']}: {party['ratings']['added']:,} ratings, {party['users']['added']:,} users and "
        f"{party['items']['added']:,} items are new, {party['ratings']['removed']:,} ratings are gone."
        for party in data["parties"]
    ]
    joined = [f"New parties: {', '.join(data['parties_added'])}."] if data["parties_added"] else []
    document.add(Paragraph(f"It started from `{place.name}`. {' '.join([*changes, *joined])}"))
    for table in figure_tables(
        compare_runs(before, run, parties, in_both_tests), "Test ratings of both runs"
    ):
        document.add(Table(table.header, table.rows, table.title), Paragraph(table.note))


def _find_run(folder: Path, public: str) -> Path | None:
    """Return the finished run beside `folder` that has these public parameters."""
    for file in sorted(folder.resolve().parent.glob("*/metrics.json")):
        try:
            found = json.loads(file.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise RunError(f"{file} cannot be read ({error}); restore or remove the folder") from None
        if isinstance(found, dict) and found.get("public") == public and not file.parent.is_symlink():
            return file.parent
    return None

"""The report of a bench: every question with its measurements, and what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from verfedgnn.reports.document import Document, Heading, Paragraph, Points
from verfedgnn.research.bench.aims import aims
from verfedgnn.research.bench.bench_suite import BenchScope, Question
from verfedgnn.research.bench.task_queue import TaskRecords


def bench_document(questions: Sequence[Question], scope: BenchScope, out: Path) -> Document:
    """Build the report, to be written next to the folder `out`, which holds its pictures and records."""
    records = TaskRecords(out)
    found = {task.name: records.get(task) for question in questions for task in question.tasks(scope)}
    known = {name: record for name, record in found.items() if record is not None}
    figures = {name: record["figures"] for name, record in known.items() if "figures" in record}
    document = Document("What rounds cost and how that grows")
    if scope.quick:
        document.add(
            Paragraph(
                "**A quick bench** with small sizes and short trainings. Its figures only show that everything works."
            )
        )
    document.add(
        Paragraph(
            "Made by `verfedgnn bench`. The main figure is **CPU seconds with one thread**, which other load on the machine "
            "disturbs least; wall seconds come from a shared machine. Every measurement has its own process. Ratios are within "
            "one process, except those to Cornac. The command, arguments, commit and machine of each figure are in "
            f"`{out.name}/records`."
        )
    )
    machines = sorted({_machine(record["machine"]) for record in known.values() if "machine" in record})
    commits = sorted({str(record["commit"]) for record in known.values() if "commit" in record})
    document.add(Points([*machines, f"commits {', '.join(commits)}; seed 0"]) if known else None)
    document.add(*([] if scope.quick else aims(figures)))
    for question in questions:
        names = [task.name for task in question.tasks(scope)]
        if not any(name in known for name in names):
            continue
        document.add(Heading(question.title), *question.answer(figures, out.name))
        missing = [f"{name}: {_reason(known.get(name))}" for name in names if name not in figures]
        if missing:
            document.add(Paragraph("Not measured:"), Points(missing))
    return document


def _machine(about: dict[str, object]) -> str:
    return f"{about['processor']}, {about['cores']} cores, Python {about['python']}, torch {about['torch']}"


def _reason(record: dict[str, str] | None) -> str:
    return "not yet measured" if record is None else record["failed"]

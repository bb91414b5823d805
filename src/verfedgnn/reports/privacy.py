"""What a run guarantees, as a section of any document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verfedgnn.reports.document import Document, Heading, Paragraph, Points, Table


def add_guarantees(document: Document, privacy: Mapping[str, Any]) -> None:
    """Guarantees by kind of release, their assumptions, and the events they follow from."""
    rows = []
    for name in ("gradients", "neighbourhoods", "validation"):
        part = privacy[name]
        rows.append([name, part["mechanism"], f"{part['releases']:,}" if "releases" in part else "0", part["guarantee"],
                     part.get("neighbouring", "–")])  # fmt: skip
    document.add(
        Heading("What is guaranteed"),
        Table(["release", "mechanism", "times", "guarantee", "between which inputs"], rows),
        Points([f"Masks: {privacy['masking']}.", f"Randomness: {privacy['randomness']}.",
                "All guarantees assume participants who follow the protocol; each party adds the noise it promised."]),
    )  # fmt: skip
    events = privacy.get("events")
    if events:
        about = ("what", "count", "event")
        rows = [[e["what"], f"{e['count']:,}", str(e["event"] or "none: not differential privacy"),
                 ", ".join(f"{k} {v:.4g}" for k, v in e.items() if k not in about)] for e in events]  # fmt: skip
        document.add(
            Paragraph("As events for an accountant (`dp-accounting`); composed, they give the figures above."),
            Table(["release", "times", "event", "parameters"], rows),
        )

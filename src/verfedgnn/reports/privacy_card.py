"""What a run guarantees, as a section of any document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verfedgnn.reports.document import Document, Heading, Paragraph, Points, Table


def guarantees(privacy: Mapping[str, Any]) -> list[dict[str, str]]:
    """Of each kind of release what is guaranteed, in words."""
    return [
        {
            "release": name,
            "mechanism": privacy[name]["mechanism"],
            "times": f"{privacy[name].get('releases', 0):,}",
            "guarantee": privacy[name]["guarantee"],
            "neighbouring": privacy[name].get("neighbouring", "–"),
        }
        for name in ("gradients", "neighbourhoods", "validation")
    ]


def assumptions(privacy: Mapping[str, Any]) -> list[str]:
    """What the guarantees rest on, as sentences."""
    return [
        f"Masks: {privacy['masking']}.",
        f"Randomness: {privacy['randomness']}.",
        "All guarantees assume participants who follow the protocol; each party adds the noise it promised.",
    ]


def add_guarantees(document: Document, privacy: Mapping[str, Any]) -> None:
    """Guarantees by kind of release, their assumptions, and the events they follow from."""
    rows = [list(row.values()) for row in guarantees(privacy)]
    document.add(
        Heading("What is guaranteed"),
        Table(["release", "mechanism", "times", "guarantee", "between which inputs"], rows),
        Points(assumptions(privacy)),
    )
    events = privacy.get("events")
    if events:
        about = ("what", "count", "event")
        rows = [[e["what"], f"{e['count']:,}", str(e["event"] or "none: not differential privacy"),
                 ", ".join(f"{k} {v:.4g}" for k, v in e.items() if k not in about)] for e in events]  # fmt: skip
        document.add(
            Paragraph(
                "As events for an accountant (`dp-accounting`); composed, they give the figures above."
            ),
            Table(["release", "times", "event", "parameters"], rows),
        )

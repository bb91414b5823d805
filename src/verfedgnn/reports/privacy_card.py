"""The privacy guarantees of a run, as a section of any document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verfedgnn.reports.document import Fold, Heading, Paragraph, Points, Table


def add_guarantees(document: Fold, privacy: Mapping[str, Any], title: str = "Privacy guarantees") -> None:
    """Add the guarantees, their assumptions, and the privacy events from which they are computed."""
    rows = []
    for name in ("gradients", "neighbourhoods", "validation"):
        part = privacy[name]
        times, neighbours = f"{part.get('releases', 0):,}", part.get("neighbouring", "–")
        rows.append([name, part["mechanism"], times, part["guarantee"], neighbours])
    persons = privacy.get("persons")
    if persons:
        together = "everything together"
        rows.append([together, "composed", "–", persons["guarantee"], persons["neighbouring"]])
    document.add(
        Heading(title),
        Table(["release", "mechanism", "times", "guarantee", "neighbouring inputs"], rows, title),
        Points(
            [
                f"Masks: {privacy['masking']}.",
                f"Randomness: {privacy['randomness']}.",
                "All guarantees assume that the participants follow the protocol and that each party adds the noise it promised.",
            ]
        ),
    )
    if privacy.get("sent"):
        fields = [list(row.values()) for row in privacy["sent"]]
        document.add(
            Paragraph("Every field of a message that leaves a party, and how it is protected."),
            Table(["message", "field", "mechanism"], fields, f"{title}: fields sent"),
        )
    if privacy.get("events"):
        events = [_describe_event(**event) for event in privacy["events"]]
        document.add(
            Paragraph(
                "The releases as events for a privacy accountant (`dp-accounting`). Composed, they give the figures above."
            ),
            Table(["release", "times", "event", "parameters"], events, f"{title}: events"),
        )


def _describe_event(what: str, count: int, event: str | None, **parameters: float) -> list[str]:
    shown = ", ".join(f"{name} {value:.4g}" for name, value in parameters.items())
    return [what, f"{count:,}", event or "none: not differential privacy", shown]

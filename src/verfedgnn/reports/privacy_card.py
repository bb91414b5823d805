"""The privacy guarantees of a run, as a section of any document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verfedgnn.reports.document import Fold, Heading, Paragraph, Points, Table


def list_guarantees(privacy: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the mechanism, count and guarantee of each kind of release, in words."""
    found = [
        {
            "release": name,
            "mechanism": privacy[name]["mechanism"],
            "times": f"{privacy[name].get('releases', 0):,}",
            "guarantee": privacy[name]["guarantee"],
            "neighbouring": privacy[name].get("neighbouring", "–"),
        }
        for name in ("gradients", "neighbourhoods", "validation")
    ]
    persons = privacy.get("persons")
    if persons:
        found.append(
            {
                "release": "everything together",
                "mechanism": "composed",
                "times": "–",
                "guarantee": persons["guarantee"],
                "neighbouring": persons["neighbouring"],
            }
        )
    return found


def list_assumptions(privacy: Mapping[str, Any]) -> list[str]:
    """Return the assumptions of the guarantees, as sentences."""
    return [
        f"Masks: {privacy['masking']}.",
        f"Randomness: {privacy['randomness']}.",
        "All guarantees assume that the participants follow the protocol and that each party adds the noise it promised.",
    ]


def add_guarantees(document: Fold, privacy: Mapping[str, Any], title: str = "Privacy guarantees") -> None:
    """Add the guarantees, their assumptions, and the privacy events from which they are computed."""
    rows = [list(row.values()) for row in list_guarantees(privacy)]
    document.add(
        Heading(title),
        Table(["release", "mechanism", "times", "guarantee", "neighbouring inputs"], rows, title),
        Points(list_assumptions(privacy)),
    )
    sent = privacy.get("sent")
    if sent:
        document.add(
            Paragraph("Every field of a message that leaves a party, and how it is protected."),
            Table(
                ["message", "field", "mechanism"],
                [list(row.values()) for row in sent],
                f"{title}: fields sent",
            ),
        )
    events = privacy.get("events")
    if events:
        document.add(
            Paragraph(
                "The releases as events for a privacy accountant (`dp-accounting`). Composed, they give the figures above."
            ),
            Table(
                ["release", "times", "event", "parameters"],
                [_describe_event(event) for event in events],
                f"{title}: events",
            ),
        )


def _describe_event(event: Mapping[str, Any]) -> list[str]:
    parameters = {name: value for name, value in event.items() if name not in ("what", "count", "event")}
    return [
        event["what"],
        f"{event['count']:,}",
        str(event["event"] or "none: not differential privacy"),
        ", ".join(f"{name} {value:.4g}" for name, value in parameters.items()),
    ]

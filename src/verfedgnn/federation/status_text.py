"""Values of a federation's status as text. This module does not load torch, so that `verfedgnn status` is fast."""

from __future__ import annotations

from typing import Any

FACTS = (
    ("training of", "stage"),
    ("state", "state"),
    ("waits for", "waits_for"),
    ("since", "waits_since"),
    ("round", "round"),
    ("of", "rounds"),
    ("validation error", "valid_error"),
    ("best", "best_error"),
    ("seconds per round", "seconds_per_round"),
    ("seconds left", "seconds_left"),
    ("restarted trips", "repeats"),
    ("epsilon spent", "epsilon_spent"),
)
"""Labels and keys of the status, in the order in which they are shown."""


def presence(party: dict[str, Any]) -> str:
    """Return where a party is: stalled (owes an answer), here (takes part), slow, joined (waits for others) or away."""
    return next((state for state in ("stalled", "here", "slow", "joined") if party.get(state)), "away")


def format_heard(status: dict[str, Any], party: dict[str, Any]) -> str:
    """Return how long before the status the last message of a party arrived; a dash if none did."""
    heard = party.get("heard")
    return "–" if heard is None else _format_age(status, heard)


def _format_age(status: dict[str, Any], moment: float) -> str:
    return f"{max(0.0, status.get('updated', moment) - moment):,.0f} s ago"


def format_value(status: dict[str, Any], key: str) -> str:
    """Return a value of the status as text; a dash if it is missing."""
    value = status.get(key)
    if value is None:
        return "–"
    if key == "waits_since":
        return _format_age(status, value)
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "–"
    return f"{value:,.4g}" if isinstance(value, float) else str(value)

"""A federation's status for people; without torch, so that a look at it is cheap."""

from __future__ import annotations

from typing import Any


def presence(party: dict[str, Any]) -> str:
    """Of a party: here (takes part), slow, joined (waits for others), away."""
    return next((state for state in ("here", "slow", "joined") if party.get(state)), "away")


def format_value(status: dict[str, Any], key: str) -> str:
    """A value of the status for people."""
    value = status.get(key)
    return "–" if value is None else f"{value:,.4g}" if isinstance(value, float) else str(value)

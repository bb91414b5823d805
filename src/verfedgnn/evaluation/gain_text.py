"""Gains in words: one format for per cent, intervals and signs, on terminals, in reports and on pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from verfedgnn.evaluation.chance import FEWEST_USERS

MOST_DIGITS = 2
"""Largest number of decimals of a gain in per cent."""
MOST_NAMES = 5
"""Largest number of names in a sentence."""


def format_percent(value: float, low: float, high: float, unit: str = "%") -> str:
    """Format a gain with its interval, such as `+12.2 % (+11.2 to +13.3)`.

    There is one decimal, and a second one if an end of the interval that is not 0 would be printed as 0. Positive numbers have
    a plus, 0 has no sign, and a gain that is 0 for everybody has no interval.
    """
    if low == high == 0:
        return f"0 {unit}"
    digits = 1 if all(round(end, 1) or not end for end in (low, high)) else MOST_DIGITS
    gain, first, last = (format_signed(number, digits) for number in (value, low, high))
    return f"{gain} {unit} ({first} to {last})"


def format_interval(row: Mapping[str, Any]) -> str:
    """Format the gain of a row with cases, also of few users."""
    found = row["gain"]
    return format_percent(found["percent"], found["low_percent"], found["high_percent"])


def format_gain(row: Mapping[str, Any]) -> str:
    """Format the gain of a row of a table; with too few users it becomes a dash."""
    return format_interval(row) if row["gain"] and row["users"] >= FEWEST_USERS else "-"


def join_names(names: Sequence[str]) -> str:
    """Return names as part of a sentence, such as `a, b and c`; the last of many names are counted."""
    shown = list(names)
    if len(shown) > MOST_NAMES:
        shown = [*shown[: MOST_NAMES - 1], f"{len(shown) - MOST_NAMES + 1} more"]
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def format_signed(number: float, digits: int = 1) -> str:
    """Format a number with its sign; 0, also after rounding, has none."""
    rounded = round(number, digits) + 0.0  # without a negative zero
    return f"{rounded:+.{digits}f}" if rounded else f"{0:.{digits}f}"

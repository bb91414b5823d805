"""Numbers formatted for people."""

from __future__ import annotations


def format_metric(value: float | None) -> str:
    """Format a metric with four decimals; None, for a metric without data, becomes a dash."""
    return "-" if value is None else f"{value:.4f}"


def format_duration(seconds: float) -> str:
    """Format a duration, such as `2 min 05 s`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def format_size(count: float) -> str:
    """Format a number of bytes, such as `1.5 MB`."""
    if count < 1000:
        return f"{count:,.0f} B"
    for unit in ("kB", "MB"):
        count /= 1000
        if count < 1000:
            return f"{count:,.1f} {unit}"
    return f"{count / 1000:,.1f} GB"

"""Structured log lines of a federation: an event in plain words, and fields. They hold no ids, ratings or content."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from verfedgnn.core.printable import make_printable

EVENTS = logging.getLogger("verfedgnn.federation")
"""Logger of all events."""
_LONGEST_TEXT = 300
_LONGEST_LIST = 100


def log_event(event: str, *, level: int = logging.INFO, **fields: Any) -> None:
    """Log an event. Fields that are None are left out; text, which a peer may have written, is made printable."""
    shown = {key: _shorten(value) for key, value in fields.items() if value is not None}
    EVENTS.log(level, event, extra={"fields": shown})


def log_warning(event: str, **fields: Any) -> None:
    """Log an event that an operator should look at."""
    log_event(event, level=logging.WARNING, **fields)


def _shorten(value: Any) -> Any:
    """Return `value` shortened and without characters that could break a log line or a terminal."""
    if isinstance(value, str):
        return make_printable(value[:_LONGEST_TEXT]).replace("\n", " ")
    if isinstance(value, list | tuple):
        return [_shorten(part) for part in value[:_LONGEST_LIST]]
    return round(value, 6) if isinstance(value, float) else value


class JsonLines(logging.Formatter):
    """Log lines for programs: one JSON object with time (UTC), level, event and fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the JSON object of a record."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        head = {"time": time, "level": record.levelname.lower(), "event": record.getMessage()}
        return json.dumps(head | getattr(record, "fields", {}))


class TextLines(logging.Formatter):
    """Log lines for people: local time, event, fields; warnings are marked with `!`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        time = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        mark = "! " if record.levelno >= logging.WARNING else ""
        return f"{time}  {mark}{event_text(record.getMessage(), getattr(record, 'fields', {}))}"


def event_text(event: str, fields: Mapping[str, Any]) -> str:
    """Return an event and its fields as one line."""
    return event + "".join(f"  {key}={_format_field(value)}" for key, value in fields.items())


def configure_log(*, as_json: bool, quiet: bool) -> None:
    """Send events to standard error; with `quiet`, warnings only."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if as_json else TextLines())
    EVENTS.handlers = [handler]
    EVENTS.propagate = False
    EVENTS.setLevel(logging.WARNING if quiet else logging.INFO)


def _format_field(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return f"{value:.5g}" if isinstance(value, float) else str(value)

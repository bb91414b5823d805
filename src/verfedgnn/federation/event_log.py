"""What happened, as structured log lines: an event in plain words and fields. Names, numbers and reasons; nobody's data."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

_LOG = logging.getLogger("verfedgnn.federation")
_LONGEST = 300


def log_event(event: str, *, level: int = logging.INFO, **fields: Any) -> None:
    """Log an event; fields may hold what a peer wrote, which is cut and made printable."""
    _LOG.log(
        level,
        event,
        extra={"fields": {key: plain(value) for key, value in fields.items() if value is not None}},
    )


def log_warning(event: str, **fields: Any) -> None:
    """Log something an operator should look at."""
    log_event(event, level=logging.WARNING, **fields)


def plain(value: Any) -> Any:
    """A value that cannot break a log line or a terminal."""
    if isinstance(value, str):
        return "".join(c if c.isprintable() else "?" for c in value[:_LONGEST])
    if isinstance(value, list | tuple):
        return [plain(part) for part in value[:100]]
    return round(value, 6) if isinstance(value, float) else value


class JsonLines(logging.Formatter):
    """One JSON object a line: time (UTC), level, event, fields."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        head = {"time": time, "level": record.levelname.lower(), "event": record.getMessage()}
        return json.dumps(head | getattr(record, "fields", {}))


class Plain(logging.Formatter):
    """For people: time, event, fields."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        time = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        fields = "  ".join(f"{key}={_shown(value)}" for key, value in getattr(record, "fields", {}).items())
        mark = "! " if record.levelno >= logging.WARNING else ""
        return f"{time}  {mark}{record.getMessage()}" + (f"  {fields}" if fields else "")


def _shown(value: Any) -> str:
    return (
        ",".join(map(str, value))
        if isinstance(value, list)
        else f"{value:.5g}"
        if isinstance(value, float)
        else str(value)
    )


def configure_log(*, as_json: bool, quiet: bool) -> None:
    """Send events to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if as_json else Plain())
    _LOG.handlers, _LOG.propagate = [handler], False
    _LOG.setLevel(logging.WARNING if quiet else logging.INFO)

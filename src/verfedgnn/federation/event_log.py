"""Structured log lines of a federation: an event in plain words, and fields. They hold no ids, ratings or content."""

from __future__ import annotations

import io
import json
import logging
import sys
import time
import traceback
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TextIO, cast

from verfedgnn.core.option_names import make_printable

EVENTS = logging.getLogger("verfedgnn.federation")
"""Logger of all events."""
_LONGEST_TEXT = 300
_LONGEST_LIST = 100
_REPEAT_SECONDS = 60.0


def log_event(event: str, **fields: Any) -> None:
    """Log an event. Fields that are None are left out; text, which a peer may have written, is made printable."""
    EVENTS.info(event, extra=_make_extra(fields))


def log_warning(event: str, **fields: Any) -> None:
    """Log an event that an operator should look at."""
    EVENTS.warning(event, extra=_make_extra(fields))


def _make_extra(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"fields": {key: _shorten(value) for key, value in fields.items() if value is not None}}


def _shorten(value: Any) -> Any:
    """Return `value` shortened and without characters that could break a log line or a terminal."""
    if isinstance(value, str):
        return make_printable(value[:_LONGEST_TEXT]).replace("\n", " ")
    if isinstance(value, list | tuple):
        return [_shorten(part) for part in value[:_LONGEST_LIST]]
    return round(value, 6) if isinstance(value, float) else value


class RepeatedWarning:
    """Log lines on one event: each reason at once, then at most once a minute with the number of times."""

    def __init__(self, event: str) -> None:
        self.event = event
        self._logged: dict[str, float] = {}
        self._since: Counter[str] = Counter()

    def __call__(self, reason: str) -> bool:
        """Note that the event happened; return whether it was logged."""
        self._since[reason] += 1
        now = time.monotonic()
        due = now - self._logged.get(reason, -_REPEAT_SECONDS) >= _REPEAT_SECONDS
        if due:
            self._logged[reason] = now
            log_warning(self.event, reason=reason, times=self._since.pop(reason))
        return due


class EventLines(logging.Formatter):
    """Log lines: JSON objects with time (UTC), level, event and fields, or text with the local time, where `!` marks warnings."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self.as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        event, fields = record.getMessage(), getattr(record, "fields", {})
        if self.as_json:
            when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
            return json.dumps({"time": when, "level": record.levelname.lower(), "event": event} | fields)
        moment = datetime.fromtimestamp(record.created).strftime("%Y-%m-%d %H:%M:%S")
        return f"{moment}  {'! ' if record.levelno >= logging.WARNING else ''}{event_text(event, fields)}"


def event_text(event: str, fields: Mapping[str, Any]) -> str:
    """Return an event and its fields as one line."""
    return event + "".join(f"  {key}={_format_field(value)}" for key, value in fields.items())


def _format_field(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return f"{value:.5g}" if isinstance(value, float) else str(value)


class _PlainText(io.TextIOBase):
    """A stream that logs each line of plain text, such as an error of the command."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._begun = ""

    def write(self, text: str) -> int:
        """Log the lines that `text` completes."""
        *lines, self._begun = (self._begun + text).split("\n")
        for line in filter(str.strip, lines):
            level = next((name for name in ("error", "warning") if line.startswith(f"{name}:")), "info")
            number = logging.getLevelNamesMapping()[level.upper()]
            EVENTS.log(number, line.removeprefix(f"{level}: "))
        return len(text)


def configure_log(*, as_json: bool, level: str) -> None:
    """Send events of a level and above to standard error; with `as_json`, all else that is written there is JSON, too."""
    stream = sys.stderr.stream if isinstance(sys.stderr, _PlainText) else sys.stderr
    handler = logging.StreamHandler(stream)
    handler.setFormatter(EventLines(as_json=as_json))
    EVENTS.handlers = [handler]
    EVENTS.propagate = False
    EVENTS.setLevel(level.upper())
    if as_json:
        sys.stderr = cast(TextIO, _PlainText(stream))
        sys.excepthook = lambda *error: EVENTS.critical("".join(traceback.format_exception(*error)))

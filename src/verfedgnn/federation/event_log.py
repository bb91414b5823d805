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
    _log(logging.INFO, event, fields)


def log_warning(event: str, **fields: Any) -> None:
    """Log an event that an operator should look at."""
    _log(logging.WARNING, event, fields)


def _log(level: int, event: str, fields: Mapping[str, Any]) -> None:
    shown = {key: _shorten(value) for key, value in fields.items() if value is not None}
    EVENTS.log(level, event, extra={"fields": shown})


def _shorten(value: Any) -> Any:
    """Return `value` shortened and without characters that could break a log line or a terminal."""
    if isinstance(value, str):
        return make_printable(value[:_LONGEST_TEXT]).replace("\n", " ")
    if isinstance(value, list | tuple):
        return [_shorten(part) for part in value[:_LONGEST_LIST]]
    return round(value, 6) if isinstance(value, float) else value


class FailureLog:
    """Log lines on failed connections: each reason at once, then at most once a minute with the number of times."""

    def __init__(self) -> None:
        self._logged: dict[str, float] = {}
        self._since: Counter[str] = Counter()

    def __call__(self, reason: str) -> None:
        """Note a failure."""
        self._since[reason] += 1
        now = time.monotonic()
        if now - self._logged.get(reason, -_REPEAT_SECONDS) >= _REPEAT_SECONDS:
            self._logged[reason] = now
            log_warning("connection failed", reason=reason, times=self._since.pop(reason))


class JsonLines(logging.Formatter):
    """Log lines for programs: one JSON object with time (UTC), level, event and fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the JSON object of a record."""
        level = record.levelname.lower()
        head = {"time": _utc(record.created), "level": level, "event": record.getMessage()}
        return json.dumps(head | getattr(record, "fields", {}))


class TextLines(logging.Formatter):
    """Log lines for people: local time, event, fields; warnings are marked with `!`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        moment = datetime.fromtimestamp(record.created).strftime("%Y-%m-%d %H:%M:%S")
        mark = "! " if record.levelno >= logging.WARNING else ""
        return f"{moment}  {mark}{event_text(record.getMessage(), getattr(record, 'fields', {}))}"


def event_text(event: str, fields: Mapping[str, Any]) -> str:
    """Return an event and its fields as one line."""
    return event + "".join(f"  {key}={_format_field(value)}" for key, value in fields.items())


class _PlainText(io.TextIOBase):
    """A stream that writes each line of plain text, such as an error of the command, as a JSON object to another stream."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._begun = ""

    def write(self, text: str) -> int:
        """Write the lines that `text` completes."""
        *lines, self._begun = (self._begun + text).split("\n")
        for line in filter(str.strip, lines):
            level = next((name for name in ("error", "warning") if line.startswith(f"{name}:")), "info")
            head = {"time": _utc(time.time()), "level": level, "event": line.removeprefix(f"{level}: ")}
            self.stream.write(json.dumps(head) + "\n")
        return len(text)

    def flush(self) -> None:
        """Flush the other stream."""
        self.stream.flush()


def configure_log(*, as_json: bool, level: str) -> None:
    """Send events of a level and above to standard error; with `as_json`, all else that is written there is JSON, too."""
    stream = sys.stderr.stream if isinstance(sys.stderr, _PlainText) else sys.stderr
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines() if as_json else TextLines())
    EVENTS.handlers = [handler]
    EVENTS.propagate = False
    EVENTS.setLevel(level.upper())
    if as_json:
        sys.stderr = cast(TextIO, _PlainText(stream))
        sys.excepthook = lambda *error: EVENTS.critical("".join(traceback.format_exception(*error)))


def _utc(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds")


def _format_field(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return f"{value:.5g}" if isinstance(value, float) else str(value)

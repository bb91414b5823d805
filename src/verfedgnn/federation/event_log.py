"""Structured log lines of a federation: an event in plain words, and fields. They hold no ids, ratings or content."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from verfedgnn.core.printable import make_printable

EVENTS = logging.getLogger("verfedgnn.federation")
"""Logger of all events."""
FIRST_ROUNDS = 2
"""Rounds before those from which the cost is expected: neighbourhoods are 0 in them, which takes few bytes."""
MEASURED_ROUNDS = 5
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


class CostOutlook:
    """Measures a few rounds and logs the expected time and bytes of all rounds, once.

    A member that starts again within these rounds logs nothing.
    """

    def __init__(self, stage: str, *, stops_early: bool) -> None:
        self.stage = stage
        self.stops_early = "if the validation error stops falling" if stops_early else None
        self._mark: tuple[float, int] | None = None

    def note_round(self, round: int, rounds: int, sent: int, now: float | None = None) -> None:
        """Note that a round of `rounds` is over, after `sent` bytes in both directions."""
        moment = time.monotonic() if now is None else now
        if round == FIRST_ROUNDS:
            self._mark = (moment, sent)
        elif round == FIRST_ROUNDS + MEASURED_ROUNDS and self._mark is not None:
            each = (rounds - round) / MEASURED_ROUNDS
            minutes = each * (moment - self._mark[0]) / 60
            size = (sent + each * (sent - self._mark[1])) / 1e6
            about: dict[str, Any] = {"stage": self.stage, "rounds": rounds, "minutes_left": minutes}
            log_event("expected", **about, megabytes_in_all=size, stops_early=self.stops_early)


class JsonLines(logging.Formatter):
    """Log lines for programs: one JSON object with time (UTC), level, event and fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the JSON object of a record."""
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        head = {"time": moment, "level": record.levelname.lower(), "event": record.getMessage()}
        return json.dumps(head | getattr(record, "fields", {}))


class TextLines(logging.Formatter):
    """Log lines for people: local time, event, fields; warnings are marked with `!`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        moment = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        mark = "! " if record.levelno >= logging.WARNING else ""
        return f"{moment}  {mark}{event_text(record.getMessage(), getattr(record, 'fields', {}))}"


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

"""The access log: one line of JSON per request, without user ids, item ids, parameters or addresses."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import orjson

from verfedgnn.core.errors import ConfigError


class AccessLog:
    """A file that several workers append to; only its owner can read it."""

    def __init__(self, path: Path) -> None:
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError as error:
            raise ConfigError(
                f"cannot write the access log {path}: {error.strerror}; choose another --access-log"
            ) from None

    def write(self, key: str | None, method: str, route: str, status: int, seconds: float) -> None:
        """Append one request: time (UTC), name of the key, route, status and milliseconds."""
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "key": key,
            "method": method,
            "route": route,
            "status": status,
            "ms": round(1000 * seconds, 2),
        }
        with suppress(OSError):  # a full disk stops the log, not the server
            os.write(self._file, orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))

    def close(self) -> None:
        """Close the access log."""
        os.close(self._file)

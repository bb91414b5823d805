"""A log of one line of JSON per request."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from verfedgnn.core.errors import ConfigError


class JsonLog:
    """A file that several workers append to; only its owner can read it. `name` is that of its option, such as access."""

    def __init__(self, path: Path, name: str) -> None:
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError as error:
            raise ConfigError(
                f"cannot write the {name} log {path}: {error.strerror}; choose another --{name}-log"
            ) from None

    def append(self, values: Mapping[str, Any]) -> None:
        """Append a line with the time (UTC) and these values."""
        line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **values}
        with suppress(OSError):  # a full disk stops the log, not the server
            os.write(self._file, orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))

    def close(self) -> None:
        """Close the file, so that nothing more can be written."""
        os.close(self._file)

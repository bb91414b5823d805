"""Standard streams that survive a closed pipe, so that `| head` does not end a training."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast


class Lasting:
    """A text stream that discards its output once the reader has closed the pipe."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write `text`, or discard it if nobody reads."""
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            self._discard()
            return len(text)

    def flush(self) -> None:
        """Flush the stream, or discard its buffer if nobody reads."""
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._discard()

    def _discard(self) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def lasting_streams() -> Iterator[None]:
    """Replace standard output and error by `Lasting` streams and flush them at the end."""
    before = sys.stdout, sys.stderr
    lasting = [Lasting(stream) for stream in before]
    sys.stdout, sys.stderr = (cast(TextIO, stream) for stream in lasting)
    try:
        yield
    finally:
        for stream in lasting:
            stream.flush()
        sys.stdout, sys.stderr = before

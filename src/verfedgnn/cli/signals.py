"""Handling of Ctrl-C and SIGTERM: the first signal requests a clean stop, the second stops at once."""

from __future__ import annotations

import os
import signal
from contextlib import suppress


class Halt:
    """A context in which the first signal makes `asked()` true and the second raises KeyboardInterrupt."""

    def __init__(self, *, quiet: bool = False, after: str = "this round") -> None:
        self._asked = False
        self._notice = "" if quiet else f"\nstopping after {after}; press Ctrl-C again to stop at once\n"

    def __enter__(self) -> Halt:
        self._before = {
            number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)
        }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, *_: object) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True
        with suppress(OSError):
            os.write(2, self._notice.encode())  # not print, which a signal may interrupt

    def asked(self) -> bool:
        """Return whether a stop was requested."""
        return self._asked

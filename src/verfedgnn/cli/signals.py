"""Ctrl-C and SIGTERM: the first asks for a stop at a good moment, the second stops at once."""

from __future__ import annotations

import os
import signal
from contextlib import suppress


class Halt:
    """While it is entered, the first signal makes `asked()` true and the second one interrupts."""

    def __init__(self, *, quiet: bool = False, after: str = "this round") -> None:
        self._asked = False
        self._told = b"" if quiet else f"\nstopping after {after}; once more stops at once\n".encode()

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
            os.write(2, self._told)  # a signal may come in the middle of a print

    def asked(self) -> bool:
        """Whether a stop was asked for."""
        return self._asked


def interrupt(*_: object) -> None:
    """A handler that makes SIGTERM what Ctrl-C is."""
    raise KeyboardInterrupt

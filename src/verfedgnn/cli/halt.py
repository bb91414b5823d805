"""Ctrl-C: the first asks for a stop after the round, the second stops at once."""

from __future__ import annotations

import signal


class Halt:
    """While it is entered, the first Ctrl-C makes `asked()` true and the second one interrupts."""

    def __enter__(self) -> Halt:
        self._asked = False
        self._before = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _ask(self, *_: object) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True

    def asked(self) -> bool:
        """Whether Ctrl-C was pressed."""
        return self._asked

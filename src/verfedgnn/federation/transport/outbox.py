"""Messages that wait for one peer, written in order by one thread, so that a slow peer delays nobody else."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable

OUTBOX_MESSAGES = 64
"""Number of messages that may wait for one slow peer before it is disconnected."""
OUTBOX_BYTES = 1 << 31
"""Number of bytes that may wait for one slow peer before it is disconnected."""


class Outbox:
    """Messages for one peer. `write` sends one of them; `lose` is called when that fails or too much is waiting."""

    def __init__(self, peer: str, write: Callable[[bytes], None], lose: Callable[[], None]) -> None:
        self._write = write
        self._lose = lose
        self._waiting: queue.Queue[bytes] = queue.Queue(OUTBOX_MESSAGES)
        self._size = 0
        threading.Thread(target=self._run, name=f"to-{peer}", daemon=True).start()

    def put(self, data: bytes) -> None:
        """Queue a message and return at once."""
        try:
            if self._size > OUTBOX_BYTES:
                raise queue.Full
            self._waiting.put_nowait(data)
            self._size += len(data)
        except queue.Full:
            self._lose()

    def drain(self, seconds: float) -> None:
        """Wait until all messages are written, at most for some seconds."""
        deadline = time.monotonic() + seconds
        while self._waiting.unfinished_tasks and time.monotonic() < deadline:
            time.sleep(0.01)

    def _run(self) -> None:
        while True:
            data = self._waiting.get()
            try:
                self._write(data)
            except Exception:
                # The peer is gone, or FLARE has lost track of its connection. On joining again it gets what it missed.
                with contextlib.suppress(Exception):
                    self._lose()
            finally:
                self._size -= len(data)
                self._waiting.task_done()

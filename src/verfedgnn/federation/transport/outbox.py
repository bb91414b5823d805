"""Messages that wait for one peer, written in order by one thread as frames, so that a slow peer delays nobody else."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable

from verfedgnn.federation.transport.frames import cut_messages, size_of
from verfedgnn.protocol.wire.framing import EncodedMessage

OUTBOX_MESSAGES = 64
"""How often messages may be sent to one slow peer, and wait, before it is disconnected."""
OUTBOX_BYTES = 1 << 31
"""Number of bytes that may wait for one slow peer before it is disconnected; twice its largest message if that is more."""


class Outbox:
    """Messages for one peer. `write` sends one frame; `lose` is called when that fails or too much is waiting."""

    def __init__(self, peer: str, write: Callable[[bytes], None], lose: Callable[[], None]) -> None:
        self._write = write
        self._lose = lose
        self._waiting: queue.Queue[tuple[EncodedMessage, ...]] = queue.Queue(OUTBOX_MESSAGES)
        self._size = 0
        self._limit = OUTBOX_BYTES
        threading.Thread(target=self._run, name=f"to-{peer}", daemon=True).start()

    def put(self, *messages: EncodedMessage) -> None:
        """Queue messages that are sent together, and return at once."""
        size = sum(map(size_of, messages))
        self._limit = max(self._limit, 2 * size)
        try:
            if self._size > self._limit:
                raise queue.Full
            self._waiting.put_nowait(messages)
            self._size += size
        except queue.Full:
            self._lose()

    def drain(self, seconds: float) -> None:
        """Wait until all messages are written, at most for some seconds."""
        deadline = time.monotonic() + seconds
        while self._waiting.unfinished_tasks and time.monotonic() < deadline:
            time.sleep(0.01)

    def _run(self) -> None:
        while True:
            messages = self._waiting.get()
            size = sum(map(size_of, messages))
            try:
                for frame in cut_messages(messages):
                    self._write(frame)
            except Exception:
                # The peer is gone, or FLARE has lost track of its connection. On joining again it gets what it missed.
                with contextlib.suppress(Exception):
                    self._lose()
            finally:
                del messages  # they may hold a copy of all public parameters
                self._size -= size
                self._waiting.task_done()

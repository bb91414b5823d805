"""Load for `benchmarks/serving.py`: clients that send requests over many connections, by a clock."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np

from serving_server import USERS, busy_seconds

PATH = "/v1/recommendations?user={user}&k=10"


class Client(asyncio.Protocol):
    """A keep-alive connection with at most one open request."""

    def __init__(self, free: list[Client]) -> None:
        self.free = free
        self.got = b""
        self.done = None
        free.append(self)

    def connection_made(self, transport: Any) -> None:
        """Keep the transport of the open connection."""
        self.transport = transport

    def ask(self, request: bytes, done: Any) -> None:
        """Send a request; `done` is called with whether the status of the response is 200."""
        self.got = b""
        self.done = done
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        """Collect a part of the response."""
        self.got += data
        head, gap, body = self.got.partition(b"\r\n\r\n")
        if gap and len(body) >= int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]):
            self.free.append(self)
            self._finish(head.startswith(b"HTTP/1.1 200"))

    def connection_lost(self, error: Exception | None) -> None:
        """Fail the open request, because the server closed the connection."""
        if self in self.free:
            self.free.remove(self)
        self._finish(False)

    def _finish(self, ok: bool) -> None:
        done, self.done = self.done, None
        if done is not None:
            done(ok)


async def _send_by_clock(port: int, rate: float, seconds: float, seed: int, path: str) -> dict[str, float]:
    loop, rng = asyncio.get_running_loop(), np.random.default_rng(seed)
    free: list[Client] = []
    for _ in range(256):
        await loop.create_connection(lambda: Client(free), "127.0.0.1", port)
    due = np.cumsum(rng.exponential(1 / rate, int(rate * seconds))).tolist()
    users = rng.integers(0, USERS, len(due)).tolist()
    latencies: list[float] = []
    failed: list[int] = []
    begin, finished = loop.time() + 0.2, loop.create_future()

    def send(place: int) -> None:
        when = begin + due[place]
        client = free.pop() if free else None

        def done(ok: bool) -> None:
            latencies.append(loop.time() - when)
            if not ok:
                failed.append(place)
            if len(latencies) == len(due) and not finished.done():
                finished.set_result(None)

        if client is None:  # all connections are busy: the request is given up
            when -= 60
            done(False)
        else:
            client.ask(
                f"GET {path.format(user=users[place])} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode(), done
            )
        if place + 1 < len(due):
            loop.call_at(begin + due[place + 1], send, place + 1)

    loop.call_at(begin + due[0], send, 0)
    await asyncio.wait_for(finished, seconds + 30)
    taken = np.array(latencies) * 1000
    found = {f"p{part}": float(np.percentile(taken, part)) for part in (50, 90, 99)}
    return found | {"max": float(taken.max()), "failed": len(failed), "requests": len(due)}


def generate(queue: Any, *arguments: Any) -> None:
    """Send requests by a clock, in a process of their own, and put the latencies into `queue`."""
    try:
        import uvloop

        run = uvloop.run
    except ImportError:
        run = asyncio.run
    before, busy, begin = time.process_time(), busy_seconds(), time.monotonic()
    found = run(_send_by_clock(*arguments))
    own, lasted = time.process_time() - before, time.monotonic() - begin
    queue.put(found | {"generator": own, "busy": busy_seconds() - busy, "lasted": lasted})

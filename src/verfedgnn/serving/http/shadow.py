"""A second run in the shadow of the served one: it gets the same requests, its answers are recorded and never sent."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qs

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from verfedgnn.serving.http.json_log import JsonLog
from verfedgnn.serving.http.live_run import LiveRun
from verfedgnn.serving.http.server_metrics import ServerMetrics

RUNS = "/runs/"
"""Start of the paths that other runs answer; the name of the run follows."""
PATH = "/v1/recommendations"
"""The requests that both runs answer."""
MOST_WAITING = 256
"""Requests that may wait for the second run; further ones are not compared."""
REFUSED = (401, 403, 429, 503)
"""Status of requests that the served run did not look at; the second run, which has no rate limits, does not see them."""


class ShadowLog(JsonLog):
    """A log of the requests that both runs answered; without user ids unless `users` is true."""

    def __init__(self, path: Path, *, users: bool) -> None:
        super().__init__(path, "shadow")
        self._users = users

    def write(self, scope: Scope, served: _Answer, shadow: _Answer) -> None:
        """Append one request: the status and the items of both runs, and the share of items that both recommend."""
        line: dict[str, Any] = {}
        if self._users:
            line["user"] = parse_qs(scope["query_string"].decode("latin-1")).get("user", [""])[0]
        line |= {
            "status": [served.status, shadow.status],
            "overlap": overlap(served.items(), shadow.items()),
            "served": served.items(),
            "shadow": shadow.items(),
        }
        self.append(line)


class _Answer:
    """The status and the body of a response, collected while it is sent."""

    def __init__(self) -> None:
        self.status = 500
        self.body = b""

    def note(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif message["type"] == "http.response.body":
            self.body += message.get("body", b"")

    def items(self) -> list[list[str]] | None:
        """Return the party and the id of each recommended item; None for an error."""
        if self.status != 200:
            return None
        return [[item["party"], item["item"]] for item in orjson.loads(self.body)["recommendations"]]


def overlap(first: list[list[str]] | None, second: list[list[str]] | None) -> float | None:
    """Return the share of items that are in both lists; None if one of them is missing or both are empty."""
    if not first or not second:
        return None
    common = {tuple(item) for item in first} & {tuple(item) for item in second}
    return len(common) / max(len(first), len(second))


class ServedRuns:
    """ASGI application of the server: the served run, if there is one a second run in its shadow, and others beside it by name."""

    def __init__(
        self,
        served: LiveRun,
        shadow: LiveRun | None = None,
        log: ShadowLog | None = None,
        others: Mapping[str, LiveRun] = MappingProxyType({}),
    ) -> None:
        self._served = served
        self._others = others
        self._shadow = shadow
        self._log = log
        self._waiting: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request with the served run, or start and stop the runs with the server."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope.get("path", "").startswith(RUNS):
            await self._answer_by_other(scope, receive, send)
        elif self._shadow is None or scope.get("path") != PATH or scope.get("method") != "GET":
            await self._served(scope, receive, send)
        else:
            await self._answer_twice(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        runs = [run for run in (self._served, self._shadow, *self._others.values()) if run is not None]
        await receive()
        for run in runs:
            await run.start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        for task in self._waiting:
            task.cancel()
        for run in runs:
            await run.stop()
        if self._log is not None:
            self._log.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _answer_by_other(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request to /runs/NAME/... with the run of that name; the served run refuses unknown names."""
        name, _, path = scope["path"].removeprefix(RUNS).partition("/")
        if name in self._others:
            inner = {**scope, "path": f"/{path}", "raw_path": f"/{path}".encode()}
            await self._others[name](inner, receive, send)
        else:
            await self._served(scope, receive, send)

    async def _answer_twice(self, scope: Scope, receive: Receive, send: Send) -> None:
        copy = dict(scope)
        served = _Answer()

        async def send_and_note(message: Message) -> None:
            served.note(message)
            await send(message)

        await self._served(scope, receive, send_and_note)
        if served.status not in REFUSED and len(self._waiting) < MOST_WAITING:
            task = asyncio.create_task(self._compare(copy, served))
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)

    async def _compare(self, scope: Scope, served: _Answer) -> None:
        assert self._shadow is not None
        assert self._log is not None
        shadow = await collect(self._shadow, scope)
        self._log.write(scope, served, shadow)


async def collect(app: ASGIApp, scope: Scope) -> _Answer:
    """Return the response of an application to a request without a body."""
    answer = _Answer()

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        answer.note(message)

    await app(scope, receive, send)
    return answer


class UncountedMetrics(ServerMetrics):
    """Metrics of a run in the shadow, whose answers nobody receives: nothing is counted."""

    def __init__(self) -> None:
        pass

    def count_request(self, route: str, status: int, seconds: float) -> None:
        """Leave a request of the shadow uncounted."""

    def count_batch(self, size: int) -> None:
        """Leave a batch of the shadow uncounted."""

    def set_items(self, party: str, count: int) -> None:
        """Leave the size of the shadow's catalogue unset."""

    def count_served_item(self, party: str) -> None:
        """Leave an item of the shadow uncounted."""

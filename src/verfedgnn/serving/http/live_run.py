"""Served runs: requests move to a new state of a run when its link leads elsewhere or its files change, and a run may have a shadow.

A run in the shadow gets the same requests as the served one; its answers are recorded and never sent.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import orjson
from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.types import Message, Receive, Scope, Send

from verfedgnn.core.errors import RunError
from verfedgnn.core.printable import make_printable
from verfedgnn.runs.added_items import ADDED
from verfedgnn.runs.run_layout import FORGET_JOURNAL, FORGET_RECORD
from verfedgnn.serving.http.request_guard import JsonLog
from verfedgnn.serving.http.schema import HttpProblem

POLL_SECONDS = 1.0
"""Seconds between two looks at the link and at files that change."""
COMPARED = "/v1/recommendations"
"""The requests that a run in the shadow answers, too."""
MOST_WAITING = 256
"""Requests that may wait for the shadow; further ones are not compared."""
REFUSED = (401, 403, 429, 503)
"""Status of requests that the served run did not look at; the shadow, which has no rate limits, does not see them."""

Versions = tuple[tuple[str, int, int], ...]
"""Names, times and sizes of files."""


@dataclass(frozen=True)
class _RunState:
    """A run folder, and the files that change after a training."""

    folder: Path
    forgotten: Versions
    """The record of forgotten users and items."""
    changes: Versions
    """Other files."""
    forgetting: bool
    """Whether users or items are being forgotten, or a `forget` was killed."""


def _read_state(link: Path) -> _RunState:
    def versions(*files: Path) -> Versions:
        return tuple((file.name, (stat := file.stat()).st_mtime_ns, stat.st_size) for file in files)

    folder = Path(os.path.realpath(link))  # raises nothing, also where links lead in a circle
    changes = versions(*sorted((folder / ADDED).glob("*.jsonl")), *folder.glob("metrics.json"))
    forgotten = versions(*folder.glob(FORGET_RECORD))
    return _RunState(folder, forgotten, changes, (folder / FORGET_JOURNAL).exists())


@dataclass
class _LoadedRun:
    """A run in memory, and the number of requests that it is answering."""

    state: _RunState
    app: FastAPI
    open: int = 0
    retired: bool = False
    lifespan: AbstractAsyncContextManager[object] = field(init=False)

    async def enter(self) -> None:
        self.lifespan = self.app.router.lifespan_context(self.app)
        await self.lifespan.__aenter__()

    async def leave(self) -> None:
        await self.lifespan.__aexit__(None, None, None)


class LiveRun:
    """ASGI application that answers requests with the run in `folder`, or with the one that this link leads to at the moment.

    A new run, or a run with added items, forgotten users or a new verdict, is loaded in the background. Requests that have begun
    are answered by the run that they began with. If a run cannot be loaded again after a `forget`, it is served no more.
    """

    def __init__(self, folder: Path, build: Callable[[Path], FastAPI]) -> None:
        self._folder = folder
        self._build = build
        self._current = self._load(_read_state(folder))
        self._withdrawn = False
        """Whether the current run holds what was forgotten since, so that it must not answer."""
        self._failed: set[_RunState] = set()
        self._follower: asyncio.Task[None] | None = None

    def _load(self, state: _RunState) -> _LoadedRun:
        if state.forgetting:
            raise RunError(
                f"{state.folder} still holds what is being forgotten; finish with `verfedgnn forget {state.folder}`"
            )
        return _LoadedRun(state, self._build(state.folder))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request with the run that is current when it arrives."""
        if self._withdrawn:
            remedy = "its operator finds the reason on the standard error of the server"
            await HttpProblem(503, "this run is not served at present", remedy).send(send)
            return
        run = self._current
        run.open += 1
        try:
            await run.app(scope, receive, send)
        finally:
            run.open -= 1
            if run.retired and not run.open:
                await run.leave()

    async def start(self) -> None:
        """Prepare the run for requests, and follow its changes."""
        await self._current.enter()
        self._follower = asyncio.create_task(self._follow())

    async def stop(self) -> None:
        """Stop following changes and release the run."""
        if self._follower is not None:
            self._follower.cancel()
            with suppress(asyncio.CancelledError):
                await self._follower
        await self._current.leave()

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            await self._look(self._folder)
            # where the link led before, if it leads to nothing better
            await self._look(self._current.state.folder)

    async def _look(self, folder: Path) -> None:
        """Load a run if it has changed."""
        with suppress(OSError):  # a file that is replaced at this moment is seen the next time
            state = _read_state(folder)
            if state.forgetting and state.folder == self._current.state.folder:
                return  # until that has ended
            if state != self._current.state and state not in self._failed:
                await self._switch(state)

    async def _switch(self, state: _RunState) -> None:
        """Load the run in this state and let it answer from now on; on any error, the present one goes on.

        If it cannot be loaded after a `forget`, the present one ends, because it still has what was forgotten.
        """
        target = state.folder
        gc.unfreeze()
        try:
            new = await run_in_threadpool(self._load, state)
            await new.enter()
        except Exception as error:
            self._failed.add(state)
            now = self._current.state
            if target == now.folder and state.forgotten != now.forgotten:
                self._withdrawn = True
            serves = "answering with status 503" if self._withdrawn else f"still serving {now.folder}"
            _report(f"{self._folder} leads to {target}, which cannot be served ({error}); {serves}")
            return
        old = self._current
        same = target == old.state.folder
        self._current = new
        self._withdrawn = False
        old.retired = True
        if not old.open:
            await old.leave()
        del old
        gc.collect()
        gc.freeze()
        _report(
            f"serving {target} after its items, users or figures changed" if same else f"now serving {target}"
        )


def _report(text: str) -> None:
    sys.stderr.write(make_printable(f"{' '.join(text.split())}\n"))
    sys.stderr.flush()


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

    def items(self) -> list[tuple[str, str]] | None:
        """Return the party and the id of each recommended item; None for an error."""
        if self.status != 200:
            return None
        return [(item["party"], item["item"]) for item in orjson.loads(self.body)["recommendations"]]


class ServedRuns:
    """ASGI application of the server: the served run and, if there is one, a second run in its shadow.

    The `log` of the shadow has the answers of both, without user ids unless `log_users` is true.
    """

    def __init__(
        self,
        served: LiveRun,
        shadow: LiveRun | None = None,
        log: JsonLog | None = None,
        *,
        log_users: bool = False,
    ) -> None:
        self._served = served
        self._shadow = shadow
        self._log = log
        self._log_users = log_users
        self._waiting: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request with the served run, or start and stop the runs with the server."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif self._shadow is None or scope.get("path") != COMPARED or scope.get("method") != "GET":
            await self._served(scope, receive, send)
        else:
            await self._answer_twice(self._shadow, scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        runs = [run for run in (self._served, self._shadow) if run is not None]
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

    async def _answer_twice(self, shadow: LiveRun, scope: Scope, receive: Receive, send: Send) -> None:
        copy = dict(scope)
        served = _Answer()

        async def send_and_note(message: Message) -> None:
            served.note(message)
            await send(message)

        await self._served(scope, receive, send_and_note)
        if served.status not in REFUSED and len(self._waiting) < MOST_WAITING:
            task = asyncio.create_task(self._compare(shadow, copy, served))
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)

    async def _compare(self, shadow: LiveRun, scope: Scope, served: _Answer) -> None:
        """Log one request: the status and the items of both runs, and the share of items that both recommend."""
        second = _Answer()

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message) -> None:
            second.note(message)

        await shadow(scope, receive, send)
        line: dict[str, Any] = {}
        if self._log_users:
            line["user"] = parse_qs(scope["query_string"].decode("latin-1")).get("user", [""])[0]
        first, other = served.items(), second.items()
        overlap = len({*first} & {*other}) / max(len(first), len(other)) if first and other else None
        line |= {"status": [served.status, second.status], "overlap": overlap}
        if self._log is not None:
            self._log.append({**line, "served": first, "shadow": other})

"""The application of a served run, which follows a symbolic link: when the link leads elsewhere, requests move to the new run."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from verfedgnn.core.printable import make_printable

POLL_SECONDS = 1.0
"""Seconds between two looks at the link."""


@dataclass
class _LoadedRun:
    """A run in memory, and the number of requests that it is answering."""

    folder: Path
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

    A new run is loaded in the background. Requests that have begun are answered by the run that they began with.
    """

    def __init__(self, folder: Path, build: Callable[[Path], FastAPI]) -> None:
        self._folder = folder
        self._build = build
        target = folder.resolve()
        self._current = _LoadedRun(target, build(target))
        self._failed: Path | None = None
        self._follower: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        run = self._current
        run.open += 1
        try:
            await run.app(scope, receive, send)
        finally:
            run.open -= 1
            if run.retired and not run.open:
                await run.leave()

    async def start(self) -> None:
        """Prepare the run for requests, and follow the link if it is one."""
        await self._current.enter()
        if self._folder.is_symlink():
            self._follower = asyncio.create_task(self._follow())

    async def stop(self) -> None:
        """Stop following the link and release the run."""
        if self._follower is not None:
            self._follower.cancel()
            with suppress(asyncio.CancelledError):
                await self._follower
        await self._current.leave()

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            target = self._folder.resolve()
            if target not in (self._current.folder, self._failed):
                await self._switch(target)

    async def _switch(self, target: Path) -> None:
        """Load the run in `target` and let it answer from now on; on any error, the present run goes on."""
        gc.unfreeze()
        try:
            new = _LoadedRun(target, await run_in_threadpool(self._build, target))
            await new.enter()
        except Exception as error:
            self._failed = target
            _report(
                f"{self._folder} leads to {target}, which cannot be served ({error}); still serving {self._current.folder}"
            )
            return
        old = self._current
        self._current = new
        self._failed = None
        old.retired = True
        if not old.open:
            await old.leave()
        del old
        gc.collect()
        gc.freeze()
        _report(f"now serving {target}")


def _report(text: str) -> None:
    sys.stderr.write(make_printable(f"{' '.join(text.split())}\n"))
    sys.stderr.flush()

"""The application of a served run: when its link leads elsewhere, or its files change, requests move to the new state."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from verfedgnn.core.errors import RunError
from verfedgnn.core.printable import make_printable
from verfedgnn.runs.added_items import ADDED
from verfedgnn.runs.run_layout import FORGET_JOURNAL, FORGET_RECORD
from verfedgnn.serving.http.http_problems import HttpProblem, send_problem

POLL_SECONDS = 1.0
"""Seconds between two looks at the link and at files that change."""


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
    folder = Path(os.path.realpath(link))  # raises nothing, also where links lead in a circle
    changing = [*sorted((folder / ADDED).glob("*.jsonl")), *folder.glob("metrics.json")]
    forgotten = _read_versions(folder.glob(FORGET_RECORD))
    return _RunState(folder, forgotten, _read_versions(changing), (folder / FORGET_JOURNAL).exists())


def _read_versions(files: Iterable[Path]) -> Versions:
    stats = [(file.name, file.stat()) for file in files]
    return tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in stats)


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
        state = _read_state(folder)
        self._current = self._load(state)
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
            await send_problem(HttpProblem(503, "this run is not served at present", remedy), send)
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
            await self._look(
                self._current.state.folder
            )  # where the link led before, if it leads to nothing better

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
        before = old.state.folder
        self._current = new
        self._withdrawn = False
        old.retired = True
        if not old.open:
            await old.leave()
        del old
        gc.collect()
        gc.freeze()
        _report(
            f"now serving {target}"
            if target != before
            else f"serving {target} after its items, users or figures changed"
        )


def _report(text: str) -> None:
    sys.stderr.write(make_printable(f"{' '.join(text.split())}\n"))
    sys.stderr.flush()

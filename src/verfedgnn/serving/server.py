"""The server of a run: it follows the run folder, and bounds every connection.

uvicorn bounds no connection: a client may connect and send nothing for ever, send headers without end, or take no response. Here
a connection counts as waiting until a whole request has arrived, while its client is slow to take responses, and after the
response. A new waiting connection takes the place of the oldest of the address that has most (`core/connection_table.py`). A
request whose response is being computed is never cut off.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
import uvicorn
from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from verfedgnn.core.connection_table import ConnectionTable
from verfedgnn.core.errors import RunError
from verfedgnn.core.option_names import make_printable
from verfedgnn.runs.added_items import ADDED
from verfedgnn.runs.run import Run
from verfedgnn.runs.run_folder import FORGET_JOURNAL, FORGET_RECORD
from verfedgnn.serving.app import make_app
from verfedgnn.serving.catalogue import Catalogue
from verfedgnn.serving.request_guard import LARGEST_BODY, AccessLog, ApiKey, ServerMetrics
from verfedgnn.serving.schema import HttpProblem
from verfedgnn.serving.split_test import SplitTest

POLL_SECONDS = 1.0
Versions = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class _RunState:
    """A run folder, and the files that change after a training."""

    folder: Path
    forgotten: Versions
    changes: Versions
    forgetting: bool
    """Whether users are being forgotten, or a `forget` was killed."""


def _read_state(link: Path) -> _RunState:
    def versions(*files: Path) -> Versions:
        return tuple((file.name, (stat := file.stat()).st_mtime_ns, stat.st_size) for file in files)

    folder = Path(os.path.realpath(link))  # raises nothing, also where links lead in a circle
    changes = versions(*sorted((folder / ADDED).glob("*.jsonl")), *folder.glob("metrics.json"))
    forgotten = versions(*folder.glob(FORGET_RECORD))
    return _RunState(folder, forgotten, changes, (folder / FORGET_JOURNAL).exists())


class LiveRun:
    """ASGI application that answers requests with the run in `folder`, or with the one that this link leads to at the moment.

    A new run, or a run with added items, forgotten users or a new verdict, is loaded in the background. Requests that have begun
    are answered by the run that they began with. If a run cannot be loaded again after a `forget`, it is served no more.
    """

    def __init__(self, folder: Path, build: Callable[[Path], FastAPI]) -> None:
        self._folder = folder
        self._build = build
        self._state = _read_state(folder)
        self._app = self._load(self._state)
        self._withdrawn = False
        """Whether the current run holds what was forgotten since, so that it must not answer."""
        self._failed: set[_RunState] = set()

    def _load(self, state: _RunState) -> FastAPI:
        if state.forgetting:
            remedy = f"finish with `verfedgnn forget {state.folder}`"
            raise RunError(f"{state.folder} still holds what is being forgotten; {remedy}")
        return self._build(state.folder)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request with the run that is current when it arrives, or follow changes while the server lives."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif self._withdrawn and scope["path"] != "/healthz":
            remedy = "its operator finds the reason on the standard error of the server"
            problem = HttpProblem(503, "this run is not served at present", remedy)
            await problem.response()(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()  # the start of the server
        follower = asyncio.create_task(self._follow())
        await send({"type": "lifespan.startup.complete"})
        await receive()  # its end
        follower.cancel()
        await asyncio.wait([follower])
        await send({"type": "lifespan.shutdown.complete"})

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            await self._look(self._folder)
            await self._look(self._state.folder)  # where the link led before, if it leads to nothing better

    async def _look(self, folder: Path) -> None:
        """Load a run if it has changed."""
        with suppress(OSError):  # a file that is replaced at this moment is seen the next time
            state = _read_state(folder)
            ending = state.forgetting and state.folder == self._state.folder
            if not ending and state != self._state and state not in self._failed:
                await self._switch(state)

    async def _switch(self, state: _RunState) -> None:
        """Load the run in this state and let it answer from now on; on an error, the present one goes on, unless after a `forget`."""
        before = self._state
        same = state.folder == before.folder
        gc.unfreeze()
        try:
            self._app = await run_in_threadpool(self._load, state)
        except Exception as error:
            self._failed.add(state)
            if same and state.forgotten != before.forgotten:
                self._withdrawn = True
            serves = "answering with status 503" if self._withdrawn else f"still serving {before.folder}"
            _report(f"{self._folder} leads to {state.folder}, which cannot be served ({error}); {serves}")
            return
        self._state = state
        self._withdrawn = False
        gc.collect()
        gc.freeze()
        changed = f"serving {state.folder} after its items, users or figures changed"
        _report(changed if same else f"now serving {state.folder}")


def _report(text: str) -> None:
    sys.stderr.write(make_printable(f"{' '.join(text.split())}\n"))
    sys.stderr.flush()


MOST_WAITING = 512
"""Connections of a process that may wait for a request, at most half of the files that it may open; one address has half of them."""
BACKLOG = 256
"""Connections that the operating system holds until they are accepted; all of them are accepted at once."""
REQUEST_SECONDS = 30.0
"""Seconds within which a request must arrive, from the connection or from its first byte on."""
RESPONSE_SECONDS = 75.0
"""Seconds within which a client must take what was sent, once more waits for it than the system holds."""
MOST_PIPELINED = 16
"""Requests of a connection that may have arrived behind the one that is being answered; each takes kilobytes of memory."""
LARGEST_HEADERS = 65_536
LARGEST_REQUEST = 2 * LARGEST_BODY
"""Maximum size of a request in bytes, with the headers and what chunks add; the request guard bounds the body."""
SWITCH_INTERVAL = 0.0005
"""Seconds after which the event loop yields the interpreter to the scoring thread; Python's default costs tens of ms a batch."""
KEEP_ALIVE = 75
"""Seconds after which an idle connection is closed: later than clients and proxies close theirs, which may be sending."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, waiting: ConnectionTable, **given: Any) -> None:
        super().__init__(**given)
        self._waiting = waiting
        self._deadline: asyncio.TimerHandle | None = None
        """When a request must have arrived; None between requests."""
        self._reading: asyncio.TimerHandle | None = None
        """When the client must have taken what was sent; None if it has."""
        self._received = 0
        self._answered: RequestResponseCycle | None = None
        """The request that is being answered; further ones may have arrived behind it."""
        self._in_headers = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._wait()
        self._set_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._waiting.remove(self)
        self._clear_deadline()
        if self._reading is not None:
            self._reading.cancel()
        if self._answered is not None:
            self._answered.disconnected = True  # uvicorn tells only the last request
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Wait for a client that does not take what was sent."""
        super().pause_writing()
        self._wait()
        self._reading = self.loop.call_later(RESPONSE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on after the client has taken what was sent."""
        super().resume_writing()
        if self._reading is not None:
            self._reading.cancel()
        if self._is_answering():
            self._waiting.remove(self)

    def data_received(self, data: bytes) -> None:
        """Read a part of a request; refuse one that is too large."""
        if self._deadline is None and self._is_idle():
            self._set_deadline()
        self._received += len(data)
        super().data_received(data)
        most = LARGEST_HEADERS if self._in_headers else LARGEST_REQUEST
        if self._received > most and not self.transport.is_closing():
            self.send_400_response("The request is too large.")

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def on_message_begin(self) -> None:
        """Begin with a request; end the connection if too many wait for their responses."""
        if len(self.pipeline) >= MOST_PIPELINED:
            raise ValueError("too many requests at once")
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Begin with the body."""
        self._in_headers = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """End a request: its response takes as long as it takes."""
        self._in_headers = True
        self._received = 0
        self._clear_deadline()
        if self._is_answering():  # a refused request may have its response already
            self._waiting.remove(self)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        if self._is_idle():
            self._wait()
        elif self._answered is self.cycle and self.cycle.more_body:
            # it came behind another, without its body
            self._wait()
            self._set_deadline()

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _is_answering(self) -> bool:
        return not self._is_idle() and not self.flow.write_paused

    def _wait(self) -> None:
        self._waiting.add(self, self.client[0] if self.client else "::")

    def _set_deadline(self) -> None:
        self._deadline = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def make_server(app: Callable[..., Any], **options: Any) -> uvicorn.Server:
    """Return the server of an application; `options` are further ones of uvicorn."""
    most = min(MOST_WAITING, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
    waiting = ConnectionTable(
        lambda connection: connection.transport.abort(), most=most, per_address=most // 2, patience=0.0
    )
    config = uvicorn.Config(
        app,
        http=cast(type[asyncio.Protocol], partial(BoundedProtocol, waiting)),
        ws="none",
        backlog=BACKLOG,
        access_log=False,  # it would contain user ids
        log_level="error",  # a stranger's mistake would be a warning, so that strangers could fill the log
        server_header=False,
        **options,
    )
    return uvicorn.Server(config)


def serve(
    run: Path,
    listener: socket.socket,
    ready: Callable[[], None],
    *,
    party: str | None,
    keys: tuple[ApiKey, ...],
    threads: int,
    access_log: Path | None,
    split: SplitTest | None,
) -> None:
    """Serve a run, or one `party` of it, until SIGINT or SIGTERM; uvicorn then finishes open requests and raises the signal again.

    `threads` compute scores; 0 uses all cores.
    """
    if threads:
        torch.set_num_threads(threads)
    metrics = ServerMetrics()
    log = None if access_log is None else AccessLog(access_log)

    def build(folder: Path) -> FastAPI:
        catalogue = Catalogue(Run.load(folder), folder.name, party, split)
        # so that the first request does not wait
        _ = [(models.rankers, models.priors) for models in catalogue.lists.values()]
        _ = [models.priors for models in catalogue.stars.values()]
        return make_app(catalogue, keys=keys, log=log, metrics=metrics, folder=folder)

    app = LiveRun(run, build)
    sys.setswitchinterval(SWITCH_INTERVAL)
    gc.collect()
    gc.freeze()  # the run stays in memory: collecting it again and again would delay requests
    ready()
    make_server(app, timeout_graceful_shutdown=5, timeout_keep_alive=KEEP_ALIVE).run([listener])

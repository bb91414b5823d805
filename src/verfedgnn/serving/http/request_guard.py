"""What stands between the network and the endpoints: the key, the host, the size of a request, the headers of an answer."""

from __future__ import annotations

import hmac
import ipaddress
import os
import time
from functools import lru_cache
from pathlib import Path
from traceback import print_exception

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from verfedgnn.core.errors import ConfigError
from verfedgnn.serving.http.http_problems import Problem
from verfedgnn.serving.http.server_metrics import Figures

KEY_VARIABLE = "VERFEDGNN_API_KEY"
SHORTEST_KEY = 16
LARGEST_BODY = 2_000_000
"""Bytes of a request's body; 10,000 ratings take about 600,000."""
OPEN = ("/health", "/", "/page.js", "/page.css", "/draw.js", "/icon.svg")
"""Paths without a key: they hold nothing of the run."""
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
_HEADERS = [(name.encode(), value.encode()) for name, value in HEADERS.items()]


def read_key(file: Path | None) -> str | None:
    """The key of a file or of the environment; None without either."""
    if file is None:
        key, where = os.environ.get(KEY_VARIABLE), KEY_VARIABLE
        if key is None:
            return None
    else:
        try:
            key, where = file.read_text("utf-8"), str(file)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"the key file {file} cannot be read ({error}); give a text file with the key"
            ) from None
    key = key.strip()
    if len(key) < SHORTEST_KEY or not key.isascii() or any(c.isspace() for c in key):
        make = "python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        raise ConfigError(
            f"the key in {where} is not {SHORTEST_KEY} or more ASCII characters without spaces; make one with {make}"
        )
    return key


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class Guard:
    """Wraps the application; without a key it answers only to requests that name this machine."""

    def __init__(self, app: ASGIApp, key: str | None, figures: Figures) -> None:
        self.app, self.figures = app, figures
        self._expected = None if key is None else f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begin, status = time.perf_counter(), 500

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), *_HEADERS]
            await send(message)

        problem = self._refuse(scope)
        try:
            if problem is not None:
                await _tell(problem, answer)
            else:
                await self.app(
                    scope, _bounded(receive) if scope["method"] not in ("GET", "HEAD") else receive, answer
                )
        except Problem as error:
            await _tell(error, answer)
        except Exception as error:
            if status != 500:  # the answer has begun: all that is left is to break it off
                raise
            print_exception(type(error), error, error.__traceback__, chain=False)
            await _tell(
                Problem(500, "the server made a mistake", "its standard error says which; please report it"),
                answer,
            )
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self.figures.request(route, status, time.perf_counter() - begin)

    def _refuse(self, scope: Scope) -> Problem | None:
        headers = dict(scope["headers"])
        if self._expected is not None:
            given = headers.get(b"authorization", b"")
            if scope["path"] not in OPEN and not hmac.compare_digest(given, self._expected):
                return Problem(
                    401, "the key is missing or wrong", "send the header 'Authorization: Bearer KEY'"
                )
        elif not _names_this_machine(headers.get(b"host", b"").decode("latin-1")):
            # A page of another site could otherwise make a browser ask us under a name of its own.
            return Problem(
                403,
                "without a key only this machine is served, under its own name",
                "use http://127.0.0.1 or set a key",
            )
        length = headers.get(b"content-length", b"0")
        return _too_large() if length.isdigit() and int(length) > LARGEST_BODY else None


@lru_cache(256)
def _names_this_machine(host: str) -> bool:
    name = host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
    return is_loopback(name)


def _too_large() -> Problem:
    return Problem(413, f"the request is larger than {LARGEST_BODY:,} bytes", "send fewer ratings at a time")


def _bounded(receive: Receive) -> Receive:
    taken = 0

    async def counted() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > LARGEST_BODY:
            raise HTTPException(413, _too_large().cause)
        return message

    return counted


async def _tell(problem: Problem, send: Send) -> None:
    body, extra = problem.body(), [(b"www-authenticate", b"Bearer")] if problem.status == 401 else []
    headers = [(b"content-length", str(len(body)).encode()), (b"content-type", b"application/json"), *extra]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

"""Checks before every endpoint: the API key, the Host header and the size of a request; and the headers of every response."""

from __future__ import annotations

import hmac
import os
import sys
import time
from functools import lru_cache
from pathlib import Path
from traceback import format_exception

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from verfedgnn.core.errors import ConfigError
from verfedgnn.core.hosts import is_loopback, parse_host_header
from verfedgnn.core.printable import make_printable
from verfedgnn.serving.http.http_problems import HttpProblem
from verfedgnn.serving.http.server_metrics import ServerMetrics

KEY_VARIABLE = "VERFEDGNN_API_KEY"
SHORTEST_KEY = 16
LARGEST_BODY = 2_000_000
"""Maximum size of a request body in bytes; 10,000 ratings take about 600,000."""
OPEN_PATHS = ("/health", "/", "/page.js", "/page.css", "/draw.js", "/icon.svg")
"""Paths that need no key, because they contain nothing of the run."""
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
    """Return the API key from `file` or from the environment, or None if neither is set."""
    if file is None:
        key = os.environ.get(KEY_VARIABLE)
        where = KEY_VARIABLE
        if key is None:
            return None
    else:
        where = str(file)
        try:
            key = file.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"the key file {file} cannot be read ({error}); pass a text file that contains the key"
            ) from None
    key = key.strip()
    if len(key) < SHORTEST_KEY or not key.isascii() or any(c.isspace() for c in key):
        make = "python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        raise ConfigError(
            f"the key in {where} must have {SHORTEST_KEY} or more ASCII characters and no spaces; create one with: {make}"
        )
    return key


class RequestGuard:
    """ASGI middleware that rejects requests without the API key, or, without a key, requests from other hosts."""

    def __init__(self, app: ASGIApp, key: str | None, metrics: ServerMetrics) -> None:
        self.app = app
        self.metrics = metrics
        self._expected = None if key is None else f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check one request, pass it on, and send any `HttpProblem` as the response."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begin, status = time.perf_counter(), 500

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), *_HEADERS]
            await send(message)

        try:
            self._check(scope)
            if scope["method"] not in ("GET", "HEAD"):
                receive = _limit_body(receive)
            await self.app(scope, receive, send_with_headers)
        except HttpProblem as problem:
            await _send_problem(problem, send_with_headers)
        except Exception as error:
            if status != 500:  # the response has begun and can only be broken off
                raise
            lines = format_exception(type(error), error, error.__traceback__, chain=False)
            sys.stderr.write(make_printable("".join(lines)))
            internal = HttpProblem(
                500, "internal server error", "see the standard error of the server, and please report it"
            )
            await _send_problem(internal, send_with_headers)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self.metrics.count_request(route, status, time.perf_counter() - begin)

    def _check(self, scope: Scope) -> None:
        headers = dict(scope["headers"])
        if self._expected is not None:
            given = headers.get(b"authorization", b"")
            if scope["path"] not in OPEN_PATHS and not hmac.compare_digest(given, self._expected):
                raise HttpProblem(
                    401, "the API key is missing or wrong", "send the header 'Authorization: Bearer KEY'"
                )
        elif not _names_this_machine(headers.get(b"host", b"").decode("latin-1")):
            # Without this check, a web page could reach the server through the browser under a name of its own.
            raise HttpProblem(
                403,
                "a server without an API key accepts requests to localhost only",
                "use http://127.0.0.1, or start the server with a key",
            )
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > LARGEST_BODY:
            raise _body_too_large()


@lru_cache(256)
def _names_this_machine(host: str) -> bool:
    return is_loopback(parse_host_header(host))


def _body_too_large() -> HttpProblem:
    return HttpProblem(
        413, f"the request is larger than {LARGEST_BODY:,} bytes", "send fewer ratings at a time"
    )


def _limit_body(receive: Receive) -> Receive:
    received = 0

    async def receive_limited() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > LARGEST_BODY:
            raise HTTPException(413, _body_too_large().cause)
        return message

    return receive_limited


async def _send_problem(problem: HttpProblem, send: Send) -> None:
    body = problem.as_json()
    headers = [(b"content-length", str(len(body)).encode()), (b"content-type", b"application/json")]
    if problem.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

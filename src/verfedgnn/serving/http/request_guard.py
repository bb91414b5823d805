"""Checks before every endpoint: API key, rights, rate, Host header and size; and headers and log of every response."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from traceback import format_exception

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from verfedgnn.core.hosts import is_loopback, parse_host_header
from verfedgnn.core.printable import make_printable
from verfedgnn.serving.http.access_log import AccessLog
from verfedgnn.serving.http.api_keys import RIGHTS, Access, digest_key
from verfedgnn.serving.http.http_problems import HttpProblem, send_problem
from verfedgnn.serving.http.page_files import PAGE_FILES
from verfedgnn.serving.http.server_metrics import ServerMetrics

LARGEST_BODY = 2_000_000
"""Maximum size of a request body in bytes; 10,000 ratings take about 600,000."""
OPEN_PATHS = ("/health", *PAGE_FILES)
"""Paths that need no key, because they contain nothing of the run."""
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


def make_content_policy(image_hosts: Sequence[str]) -> str:
    """Return the content security policy: nothing from other servers but images of `image_hosts`."""
    images = " ".join(["'self'", "blob:", *image_hosts])  # the page fetches pictures with its key, as blobs
    return (
        f"default-src 'none'; script-src 'self'; style-src 'self'; img-src {images}; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


class RequestGuard:
    """ASGI middleware that admits requests with a valid API key or, without keys, requests from this machine.

    An admitted request carries its `Access` in the scope. `granted` holds those of the keys by their SHA-256, and
    `everybody` is the access of all requests if there are no keys.
    """

    def __init__(
        self,
        app: ASGIApp,
        granted: Mapping[bytes, Access],
        everybody: Access,
        metrics: ServerMetrics,
        log: AccessLog | None,
        image_hosts: Sequence[str] = (),
    ) -> None:
        self.app = app
        headers = {**HEADERS, "content-security-policy": make_content_policy(image_hosts)}
        self._headers = [(name.encode(), value.encode()) for name, value in headers.items()]
        self._metrics = metrics
        self._log = log
        self._granted = granted
        self._everybody = everybody

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
                message["headers"] = [*message.get("headers", []), *self._headers]
            await send(message)

        try:
            self._admit(scope)
            if scope["method"] not in ("GET", "HEAD"):
                receive = _limit_body(receive)
            await self.app(scope, receive, send_with_headers)
        except HttpProblem as problem:
            await send_problem(problem, send_with_headers)
        except Exception as error:
            if status != 500:  # the response has begun and can only be broken off
                raise
            lines = format_exception(type(error), error, error.__traceback__, chain=False)
            sys.stderr.write(make_printable("".join(lines)))
            internal = HttpProblem(
                500, "internal server error", "see the standard error of the server, and please report it"
            )
            await send_problem(internal, send_with_headers)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            seconds = time.perf_counter() - begin
            self._metrics.count_request(route, status, seconds)
            if self._log is not None:
                access = scope.get("access")
                name = None if access is None else access.key
                self._log.write(name, scope["method"], route, status, seconds)

    def _admit(self, scope: Scope) -> None:
        """Find the access of a request and store it in the scope; raise `HttpProblem` if it has none."""
        headers = dict(scope["headers"])
        if not self._granted:
            if not _names_this_machine(headers.get(b"host", b"").decode("latin-1")):
                # Without this check, a web page could reach the server through the browser under a name of its own.
                raise HttpProblem(
                    403,
                    "a server without an API key accepts requests to localhost only",
                    "use http://127.0.0.1, or start the server with a key",
                )
            scope["access"] = self._everybody
        elif scope["path"] not in OPEN_PATHS:
            scope["access"] = self._check_key(
                headers.get(b"authorization", b""), scope["method"], scope["path"]
            )
        if scope["method"] not in ("GET", "HEAD") and _comes_from_another_site(headers):
            raise HttpProblem(
                403, "a web page of another site sent this request", "send it from the server's own page"
            )
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > LARGEST_BODY:
            raise _body_too_large()

    def _check_key(self, authorization: bytes, method: str, path: str) -> Access:
        scheme, _, key = authorization.partition(b" ")
        access = self._granted.get(digest_key(key)) if scheme == b"Bearer" else None
        if access is None:
            raise HttpProblem(
                401,
                "the API key is missing or wrong",
                "send the header 'Authorization: Bearer KEY'",
                {"www-authenticate": "Bearer"},
            )
        right = RIGHTS.get((method, path))
        if right is not None and right not in access.rights:
            raise HttpProblem(
                403, f"this API key lacks the right '{right}'", "ask the operator of the server for it"
            )
        wait = 0.0 if access.bucket is None else access.bucket.take()
        if wait:
            seconds = math.ceil(wait)
            raise HttpProblem(
                429,
                "too many requests with this API key",
                f"try again in {seconds} s",
                {"retry-after": str(seconds)},
            )
        return access


def _comes_from_another_site(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a browser sends a request for a page of another origin; other clients send none of these headers."""
    site = headers.get(b"sec-fetch-site")
    if site is not None:
        return site not in (b"same-origin", b"none")
    origin = headers.get(b"origin")
    return origin is not None and origin.partition(b"://")[2] != headers.get(b"host", b"")


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

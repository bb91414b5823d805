"""Checks before every endpoint: API key, rights, rate, Host header and size; and headers, metrics and log of every response.

Neither metrics nor logs name a user. One key is a text file or an environment variable. Several keys are one TOML file:

    [shop]
    key = "..."
    rights = ["recommend", "fold-in"]
    parties = ["film"]
    per_second = 20

The server keeps only the SHA-256 of a key and looks keys up by it, so the time that this takes tells nothing about a key.
"""

from __future__ import annotations

import hashlib
import math
import os
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from traceback import format_exception
from typing import Annotated, Any, Literal

import orjson
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import generate_latest
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from verfedgnn.core.connection_table import is_loopback, parse_host_header
from verfedgnn.core.errors import ConfigError
from verfedgnn.core.files import read_private
from verfedgnn.core.option_names import make_printable
from verfedgnn.serving.schema import HttpProblem, describe_invalid

KEY_VARIABLE = "VERFEDGNN_API_KEY"
SHORTEST_KEY = 16
Right = Literal["recommend", "fold-in", "browse", "add-items", "metrics"]
RIGHTS: dict[tuple[str, str], Right] = {
    ("GET", "/v1/recommendations"): "recommend",
    ("GET", "/v1/similar"): "recommend",
    ("POST", "/v1/recommendations"): "fold-in",
    ("GET", "/v1/run"): "browse",
    ("GET", "/v1/users"): "browse",
    ("GET", "/v1/items"): "browse",
    ("GET", "/v1/history"): "browse",
    ("POST", "/v1/items"): "add-items",
    ("GET", "/metrics"): "metrics",
}
"""The right that each endpoint needs; a test compares this table with the endpoints."""
ALL_RIGHTS = frozenset(RIGHTS.values())
_CREATE = "python -c 'import secrets; print(secrets.token_urlsafe(32))'"


class TokenBucket:
    """A rate limit: tokens arrive at a constant rate up to a maximum, and every request takes one."""

    def __init__(self, per_second: float, burst: float) -> None:
        self._rate = per_second
        self._most = burst
        self._tokens = burst
        self._updated = time.monotonic()

    def take(self) -> float:
        """Take one token and return 0, or return the number of seconds until there is one."""
        now = time.monotonic()
        self._tokens = min(self._most, self._tokens + (now - self._updated) * self._rate)
        self._updated = now
        if self._tokens < 1:
            return (1 - self._tokens) / self._rate
        self._tokens -= 1
        return 0.0


@dataclass(frozen=True)
class ApiKey:
    """A key, by its SHA-256, and what its holder may do."""

    name: str
    digest: bytes
    rights: frozenset[str] = ALL_RIGHTS
    parties: tuple[str, ...] | None = None
    """Names of the parties whose items and ratings it may see; None for all that are served."""
    per_second: float | None = None
    """Number of requests per second on average; None for no limit."""
    burst: float = 1.0
    """Number of requests that may arrive at once."""

    @cached_property
    def bucket(self) -> TokenBucket | None:
        """The rate limit, which goes on when a run is loaded again."""
        return None if self.per_second is None else TokenBucket(self.per_second, self.burst)

    def find_parties(self, served: Sequence[str]) -> tuple[int, ...]:
        """Return the numbers of the served parties that its holder may see."""
        unknown = sorted(set(self.parties or ()) - set(served))
        if unknown:
            cause = f"key '{self.name}' names party '{unknown[0]}', which is not served"
            raise ConfigError(f"{cause}; use: {', '.join(served)}")
        return tuple(p for p, name in enumerate(served) if self.parties is None or name in self.parties)


def digest_key(key: str | bytes) -> bytes:
    """Return the SHA-256 by which a key is known."""
    return hashlib.sha256(key.encode() if isinstance(key, str) else key).digest()


def read_keys(file: Path | None) -> tuple[ApiKey, ...]:
    """Return the keys in a TOML file, the one in any other file or in the environment, or none."""
    if file is None:
        text = os.environ.get(KEY_VARIABLE)
        return () if text is None else (ApiKey("key", _check_key(text.strip(), KEY_VARIABLE)),)
    try:
        text = read_private(file).decode()
    except (OSError, UnicodeDecodeError) as error:
        remedy = "pass a text file that contains the key"
        raise ConfigError(f"the key file {file} cannot be read ({error}); {remedy}") from None
    if file.suffix != ".toml":
        return (ApiKey("key", _check_key(text.strip(), str(file))),)
    try:
        tables = _KEY_FILE.validate_python(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the key file {file} is not valid TOML: {error}") from None
    except ValidationError as error:
        reason = describe_invalid(error.errors()[0], ("[key]",))  # it quotes no key
        raise ConfigError(f"the key file {file}: {reason}") from None
    keys = []
    for name, table in tables.items():
        digest = _check_key(table.key, f"{file}, table {name},")
        burst = table.burst or max(1.0, table.per_second or 1.0)
        keys.append(ApiKey(name, digest, table.rights, table.parties, table.per_second, burst))
    if not keys:
        raise ConfigError(f"the key file {file} holds no key; add a table such as [shop] with key and rights")
    if len({key.digest for key in keys}) < len(keys):
        raise ConfigError(f"the key file {file} uses one key under two names; create another with: {_CREATE}")
    return tuple(keys)


class _KeyTable(BaseModel):
    model_config = ConfigDict(extra="forbid")
    key: str
    rights: Annotated[frozenset[Right], Field(min_length=1)]
    parties: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    per_second: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    burst: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = None


_KEY_FILE = TypeAdapter(dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,63}$")], _KeyTable])


def _check_key(key: str, where: str) -> bytes:
    """Return the digest of a key; raise `ConfigError` for one that is too short."""
    if len(key) < SHORTEST_KEY or not key.isascii() or any(c.isspace() for c in key):
        wanted = f"{SHORTEST_KEY} or more ASCII characters and no spaces"
        raise ConfigError(f"the key in {where} must have {wanted}; create one with: {_CREATE}")
    return digest_key(key)


BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2)
LARGEST_BODY = 2_000_000
"""Maximum size of a request body in bytes; 10,000 ratings take about 600,000."""
BODY_TOO_LARGE = f"the request is larger than {LARGEST_BODY:,} bytes"
_SCRIPTS = ("server.js", "draw.js", "items.js", "suggest.js", "newcomer.js", "page.js")
PAGE_FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    **{f"/{name}": (name, "text/javascript; charset=utf-8") for name in _SCRIPTS},
}
OPEN_PATHS = ("/healthz", "/readyz", *PAGE_FILES)
_PATHS = {path for _, path in RIGHTS} | {*OPEN_PATHS, "/openapi.json"}
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}
_SENT_HEADERS = [(name.encode(), value.encode()) for name, value in HEADERS.items()]


class ServerMetrics:
    """Requests by route and status, and response times, for Prometheus."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        here: dict[str, Any] = {"namespace": "verfedgnn", "registry": self._registry}
        self._requests = Counter("requests", "Requests answered.", ["route", "status"], **here)
        here["buckets"] = BUCKETS
        self._seconds = Histogram("request_seconds", "Response time in seconds.", ["route"], **here)

    def count_request(self, route: str, status: int, seconds: float) -> None:
        """Count one answered request."""
        self._requests.labels(route, status).inc()
        self._seconds.labels(route).observe(seconds)

    def render(self) -> bytes:
        """Return the body of /metrics."""
        return generate_latest(self._registry)


class AccessLog:
    """A file with one line of JSON per request, which only its owner can read."""

    def __init__(self, path: Path) -> None:
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError as error:
            cause = f"cannot write the access log {path}: {error.strerror}"
            raise ConfigError(f"{cause}; choose another --access-log") from None

    def append(self, values: Mapping[str, Any]) -> None:
        """Append a line with the time (UTC) and these values."""
        line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **values}
        with suppress(OSError):  # a full disk stops the log, not the server
            os.write(self._file, orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))


class RequestGuard:
    """ASGI middleware that admits requests with a valid API key or, without keys, requests from this machine.

    The scope of an admitted request has the numbers of the `parties` that it may see, whether it may see the `whole` run's users,
    and the name of its `key`. `granted` holds
    keys and their parties by the SHA-256 of the key, `everybody` the parties if there are no keys.
    """

    def __init__(
        self,
        app: ASGIApp,
        granted: Mapping[bytes, tuple[ApiKey, tuple[int, ...]]],
        everybody: tuple[int, ...],
        metrics: ServerMetrics,
        log: AccessLog | None,
    ) -> None:
        self.app, self._metrics, self._log = app, metrics, log
        self._granted, self._everybody = granted, everybody

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
                message["headers"] = [*message.get("headers", []), *_SENT_HEADERS]
            await send(message)

        try:
            self._admit(scope)
            if scope["method"] not in ("GET", "HEAD"):
                receive = _limit_body(receive)
            await self.app(scope, receive, send_with_headers)
        except HttpProblem as problem:
            await problem.response()(scope, receive, send_with_headers)
        except Exception as error:
            if status != 500:  # the response has begun and can only be broken off
                raise
            lines = format_exception(type(error), error, error.__traceback__, chain=False)
            sys.stderr.write(make_printable("".join(lines)))
            remedy = "see the standard error of the server, and please report it"
            internal = HttpProblem(500, "internal server error", remedy)
            await internal.response()(scope, receive, send_with_headers)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            seconds = time.perf_counter() - begin
            self._metrics.count_request(route, status, seconds)
            if self._log is not None:
                line = {"key": scope.get("key"), "method": scope["method"], "route": route, "status": status}
                self._log.append({**line, "ms": round(1000 * seconds, 2)})

    def _admit(self, scope: Scope) -> None:
        """Store in the scope what a request may see; raise `HttpProblem` for one that is not admitted."""
        headers = dict(scope["headers"])
        if not self._granted:
            if not is_loopback(parse_host_header(headers.get(b"host", b"").decode("latin-1"))):
                # Without this check, a web page could reach the server through the browser under a name of its own.
                cause = "a server without an API key accepts requests to localhost only"
                raise HttpProblem(403, cause, "use http://127.0.0.1, or start the server with a key")
            scope["parties"], scope["whole"] = self._everybody, True
        elif scope["path"] not in OPEN_PATHS:
            scope["parties"] = self._check_key(scope, headers.get(b"authorization", b""))
        if scope["method"] not in ("GET", "HEAD") and _comes_from_another_site(headers):
            cause = "a web page of another site sent this request"
            raise HttpProblem(403, cause, "send it from the server's own page")
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > LARGEST_BODY:
            raise HttpProblem(413, BODY_TOO_LARGE, "send fewer ratings at a time")

    def _check_key(self, scope: Scope, authorization: bytes) -> tuple[int, ...]:
        """Return the parties that a request may see by its key, and store in the scope what else the key says."""
        scheme, _, secret = authorization.partition(b" ")
        known = self._granted.get(digest_key(secret)) if scheme == b"Bearer" else None
        if known is None:
            remedy = "send the header 'Authorization: Bearer KEY'"
            raise HttpProblem(401, "the API key is missing or wrong", remedy, {"www-authenticate": "Bearer"})
        key, parties = known
        scope["key"], scope["whole"] = key.name, key.parties is None
        right = RIGHTS.get((scope["method"], scope["path"]))
        if right is not None and right not in key.rights:
            cause = f"this API key lacks the right '{right}'"
            raise HttpProblem(403, cause, "ask the operator of the server for it")
        wait = 0.0 if key.bucket is None else key.bucket.take()
        if wait:
            seconds = math.ceil(wait)
            remedy, headers = f"try again in {seconds} s", {"retry-after": str(seconds)}
            raise HttpProblem(429, "too many requests with this API key", remedy, headers)
        if scope["path"] not in _PATHS:  # routes match a line feed at the end, which `RIGHTS` does not
            raise HttpProblem(404, "not found", "/openapi.json lists all endpoints")
        return parties


def _comes_from_another_site(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a browser sends a request for a page of another origin; other clients send none of these headers."""
    site = headers.get(b"sec-fetch-site")
    if site is not None:
        return site not in (b"same-origin", b"none")
    origin = headers.get(b"origin")
    return origin is not None and origin.partition(b"://")[2] != headers.get(b"host", b"")


def _limit_body(receive: Receive) -> Receive:
    received = 0

    async def receive_limited() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > LARGEST_BODY:
            raise HTTPException(413, BODY_TOO_LARGE)
        return message

    return receive_limited

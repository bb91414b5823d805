"""API keys: who may call the server, with which rights, for which parties, and how often.

One key is a text file or an environment variable. Several keys are one TOML file, with a table for each:

    [shop]
    key = "..."
    rights = ["recommend", "fold-in"]
    parties = ["film"]
    per_second = 20

The server keeps only the SHA-256 of a key and looks keys up by it. How long that takes tells nothing about a key.
"""

from __future__ import annotations

import hashlib
import os
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from verfedgnn.core.errors import ConfigError
from verfedgnn.core.files import read_private

KEY_VARIABLE = "VERFEDGNN_API_KEY"
SHORTEST_KEY = 16
Right = Literal["recommend", "fold-in", "browse", "add-items", "metrics"]
RIGHTS: dict[tuple[str, str], Right] = {
    ("GET", "/v1/recommendations"): "recommend",
    ("POST", "/v1/recommendations/batch"): "recommend",
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
    """A rate limit: tokens arrive at a constant rate up to a maximum, and every request takes some."""

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

    def charge(self, tokens: float) -> None:
        """Take more tokens for a request that turned out to be large; later requests wait until they are paid."""
        self._tokens -= tokens


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


@dataclass(frozen=True)
class Access:
    """What one request may do."""

    key: ApiKey | None
    """Its key; None without keys, when every request from this machine has all rights."""
    parties: tuple[int, ...]
    """Numbers of the served parties that it may see."""

    def charge(self, requests: int) -> None:
        """Count a request as this many more against the rate limit."""
        if self.key is not None and self.key.bucket is not None:
            self.key.bucket.charge(requests)


def grant(key: ApiKey, served: Sequence[str]) -> Access:
    """Return the access of a key's holder to the served parties."""
    unknown = sorted(set(key.parties or ()) - set(served))
    if unknown:
        raise ConfigError(
            f"key '{key.name}' names party '{unknown[0]}', which is not served; use: {', '.join(served)}"
        )
    return Access(
        key, tuple(p for p, name in enumerate(served) if key.parties is None or name in key.parties)
    )


def digest_key(key: str | bytes) -> bytes:
    """Return the SHA-256 by which a key is known."""
    return hashlib.sha256(key.encode() if isinstance(key, str) else key).digest()


def read_keys(file: Path | None) -> tuple[ApiKey, ...]:
    """Return the keys in a TOML file, the one in any other file or in the environment, or none."""
    if file is None:
        text = os.environ.get(KEY_VARIABLE)
        return () if text is None else (_single_key(text, KEY_VARIABLE),)
    try:
        text = read_private(file).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the key file {file} cannot be read ({error}); pass a text file that contains the key"
        ) from None
    return _several_keys(text, file) if file.suffix == ".toml" else (_single_key(text, str(file)),)


class _KeyTable(BaseModel):
    model_config = ConfigDict(extra="forbid")
    key: str
    rights: Annotated[frozenset[Right], Field(min_length=1)]
    parties: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    per_second: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    burst: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = None


_KEY_FILE = TypeAdapter(dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,63}$")], _KeyTable])


def _single_key(text: str, where: str) -> ApiKey:
    return ApiKey("key", digest_key(_check_key(text.strip(), where)))


def _several_keys(text: str, file: Path) -> tuple[ApiKey, ...]:
    try:
        tables = _KEY_FILE.validate_python(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the key file {file} is not valid TOML: {error}") from None
    except ValidationError as error:
        raise ConfigError(f"the key file {file}: {_describe(error.errors()[0])}") from None
    keys = [
        ApiKey(
            name,
            digest_key(_check_key(table.key, f"{file}, table {name},")),
            frozenset(table.rights),
            table.parties,
            table.per_second,
            table.burst or max(1.0, table.per_second or 1.0),
        )
        for name, table in tables.items()
    ]
    if not keys:
        raise ConfigError(f"the key file {file} holds no key; add a table such as [shop] with key and rights")
    if len({key.digest for key in keys}) < len(keys):
        raise ConfigError(f"the key file {file} uses one key under two names; create another with: {_CREATE}")
    return tuple(keys)


def _describe(error: Any) -> str:
    """Describe a mistake in the file without quoting a key."""
    where = ".".join(str(part) for part in error["loc"] if part != "[key]")
    return f"{where}: {error['msg'][:1].lower()}{error['msg'][1:]}"


def _check_key(key: str, where: str) -> str:
    if len(key) < SHORTEST_KEY or not key.isascii() or any(c.isspace() for c in key):
        raise ConfigError(
            f"the key in {where} must have {SHORTEST_KEY} or more ASCII characters and no spaces; create one with: {_CREATE}"
        )
    return key

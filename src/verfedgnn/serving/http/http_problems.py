"""Errors of the HTTP API: a status, a cause and a remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import orjson
from starlette.types import Send


class HttpProblem(Exception):
    """A request that cannot be answered."""

    def __init__(
        self, status: int, cause: str, remedy: str, headers: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        super().__init__(cause)
        self.status = status
        self.cause = cause
        self.remedy = remedy
        self.headers = headers
        """Headers of the response, beside those of its body."""

    def as_dict(self) -> dict[str, dict[str, str]]:
        """Return the error as in the responses of the API."""
        return {"error": {"cause": self.cause, "remedy": self.remedy}}

    def as_json(self) -> bytes:
        """Return the body of the error response."""
        return orjson.dumps(self.as_dict())


def describe_invalid_request(errors: Sequence[Any]) -> HttpProblem:
    """Return the problem that describes the first of pydantic's validation errors."""
    first = errors[0]
    where = ".".join(str(part) for part in first["loc"] if part not in ("query", "body"))
    cause = f"{where or 'the request'}: {first['msg'][:1].lower()}{first['msg'][1:]}"
    encodable = cause.encode(
        errors="replace"
    ).decode()  # a body may hold lone surrogates, which UTF-8 cannot encode
    return HttpProblem(400, encodable, "correct the request; /openapi.json describes every parameter")


async def send_problem(problem: HttpProblem, send: Send) -> None:
    """Send a problem as the response to a request."""
    body = problem.as_json()
    headers = [(b"content-length", str(len(body)).encode()), (b"content-type", b"application/json")]
    headers += [(name.encode(), value.encode()) for name, value in problem.headers.items()]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

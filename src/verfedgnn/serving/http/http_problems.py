"""What went wrong with a request: an HTTP status, a cause and a remedy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


class Problem(Exception):
    """A request that cannot be answered."""

    def __init__(self, status: int, cause: str, remedy: str) -> None:
        super().__init__(cause)
        self.status, self.cause, self.remedy = status, cause, remedy

    def told(self) -> dict[str, dict[str, str]]:
        """The problem as an answer."""
        return {"error": {"cause": self.cause, "remedy": self.remedy}}

    def body(self) -> bytes:
        """The problem as JSON."""
        return json.dumps(self.told()).encode()


def invalid(errors: Sequence[Any]) -> Problem:
    """What a validation found, the first of it in words."""
    first = errors[0]
    where = ".".join(str(part) for part in first["loc"] if part not in ("query", "body"))
    cause = f"{where or 'the request'}: {first['msg'][:1].lower()}{first['msg'][1:]}"
    return Problem(400, cause, "correct it; /openapi.json describes every parameter")

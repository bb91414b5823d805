"""The access log: one line of JSON per request, without user ids, item ids, parameters or addresses."""

from __future__ import annotations

from pathlib import Path

from verfedgnn.serving.http.json_log import JsonLog


class AccessLog(JsonLog):
    """A file with one line for each request: who asked what, the status and the time it took."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "access")

    def write(self, key: str | None, method: str, route: str, status: int, seconds: float) -> None:
        """Append one request: name of the key, route, status and milliseconds."""
        self.append(
            {
                "key": key,
                "method": method,
                "route": route,
                "status": status,
                "ms": round(1000 * seconds, 2),
            }
        )

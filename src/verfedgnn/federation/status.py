"""The status of a member: status.json in its run folder and, over HTTP, a page, the same JSON and metrics.

The status holds rounds, errors, bytes and which parties are present; no message content, ids or addresses. This module does not
load torch, so that `verfedgnn status` is fast.
"""

from __future__ import annotations

import html
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verfedgnn.core.connection_table import ConnectionTable
from verfedgnn.core.errors import ConfigError, RunError
from verfedgnn.core.files import make_folder, replace_quickly, writing
from verfedgnn.core.hosts import is_address, parse_host_header

if TYPE_CHECKING:
    from verfedgnn.protocol.coordinator import ClosedRound
    from verfedgnn.runs.tracking.tracker import TrackedRun

FRESH_SECONDS = 0.05
"""Maximum age of the status in memory; building it for every event would cost too much."""
IDLE_SECONDS = 5.0
"""Number of seconds after which a reader that sends or takes nothing is disconnected."""
EVERY_SECONDS = 1.0
"""Maximum age of the status on disk."""
STALE_SECONDS = 30.0
"""Age of a status whose process no longer writes it."""
STOPPED = "stopped"
"""State of a member whose process has ended before its training did."""
FACTS = {
    "stage": "training of",
    "state": "state",
    "reason": "because",
    "waits_for": "waits for",
    "waits_since": "since",
    "next": "what happens next",
    "round": "round",
    "rounds": "of",
    "valid_error": "validation error",
    "best_error": "best",
    "seconds_per_round": "seconds per round",
    "seconds_left": "seconds left",
    "repeats": "restarted trips",
    "epsilon_spent": "epsilon spent",
}
"""Keys of the status, and how they are called where it is shown."""


class StatusPublisher:
    """Publisher of a member's latest status: on disk, and optionally over HTTP and in a tracking tool.

    As a context manager, it writes how the member's process has ended.
    """

    def __init__(
        self, folder: Path, *, port: tuple[str, int] | None = None, track: TrackedRun | None = None
    ) -> None:
        self.folder = folder
        self.status: dict[str, Any] = {}
        self._updated = 0.0
        self._written = 0.0
        self._durations: list[float] = []
        """Seconds of the last rounds."""
        self._last_round = 0.0
        self._track = track
        self._server = _serve(self, port) if port is not None else None

    def __enter__(self) -> StatusPublisher:
        return self

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        """Write that the member has stopped, unless it has finished, and stop serving."""
        if self.status and self.status.get("state") != "finished":
            end = {"state": STOPPED, "reason": str(error) if isinstance(error, Exception) else "stopped"}
            with suppress(RunError):  # a full disk may be what ended the process
                self.update(lambda: self.status | end, now=True)
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def update(self, make: Callable[[], dict[str, Any]], *, now: bool = False) -> None:
        """Publish `make()` if the last status is old enough, or in any case with `now`."""
        if not now and time.monotonic() - self._updated < FRESH_SECONDS:
            return
        self._updated = time.monotonic()
        self.status = self._add_times(make())
        if now or time.monotonic() - self._written > EVERY_SECONDS:
            self._written = time.monotonic()
            with writing(self.folder):
                make_folder(self.folder)
                text = json.dumps(self.status, indent=1, allow_nan=False)
                replace_quickly(self.folder / "status.json", f"{text}\n".encode())

    def start_stage(self) -> None:
        """Forget the durations of an earlier training's rounds."""
        self._durations = []
        self._last_round = 0.0

    def close_round(self, closed: ClosedRound, make: Callable[[], dict[str, Any]]) -> None:
        """Record the duration of a round, and its validation in the tracking tool."""
        now = time.monotonic()
        if self._last_round:
            self._durations = [*self._durations[-99:], now - self._last_round]
        self._last_round = now
        if self._track is not None and closed.valid_error is not None:
            status = make()
            present = sum(party["here"] for party in status["parties"].values())
            values = {"valid_error": closed.valid_error, "parties_here": present}
            values |= {f"bytes_{direction}": size for direction, size in status["bytes"].items()}
            self._track.metrics({f"{status['stage']}/{name}": v for name, v in values.items()}, closed.round)

    @property
    def seconds_per_round(self) -> float | None:
        """Median duration of the last rounds; None before the second round."""
        return sorted(self._durations)[len(self._durations) // 2] if self._durations else None

    def _add_times(self, status: dict[str, Any]) -> dict[str, Any]:
        """Return `status` with the median duration of a round and the estimated time left."""
        median = self.seconds_per_round
        left = None
        if median is not None and status.get("rounds") and status["state"] == "training":
            left = median * (status["rounds"] - status["round"])
        return status | {"seconds_per_round": median, "seconds_left": left, "updated": time.time()}


# -- as text -----------------------------------------------------------------------------------------------------------------


def presence(party: dict[str, Any]) -> str:
    """Return where a party is: stalled (owes an answer), here (takes part), slow, joined, connected (waits for others) or away."""
    states = ("stalled", "here", "slow", "joined", "connected")
    return next((state for state in states if party.get(state)), "away")


def format_heard(status: dict[str, Any], party: dict[str, Any]) -> str:
    """Return how long before the status a party was heard last, or since when it is missing; a dash if it is unknown."""
    if party.get("missing_since") is not None:
        return f"missing for {_age(status, party['missing_since'])}"
    return "–" if party.get("heard") is None else f"{_age(status, party['heard'])} ago"


def _age(status: dict[str, Any], moment: float) -> str:
    return f"{max(0.0, status.get('updated', moment) - moment):,.0f} s"


def format_value(status: dict[str, Any], key: str) -> str:
    """Return a value of the status as text; a dash if it is missing."""
    value = status.get(key)
    if value is None:
        return "–"
    if key == "waits_since":
        return f"{_age(status, value)} ago"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "–"
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


def describe_process(status: dict[str, Any]) -> str:
    """Return in a sentence whether the member's process is running."""
    state = status.get("state")
    if state == "finished":
        return "The training is finished."
    if state == STOPPED:
        return f"The process has ended ({status.get('reason')}). Start it again; it resumes."
    age = time.time() - status.get("updated", 0.0)
    if age > STALE_SECONDS:
        return f"This status is {age:,.0f} s old: the process is not running, or hangs. Start it again; it resumes."
    return "The process is running."


# -- over HTTP ---------------------------------------------------------------------------------------------------------------


class _StatusServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, publisher: StatusPublisher, address: tuple[str, int]) -> None:
        self.publisher = publisher
        self.readers = ConnectionTable()
        self.names = {"localhost", address[0].lower(), socket.gethostname().lower()}
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _StatusHandler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self.readers.add(request, client_address[0])
        super().process_request(request, client_address)

    def close_request(self, request: Any) -> None:
        super().close_request(request)
        self.readers.remove(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing: the reader has gone, and its address is nobody's business."""

    def admits(self, header: str) -> bool:
        """Return whether a Host header names this server: by an address, or by a name of this machine."""
        host = parse_host_header(header)
        return is_address(host) or host.lower() in self.names


class _StatusHandler(BaseHTTPRequestHandler):
    timeout = IDLE_SECONDS

    def do_GET(self) -> None:
        assert isinstance(self.server, _StatusServer)
        status = self.server.publisher.status
        if not self.server.admits(self.headers.get("Host", "")):
            # Without this check, a web page could read the status through a browser under a name of its own.
            self.send_error(403, explain="Use the address or the host name of this machine.")
        elif self.path == "/metrics":
            self._send(*exposition(status))
        elif self.path == "/status.json":
            self._send("application/json", json.dumps(status).encode())
        elif self.path == "/":
            self._send("text/html; charset=utf-8", page(status).encode())
        else:
            self.send_error(404)

    def _send(self, kind: str, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        return "verfedgnn"

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the addresses of readers are nobody's business."""


def _serve(publisher: StatusPublisher, address: tuple[str, int]) -> _StatusServer:
    try:
        server = _StatusServer(publisher, address)
    except OSError as error:
        where = f"{address[0]}:{address[1]}"
        raise ConfigError(
            f"cannot serve the status at {where}: {error.strerror}; use another --status"
        ) from None
    threading.Thread(target=server.serve_forever, name="status", daemon=True).start()
    return server


_GAUGES = {
    "round": "Rounds completed of the present training.",
    "rounds": "Rounds of the present training in total.",
    "valid_error": "RMSE, or 1 - NDCG@20, of the last validation.",
    "best_error": "RMSE, or 1 - NDCG@20, of the best validation.",
    "seconds_per_round": "Median duration of the last rounds.",
    "seconds_left": "Estimated seconds until the last round of the present training.",
    "epsilon_spent": "Epsilon of single ratings that this party has spent.",
    "waits_since": "Unix time since which the training waits for parties.",
    "updated": "Unix time of this status.",
}
_PARTY_GAUGES = {
    "here": "1 if the party takes part.",
    "connected": "1 if the party is connected.",
    "stalled": "1 if the party owes an answer for long.",
    "heard": "Unix time of the last message of the party.",
}


def exposition(status: dict[str, Any]) -> tuple[str, bytes]:
    """Return the content type and text of the status in Prometheus' format."""
    try:
        from prometheus_client import CollectorRegistry, exposition
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
    except ModuleNotFoundError:
        return "text/plain", b"# prometheus-client is not installed: pip install 'verfedgnn[federation]'\n"

    class Collector:
        def collect(self) -> Iterator[Any]:
            keys = ("role", "federation", "training", "stage", "state")
            about = {key: str(status[key]) for key in keys if status.get(key) is not None}
            yield InfoMetricFamily("verfedgnn", "This member of the federation.", value=about)
            for name, text in _GAUGES.items():
                if status.get(name) is not None:
                    yield GaugeMetricFamily(f"verfedgnn_{name}", text, value=status[name])
            yield CounterMetricFamily("verfedgnn_repeats", "Restarted trips.", value=status.get("repeats", 0))
            by_party = {
                name: GaugeMetricFamily(f"verfedgnn_party_{name}", text, labels=["party"])
                for name, text in _PARTY_GAUGES.items()
            }
            text = "1 if the training waits for the party."
            waits = GaugeMetricFamily("verfedgnn_waits_for", text, labels=["party"])
            for party in status.get("waits_for") or []:
                waits.add_metric([party], 1.0)
            refused = CounterMetricFamily("verfedgnn_refused", "Refused messages.", labels=["party"])
            size = CounterMetricFamily("verfedgnn_bytes", "Bytes of messages.", labels=["party", "direction"])
            for party, about_party in status.get("parties", {}).items():
                for name, gauge in by_party.items():
                    value = about_party.get(name, None if name == "heard" else False)
                    if value is not None:
                        gauge.add_metric([party], float(value))
                refused.add_metric([party], about_party.get("refused", 0))
                for direction in ("up", "down"):
                    size.add_metric([party, direction], about_party[direction])
            yield from (*by_party.values(), waits, refused, size)

    registry = CollectorRegistry()
    registry.register(Collector())
    return exposition.CONTENT_TYPE_PLAIN_0_0_4, exposition.generate_latest(registry)


def page(status: dict[str, Any]) -> str:
    """Return the status as an HTML page, which reloads every few seconds and loads nothing from elsewhere."""
    rows = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{presence(p)}</td><td>{format_heard(status, p)}</td>"
        f"<td>{p['up'] / 1e6:,.1f}</td><td>{p['down'] / 1e6:,.1f}</td><td>{p.get('refused', 0)}</td></tr>"
        for name, p in status.get("parties", {}).items()
    )
    facts = "".join(
        f"<dt>{label}</dt><dd>{html.escape(format_value(status, key))}</dd>" for key, label in FACTS.items()
    )
    title = html.escape(f"{status.get('federation', 'verfedgnn')}: {status.get('role', '')}")
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta http-equiv=refresh content=5>"
        "<meta name=viewport content='width=device-width'>"
        f"<title>{title}</title><style>body{{font:16px/1.5 system-ui;max-width:44rem;margin:2rem auto;padding:0 1rem}}"
        "dl{display:grid;grid-template-columns:max-content 1fr;gap:.2rem 1rem}dt{color:#555}dd{margin:0}"
        "table{border-collapse:collapse;width:100%}th,td{text-align:right;padding:.3rem .6rem;border-bottom:1px solid #ddd}"
        "th:first-child,td:first-child{text-align:left}</style>"
        f"<h1>{title}</h1><dl>{facts}</dl>"
        f"<table><tr><th>party<th><th>heard<th>MB up<th>MB down<th>refused</tr>{rows}</table></html>"
    )

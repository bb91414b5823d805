"""The status of a member: status.json in its run folder and, over HTTP, a page, the same JSON, metrics and two health checks.

The status holds rounds, errors, bytes and which parties are present; no message content, ids or addresses. This module does not
load torch, so that `verfedgnn status` is fast.
"""

from __future__ import annotations

import io
import json
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from verfedgnn.core.connection_table import ConnectionTable, is_address, parse_host_header
from verfedgnn.core.errors import ConfigError, RunError
from verfedgnn.core.files import make_folder, write_bytes, writing

if TYPE_CHECKING:
    from verfedgnn.federation.roster import MemberIdentity

FRESH_SECONDS = 0.05
"""Maximum age of the status in memory; building it for every event would cost too much."""
IDLE_SECONDS = 5.0
"""Number of seconds after which a reader that sends or takes nothing is disconnected."""
EVERY_SECONDS = 1.0
"""Maximum age of the status on disk."""
STALE_SECONDS = 30.0
"""Age of a status whose process no longer writes it."""
HANGING_SECONDS = 900.0
"""Age of a status whose process hangs, though it answers; a party may compute for long in between."""
COMPUTING = ("gathering", "aligning", "choosing the gate")
"""States in which a party of many users may compute for longer than that without a new status."""
STOPPED = "stopped"
"""State of a member whose process has ended before its training did."""
_FACTS = {
    "federation": "federation",
    "role": "role",
    "training": "training",
    "stage": "training of",
    "state": "state",
    "reason": "because",
    "waits_for": "waits for",
    "waits_since": "since",
    "next": "what happens next",
    "round": "round",
    "rounds": "of",
    "valid_error": "validation",
    "best_error": "best",
    "seconds_per_round": "seconds per round",
    "seconds_left": "seconds left",
    "repeats": "restarted rounds",
    "epsilon_spent": "epsilon spent",
    "versions": "versions",
    "accepted": "agreement accepted by",
}
"""Keys of the status, and how they are called where it is shown."""
_FOR_MEMBERS = (
    "federation", "state", "stage", "round", "rounds", "waits_for", "waits_since", "next", "seconds_left",
)  # fmt: skip
"""Those that all members may see."""
_GAUGES = (
    "round", "rounds", "valid_error", "best_error", "seconds_per_round", "seconds_left", "epsilon_spent",
    "waits_since", "updated",
)  # fmt: skip
"""Keys whose values are numbers for Prometheus; times are Unix times."""


class StatusPublisher:
    """Publisher of a member's latest status: on disk, and optionally over HTTP at `port`.

    As a context manager, it writes that the member's process has started, and how it has ended.
    """

    def __init__(
        self, folder: Path, identity: MemberIdentity | None = None, *, port: tuple[str, int] | None = None
    ) -> None:
        self.folder = folder
        self._about: dict[str, Any] = {}
        """What every status says of this member."""
        if identity is not None:
            self._about = {"role": identity.role, "federation": identity.agreement.name}
        self._updated = 0.0
        self._written = 0.0
        self.start_stage()
        self.status = self._complete({"state": "starting"})
        self._server = _StatusServer(self, port) if port is not None else None

    def __enter__(self) -> StatusPublisher:
        self.update(lambda: {"state": "starting"}, now=True)
        return self

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        """Write that the member has stopped, unless it has finished, and stop serving."""
        if self.status["state"] != "finished":
            with suppress(RunError):  # a full disk may be what ended the process
                self.change(state=STOPPED, reason=str(error) if isinstance(error, Exception) else "stopped")
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def update(self, make: Callable[[], dict[str, Any]], *, now: bool = False) -> None:
        """Publish `make()` if the last status is old enough, or in any case with `now`."""
        if not now and time.monotonic() - self._updated < FRESH_SECONDS:
            return
        self._updated = time.monotonic()
        self.status = self._complete(make())
        if now or self._updated - self._written > EVERY_SECONDS:
            self._written = self._updated
            with writing(self.folder):
                make_folder(self.folder)
                text = json.dumps(self.status, indent=1, allow_nan=False)
                write_bytes(self.folder / "status.json", f"{text}\n".encode(), flush=False)

    def change(self, **fields: str) -> None:
        """Publish the last status at once, with other values of some fields."""
        self.update(lambda: self.status | fields, now=True)

    def start_stage(self) -> None:
        """Forget the durations of an earlier training's rounds."""
        self._ends: deque[float] = deque(maxlen=100)
        """Times at which the last rounds ended."""

    def close_round(self) -> None:
        """Record the end of a round."""
        self._ends.append(time.monotonic())

    @property
    def seconds_per_round(self) -> float | None:
        """Median duration of the last rounds; None before the second round."""
        durations = sorted(after - before for before, after in pairwise(list(self._ends)))
        return durations[len(durations) // 2] if durations else None

    def _complete(self, status: dict[str, Any]) -> dict[str, Any]:
        """Return `status` with the member's name, the median duration of a round and the estimated time left."""
        median = self.seconds_per_round
        left = None
        if median is not None and status.get("rounds") and status["state"] == "training":
            left = median * (status["rounds"] - status["round"])
        members = (status.get("members") or {"members": {}})["members"]
        versions = [f"{name} {about['version']}" for name, about in sorted(members.items())]
        times = {
            "seconds_per_round": median,
            "seconds_left": left,
            "updated": time.time(),
            "versions": versions,
        }
        return {"parties": {}, **self._about, **status, **times}


# -- as text -----------------------------------------------------------------------------------------------------------------


def presence(party: dict[str, Any]) -> str:
    """Return where a party is: stalled (owes an answer), here (takes part), slow, joined, connected (waits for others) or away."""
    states = ("stalled", "here", "slow", "joined", "connected")
    return next((state for state in states if party.get(state)), "away")


def _tabulate_facts(status: dict[str, Any], keys: Iterable[str]) -> Table:
    facts = Table("", "", show_header=False, box=None)
    for key in keys:
        facts.add_row(_FACTS[key], Text(_format_value(status, key)))
    return facts


def make_tables(status: dict[str, Any]) -> tuple[Table, Table]:
    """Return a table of the facts in a status, and one of the parties."""
    parties = Table("party", "", "heard", "MB up", "MB down", "refused")
    for name, about in status.get("parties", {}).items():
        heard = "–"
        if about.get("missing_since") is not None:
            heard = f"missing for {_age(status, about['missing_since'])}"
        elif about.get("heard") is not None:
            heard = f"{_age(status, about['heard'])} ago"
        sizes = (f"{about[way] / 1e6:,.1f}" for way in ("up", "down"))
        parties.add_row(Text(name), presence(about), heard, *sizes, Text(str(about.get("refused", 0))))
    return _tabulate_facts(status, _FACTS), parties


def make_members_tables(status: dict[str, Any]) -> tuple[Table, Table, Table]:
    """Return what all members may see: the rounds and who waits for whom, shared verdicts, and the last nights."""
    page = status.get("members") or {"members": {}, "nights": []}
    verdicts = Table("member", "joining pays", "known customers gain", "run")
    for name, about in sorted(page["members"].items()):
        if name != "server":
            verdicts.add_row(*map(Text, (name, about["word"] or "not shared", about["gain"], about["run"])))
    nights = Table("night", "coordinator")
    for night, result in reversed(page["nights"]):
        nights.add_row(Text(night), Text(result))
    return _tabulate_facts(status, _FOR_MEMBERS), verdicts, nights


def _age(status: dict[str, Any], moment: float) -> str:
    return f"{max(0.0, status.get('updated', moment) - moment):,.0f} s"


def _format_value(status: dict[str, Any], key: str) -> str:
    value = status.get(key)
    if value is None or value == []:
        return "–"
    if key == "waits_since":
        return f"{_age(status, value)} ago"
    if key in ("valid_error", "best_error") and str(status.get("stage")).endswith("lists"):
        return f"NDCG@20 {1 - value:.4g}"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


def describe_process(status: dict[str, Any]) -> str:
    """Return in a sentence whether the member's process is running."""
    state = status.get("state")
    if state == "finished":
        return "The training is finished."
    if state == STOPPED:
        return f"The process has ended ({status.get('reason')}). Start it again; it resumes."
    age = time.time() - status.get("updated", time.time())
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
        try:
            super().__init__(address, _StatusHandler)
        except OSError as error:
            problem = f"cannot serve the status at {address[0]}:{address[1]}: {error.strerror}"
            raise ConfigError(f"{problem}; use another --status") from None
        threading.Thread(target=self.serve_forever, name="status", daemon=True).start()

    def process_request(self, request: Any, client_address: Any) -> None:
        self.readers.add(request, client_address[0])
        super().process_request(request, client_address)

    def close_request(self, request: Any) -> None:
        super().close_request(request)
        self.readers.remove(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing: the reader has gone, and its address is nobody's business."""


class _StatusHandler(BaseHTTPRequestHandler):
    timeout = IDLE_SECONDS

    def do_GET(self) -> None:
        assert isinstance(self.server, _StatusServer)
        status = self.server.publisher.status
        state, code = status["state"], HTTPStatus.OK
        host = parse_host_header(self.headers.get("Host", ""))
        if not is_address(host) and host.lower() not in self.server.names:
            # Without this check, a web page could read the status through a browser under a name of its own.
            self.send_error(403, explain="Use the address or the host name of this machine.")
            return
        match self.path:
            case "/":
                kind, text = "text/html", page(make_tables(status))
            case "/members":
                kind, text = "text/html", page(make_members_tables(status))
            case "/status.json":
                kind, text = "application/json", json.dumps(status)
            case "/metrics":
                kind, text = "text/plain; version=0.0.4", exposition(status)
            case "/healthz" | "/readyz":
                kind, text = "text/plain", f"{state}\n"
                fresh = time.time() - status["updated"] < HANGING_SECONDS or state in COMPUTING
                # The coordinator accepts parties, or the party hears the coordinator.
                ready = self.path == "/healthz" or state == "finished" or status.get("ready")
                if state == STOPPED or not fresh or not ready:
                    code = HTTPStatus.SERVICE_UNAVAILABLE
            case _:
                self.send_error(404)
                return
        body = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        return "verfedgnn"

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the addresses of readers are nobody's business."""


def exposition(status: dict[str, Any]) -> str:
    """Return the status in Prometheus' text format."""
    samples: dict[str, list[str]] = {}

    def add(name: str, value: Any, **labels: str) -> None:
        if value is not None:
            shown = ",".join(f"{label}={json.dumps(text)}" for label, text in labels.items())
            sample = f"verfedgnn_{name}{f'{{{shown}}}' if shown else ''} {float(value)}\n"
            samples.setdefault(f"verfedgnn_{name}", []).append(sample)

    keys = ("role", "federation", "training", "stage", "state")
    add("info", 1, **{key: str(status[key]) for key in keys if status.get(key) is not None})
    for key in _GAUGES:
        add(key, status.get(key))
    add("repeats_total", status.get("repeats", 0))
    for name in status.get("waits_for") or []:
        add("waits_for", 1, party=name)
    for name, about in status.get("parties", {}).items():
        for field in ("here", "connected", "stalled", "heard"):
            add(f"party_{field}", about.get(field), party=name)
        add("refused_total", about.get("refused"), party=name)
        for way in ("up", "down"):
            add("bytes_total", about[way], party=name, direction=way)
    kinds = {name: "counter" if name.endswith("_total") else "gauge" for name in samples}
    return "".join(f"# TYPE {name} {kinds[name]}\n{''.join(lines)}" for name, lines in samples.items())


_PAGE = """\
<!doctype html><html lang=en><meta charset=utf-8><meta http-equiv=refresh content=5>
<meta name=viewport content='width=device-width'><title>verfedgnn</title>
<pre style='max-width:60rem;margin:2rem auto'>{code}</pre></html>
"""


def page(tables: Sequence[Table]) -> str:
    """Return tables as an HTML page, which reloads every few seconds and loads nothing from elsewhere."""
    console = Console(record=True, file=io.StringIO(), width=110)
    console.print(*tables, sep="\n")
    return console.export_html(inline_styles=True, code_format=_PAGE)

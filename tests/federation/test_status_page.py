"""The status page under attack: idle connections, slow readers and foreign host names."""

from __future__ import annotations

import http.client
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from verfedgnn.core.connection_table import MAX_PER_ADDRESS
from verfedgnn.federation import status
from verfedgnn.federation.status import StatusPublisher

IDLE = """
import resource, socket, sys
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
held = [socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=180) for _ in range(1000)]
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[status._StatusServer]:
    publisher = StatusPublisher(tmp_path, port=("127.0.0.1", 0))
    publisher.update(lambda: {"role": "coordinator", "state": "training", "parties": {}}, now=True)
    assert publisher._server is not None
    yield publisher._server
    publisher.__exit__(None, None)


@pytest.fixture
def port(server: status._StatusServer) -> int:
    return int(server.server_address[1])


def get(port: int, path: str = "/status.json", host: str | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=180)
    try:
        connection.request("GET", path, headers={"Host": host} if host is not None else {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    """Let this process open 150 more files than it has open now."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 150, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors in /proc")
@pytest.mark.usefixtures("few_descriptors")
def test_a_thousand_idle_connections_stop_nothing(
    server: status._StatusServer, port: int, tmp_path: Path
) -> None:
    """A training can still open its files, and the page still answers."""
    command = [sys.executable, "-c", IDLE, str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as attacker:
        assert attacker.stdout is not None
        assert attacker.stdout.readline() == b"held\n"
        for n in range(20):
            (tmp_path / f"checkpoint-{n}").write_text("written")
            assert get(port)[0] == 200
        assert len(list(server.readers)) <= MAX_PER_ADDRESS


def test_a_connection_that_sends_nothing_is_closed(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status._StatusHandler, "timeout", 0.3)
    with socket.create_connection(("127.0.0.1", port), timeout=180) as idle:
        assert idle.recv(1) == b""


def test_a_foreign_host_name_is_refused(port: int) -> None:
    """A web page that points a name of its own at this machine reads nothing; addresses and localhost are answered."""
    for host in ("evil.example", "evil.example:9100", "127.0.0.1.evil.example", ""):
        code, body = get(port, host=host)
        assert (code, b"coordinator" in body) == (403, False), host
    for host in ("127.0.0.1", "localhost:9100", "[::1]:9100", "192.0.2.7:9100"):
        assert get(port, host=host)[0] == 200, host


def test_health_checks_tell_a_working_process_from_one_that_can_take_part(
    server: status._StatusServer, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A party that is alone works and is not ready; one whose process hangs or has stopped is neither."""

    def checks(**changes: object) -> tuple[int, int]:
        server.publisher.status |= changes
        return get(port, "/healthz")[0], get(port, "/readyz")[0]

    assert get(port, "/healthz") == (200, b"training\n")
    assert checks(state="gathering", ready=False) == (200, 503)
    assert checks(state="training", ready=True) == (200, 200)
    assert checks(state="finished", ready=False) == (200, 200)
    assert checks(state=status.STOPPED, ready=True) == (503, 503)
    late = server.publisher.status["updated"] - status.HANGING_SECONDS
    assert checks(state="choosing the gate", ready=True, updated=late) == (200, 200)
    assert checks(state="training", updated=late) == (503, 503)


def test_the_examples_ask_for_health_where_the_status_is() -> None:
    root = Path(__file__).resolve().parents[2]
    services = yaml.safe_load((root / "compose.yaml").read_text())["services"]
    for member in services.values():
        address = member["command"][member["command"].index("--status") + 1]
        assert f"http://{address}/healthz" in member["healthcheck"]["test"][-1]

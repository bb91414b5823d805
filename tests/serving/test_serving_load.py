"""Serving under load: clients that disconnect, overload and shutdown."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import verfedgnn as vf
from verfedgnn.serving.catalogue import Catalogue

httpx = pytest.importorskip("httpx", reason="httpx is not installed: no client")
pytest.importorskip("fastapi", reason="the extra serve is not installed")

from served import serving  # noqa: E402
from verfedgnn.serving import app as lists  # noqa: E402
from verfedgnn.serving.app import make_app  # noqa: E402


@pytest.fixture(scope="module")
def address(run: vf.Run) -> Iterator[str]:
    with serving(make_app(Catalogue(run, "first"))) as address:
        yield address


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[Any]:
    with httpx.Client(base_url=address, timeout=180) as client:
        yield client


@pytest.fixture(scope="module")
def people(run: vf.Run) -> list[str]:
    return [str(user) for user in run.parties[0].ratings.user_ids]


@pytest.fixture(scope="module")
def folder(run: vf.Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("served") / "run"
    run.save(path)
    return path


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("user=USER", 200),
        ("user=USER&k=1000", 200),
        ("k=003&user=USER&party=PARTY&model=alone", 200),
        ("user=USER&k=%2B3", 200),
        ("user=USER&user=nobody", 404),
        ("user=nobody", 404),
        ("user=USER&party=nobody", 404),
        ("user=USER&party=", 404),
        ("user=USER&k=0", 400),
        ("user=USER&k=1001", 400),
        ("user=USER&k=", 400),
        ("user=USER&k=%C2%B3", 400),
        ("user=USER&model=none", 400),
        ("user=USER&colour=red", 400),
        ("user=", 400),
        ("", 400),
    ],
)
def test_a_request_is_answered_or_refused(
    run: vf.Run, client: Any, people: list[str], query: str, status: int
) -> None:
    query = query.replace("USER", people[3]).replace("PARTY", run.parties[1].name)
    assert client.get(f"/v1/recommendations?{query}").status_code == status


def test_clients_that_hang_up_cost_nobody_an_answer(address: str, people: list[str]) -> None:
    host, port = address.removeprefix("http://").split(":")
    where = (host, int(port))

    def request(user: str) -> bytes:
        return f"GET /v1/recommendations?user={user}&k=3 HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode()

    def ask(number: int) -> bytes:
        asked = request(people[number % len(people)])
        with socket.create_connection(where, timeout=180) as line:
            if number % 3 == 0:  # in the middle of the question
                line.sendall(asked[:20])
                return b""
            line.sendall(asked)
            if number % 3 == 1:  # before the answer
                return b""
            return b"".join(iter(lambda: line.recv(65536), b""))

    with ThreadPoolExecutor(64) as pool:
        answers = list(pool.map(ask, range(600)))
    stayed = answers[2::3]
    assert all(answer.startswith(b"HTTP/1.1 200") and answer.endswith(b"]}") for answer in stayed)


def test_an_overloaded_server_refuses_requests(
    run: vf.Run, people: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lists, "LONGEST_QUEUE", 0)
    with serving(make_app(Catalogue(run, "full"))) as address:
        answer = httpx.get(f"{address}/v1/recommendations", params={"user": people[0]}, timeout=180)
    assert answer.status_code == 503
    assert "try again" in answer.json()["error"]["remedy"]


@contextmanager
def command(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start the command, and yield its process and address."""
    words = [sys.executable, "-m", "verfedgnn", "serve", str(folder), "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        watchdog = threading.Timer(180, server.kill)
        watchdog.start()
        try:
            assert server.stdout is not None
            yield server, server.stdout.readline().split(" at ")[1].split()[0]
        finally:
            watchdog.cancel()
            server.kill()


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_is_a_normal_end(folder: Path, people: list[str], number: signal.Signals) -> None:
    with command(folder) as (server, address):
        with httpx.Client(base_url=address, timeout=180) as client:
            for user in people[:20]:
                assert client.get("/v1/recommendations", params={"user": user}).status_code == 200
            metrics = client.get("/metrics").text
        server.send_signal(number)
        written = server.communicate(timeout=180)
    assert 'verfedgnn_requests_total{route="/v1/recommendations",status="200"} 20.0' in metrics
    assert (server.returncode, written) == (0, ("", f"next: open {address} in a browser\n"))

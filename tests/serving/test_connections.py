"""Connections to a served run that send nothing, too slowly or too much."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from verfedgnn.serving.catalogue import Catalogue
from verfedgnn.serving.ranker import ItemRanker

httpx = pytest.importorskip("httpx", reason="httpx is not installed: no client")
pytest.importorskip("fastapi", reason="the extra serve is not installed")

from served import serving  # noqa: E402
from verfedgnn.serving import server as server_process  # noqa: E402
from verfedgnn.serving.app import make_app  # noqa: E402

HEALTH = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST /v1/recommendations HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"
"""A request without the end of its body."""


@pytest.fixture
def where(catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    """A server at which one address may have eight waiting connections."""
    monkeypatch.setattr(server_process, "MOST_WAITING", 16)
    with serving(make_app(catalogue), send_buffer=4096) as address:
        yield "127.0.0.1", int(address.rsplit(":", 1)[1])


def connect(where: tuple[str, int], sent: bytes = b"") -> socket.socket:
    line = socket.create_connection(where, timeout=180)
    line.sendall(sent)
    return line


def ask(line: socket.socket) -> bytes:
    line.sendall(HEALTH)
    return take_answer(line)


def take_answer(line: socket.socket) -> bytes:
    """Return the answer to `HEALTH`, whose parts may come one after the other."""
    answer = b""
    while not answer.endswith(b"}"):
        part = line.recv(65536)
        assert part, answer
        answer += part
    return answer


def is_open(line: socket.socket) -> bool:
    line.settimeout(0.05)
    try:
        while line.recv(65536):
            pass
        return False
    except TimeoutError:
        return True
    except OSError:
        return False


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        HEALTH[:-2],
        POST,
        b"\r\n",
        HEALTH + POST,
    ],
    ids=["silent", "headers", "body", "newlines", "body behind a request"],
)
def test_waiting_connections_stop_nobody(where: tuple[str, int], sent: bytes) -> None:
    held = []
    for _ in range(40):
        held.append(connect(where, sent))
        with connect(where) as line:
            assert ask(line).startswith(b"HTTP/1.1 200")
    assert sum(map(is_open, held)) <= 8
    for line in held:
        line.close()


def test_a_request_that_is_being_answered_is_not_cut_off(
    catalogue: Catalogue, known: str, where: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end = threading.Event(), threading.Event()
    rank = ItemRanker.rank

    def slow(*given: object) -> object:
        begun.set()
        assert may_end.wait(180)
        return rank(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(ItemRanker, "rank", slow)
    asked = f"GET /v1/recommendations?user={known} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    with connect(where, asked) as line:
        assert begun.wait(180)
        held = [connect(where) for _ in range(40)]
        with connect(where) as other:
            assert ask(other).startswith(b"HTTP/1.1 200")
        may_end.set()
        assert line.recv(65536).startswith(b"HTTP/1.1 200")
    for each in held:
        each.close()


@pytest.mark.parametrize(
    ("sent", "again"),
    [
        (b"", False),
        (HEALTH[:-2], False),
        (HEALTH[:-2], True),
        (b"\r\n", False),
        (b"\r\n", True),
        (HEALTH + POST, False),
    ],
)
def test_a_request_that_does_not_arrive_in_time_is_given_up(
    where: tuple[str, int], sent: bytes, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after an earlier request on the same connection."""
    monkeypatch.setattr(server_process, "REQUEST_SECONDS", 0.2)
    with connect(where) as line:
        assert not again or ask(line).startswith(b"HTTP/1.1 200")
        line.sendall(sent)
        assert not sent.startswith(HEALTH) or take_answer(line).startswith(b"HTTP/1.1 200")
        with suppress(ConnectionResetError):
            assert line.recv(65536) == b""


def ask_and_take_nothing(where: tuple[str, int]) -> socket.socket:
    """Ask for more than the system holds for a client, and read none of it."""
    line = socket.socket()
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    line.connect(where)
    line.setblocking(False)
    with suppress(BlockingIOError):
        line.send(b"GET /page.css HTTP/1.1\r\nHost: localhost\r\n\r\n" * 16)
    return line


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Tells that the server has ended a connection; the client sees it only when it has read what was sent."""
    event = threading.Event()
    lose = server_process.BoundedProtocol.connection_lost

    def note(self: server_process.BoundedProtocol, error: Exception | None) -> None:
        lose(self, error)
        event.set()

    monkeypatch.setattr(server_process.BoundedProtocol, "connection_lost", note)
    return event


def test_a_client_that_takes_no_response_is_given_up(
    where: tuple[str, int],
    ended: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(server_process, "RESPONSE_SECONDS", 0.2)
    with ask_and_take_nothing(where):
        assert ended.wait(180)
    with connect(where) as other:
        assert ask(other).startswith(b"HTTP/1.1 200")
    assert "Traceback" not in capfd.readouterr().err


def test_clients_that_take_no_response_stop_nobody(where: tuple[str, int], ended: threading.Event) -> None:
    with ExitStack() as held:
        for _ in range(9):
            held.enter_context(ask_and_take_nothing(where))
        assert ended.wait(180), "the oldest makes room"
        with connect(where) as line:
            assert ask(line).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(("behind", "all_answered"), [(16, True), (2000, False)])
def test_requests_behind_the_first_are_bounded(
    where: tuple[str, int], behind: int, all_answered: bool
) -> None:
    last = HEALTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    answers = b""
    with connect(where, HEALTH * behind + last) as line, suppress(ConnectionResetError):
        while part := line.recv(65536):
            answers += part
    assert (answers.count(b"HTTP/1.1 200") == behind + 1) == all_answered
    assert logging.getLogger("uvicorn.error").level == logging.ERROR, "strangers do not fill the log"


def flood(line: socket.socket, data: bytes) -> None:
    for _ in range(10_000):
        line.sendall(data * 1000)


@pytest.mark.parametrize(
    ("start", "more"),
    [
        (b"GET /", b"aaaaaa"),
        (b"GET / HTTP/1.1\r\nHost: ", b"aaaaaa"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n", b"a: b\r\n"),
        (
            b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nTrailer: ",
            b"aaaaaa",
        ),
    ],
    ids=["url", "header", "headers", "trailer"],
)
def test_what_has_no_end_is_refused(where: tuple[str, int], start: bytes, more: bytes) -> None:
    with connect(where, start) as line, pytest.raises(ConnectionError):
        flood(line, more)

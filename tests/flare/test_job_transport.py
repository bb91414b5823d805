"""The transport inside a FLARE job, between two cells of which a test decides what they deliver, in which order and from whom."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: it is in the extra flare")

from nvflare.apis.client import Client
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.message import Message
from nvflare.private.defs import CellMessageHeaderKeys

from verfedgnn_flare import job_transport
from verfedgnn_flare.controller import identify_clients
from verfedgnn_flare.job_transport import MOST_WAITING, JobTransport


class Cell:
    """A cell of FLARE that is connected to one other cell."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.core_cell = self
        self.other: Cell
        self.callbacks: dict[str, Callable[[Message], None]] = {}
        self.pass_on: Callable[[Message], list[Message]] = lambda message: [message]
        """What becomes of an outgoing message, other than a pulse."""
        self.mute = False

    def register_request_cb(self, channel: str, topic: str, cb: Callable[[Message], None]) -> None:
        self.callbacks[topic] = cb

    def fire_and_forget(
        self, channel: str, topic: str, target: str, message: Message, optional: bool
    ) -> dict[str, str]:
        message.set_header(MessageHeaderKey.ORIGIN, self.name)
        if not self.mute and topic in self.other.callbacks:
            for each in self.pass_on(message) if topic == "message" else [message]:
                self.other.callbacks[topic](each)
        return {target: ""}


class Pair:
    """The coordinator and one party."""

    def __init__(self) -> None:
        self.cells = Cell("server.job"), Cell("books.job")
        self.cells[0].other = self.cells[1]
        self.cells[1].other = self.cells[0]
        self.server = JobTransport(self.cells[0], {"books": "books.job"}, lambda m: "books", link_seconds=600)
        self.party = JobTransport(
            self.cells[1], {"server": "server.job"}, lambda m: "server", link_seconds=600
        )

    def until(self, end: JobTransport, kind: str) -> Any:
        """Return the next event of a kind."""
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline:
            event = end.next(0.05)
            if event is not None and event.kind == kind:
                return event
        raise AssertionError(f"no {kind}")


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    monkeypatch.setattr(job_transport, "PULSE_SECONDS", 0.05)
    pair = Pair()
    pair.until(pair.server, "joined")
    pair.until(pair.party, "joined")
    yield pair
    pair.party.close()
    pair.server.close()


def test_messages_that_overtake_each_other_arrive_in_order(pair: Pair) -> None:
    held: list[Message] = []

    def swap(message: Message) -> list[Message]:
        held.append(message)
        return [held.pop(), held.pop()] if len(held) == 2 else []

    pair.cells[1].pass_on = swap
    for number in range(6):
        pair.party.send("server", (bytes([number]),))
    assert [pair.until(pair.server, "message").data[0] for _ in range(6)] == list(range(6))


def test_a_repeated_message_arrives_once(pair: Pair) -> None:
    pair.cells[1].pass_on = lambda message: [message, message]
    for number in range(3):
        pair.party.send("server", (bytes([number]),))
    assert [pair.until(pair.server, "message").data[0] for _ in range(3)] == [0, 1, 2]
    assert pair.server.next(0.1) is None


def test_after_a_lost_message_both_sides_start_over(pair: Pair) -> None:
    pair.cells[1].pass_on = lambda message: []
    pair.party.send("server", (b"lost",))
    for end in (pair.party, pair.server):
        pair.until(end, "left")
        pair.until(end, "joined")
    pair.cells[1].pass_on = lambda message: [message]
    pair.party.send("server", (b"again",))
    assert pair.until(pair.server, "message").data == b"again"


def test_a_silent_peer_has_left_and_may_come_back(pair: Pair) -> None:
    pair.cells[1].mute = True
    pair.server._link_seconds = 0.5
    pair.until(pair.server, "left")
    pair.server._link_seconds = 600
    pair.cells[1].mute = False
    pair.until(pair.server, "joined")
    pair.until(pair.party, "joined")
    pair.server.send("books", (b"welcome",))
    assert pair.until(pair.party, "message").data == b"welcome"


def test_a_peer_that_ends_says_so(pair: Pair) -> None:
    """The server hears it long before the silence would tell."""
    pair.party.close()
    pair.until(pair.server, "left")


def test_a_flood_fills_no_memory(pair: Pair) -> None:
    """The attack: thousands of messages that the coordinator has no time to handle, or that wait for one that never comes."""
    take = pair.cells[0].callbacks["message"]
    epoch = pair.server._links["books"].peer_epoch
    for number in range(5000):
        headers = {"verfedgnn.epoch": epoch, "verfedgnn.number": number + 2}
        take(Message(headers, bytes(1000)))
    link = pair.server._links["books"]
    assert len(link.held) + link.waiting <= 2 * MOST_WAITING


@pytest.mark.parametrize("headers", [{}, {"verfedgnn.epoch": "x"}, {"verfedgnn.epoch": -1}])
def test_a_message_without_sense_is_ignored(pair: Pair, headers: dict[str, Any]) -> None:
    for topic in ("message", "pulse"):
        pair.cells[0].callbacks[topic](Message(headers, b""))
    pair.cells[0].callbacks["message"](
        Message({"verfedgnn.epoch": 1 << 70, "verfedgnn.number": 1}, {"no": "bytes"})
    )
    assert pair.server.next(0.1) is None


def test_names_come_from_the_token_that_flare_gave() -> None:
    """The attack: a site writes another site's name into its message, or sends from another cell."""
    clients = [Client("books", "token-of-books"), Client("films", "token-of-films")]
    for client in clients:
        client.set_fqcn(client.name)
    identify = identify_clients(clients, "job")

    def message(name: str, token: str | None, origin: str) -> Message:
        headers = {CellMessageHeaderKeys.CLIENT_NAME: name, MessageHeaderKey.ORIGIN: origin}
        if token is not None:
            headers[CellMessageHeaderKeys.TOKEN] = token
        return Message(headers, b"")

    assert identify(message("books", "token-of-books", "books.job")) == "books"
    assert identify(message("books", "token-of-films", "films.job")) == "films"
    assert identify(message("books", "token-of-films", "books.job")) is None
    assert identify(message("books", "a guess", "books.job")) is None
    assert identify(message("books", None, "books.job")) is None

"""The transport on real sockets: admission, bounds, and protection against strangers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import verfedgnn as vf
from hub import SERVER, agree
from shells import free_port
from verfedgnn.core.installed import installed_version
from verfedgnn.federation import doctor
from verfedgnn.federation.agreement import FILE, Agreement, save_agreement
from verfedgnn.federation.certificates import issue, key_pem, make_request, new_key, tls_context
from verfedgnn.federation.roster import MemberIdentity
from verfedgnn.federation.transport import PART_BYTES, Transport, TransportEvent

pytest.importorskip("websockets", reason="the extra 'federation' is not installed")

from verfedgnn.core.connection_table import MAX_CONNECTIONS
from verfedgnn.federation import websocket_transport
from verfedgnn.federation.doctor import examine, summarise_findings
from verfedgnn.federation.websocket_transport import (
    MESSAGES_IN_FLIGHT,
    MOST_PARTS,
    WebsocketTransport,
)


@pytest.fixture
def federation(tmp_path: Path) -> tuple[Agreement, dict[str, MemberIdentity]]:
    config = vf.Config.preset("paper", masking=True)
    agreement, identities = agree(tmp_path, ["film", "book"], config, address=f"127.0.0.1:{free_port()}")
    save_agreement(tmp_path / FILE, agreement)
    return agreement, identities


class Net:
    """A listening coordinator and the connections to it, all closed at the end."""

    def __init__(self, agreement: Agreement, identities: dict[str, MemberIdentity]) -> None:
        self.agreement = agreement
        self.identities = identities
        self.address = agreement.endpoint
        self.refused: list[str] = []
        self.open: list[Transport] = []
        self.sockets: list[socket.socket] = []
        self.server = self.join(SERVER)

    def join(self, name: str) -> Transport:
        listen = self.address if name == SERVER else None
        self.open.append(WebsocketTransport(self.identities[name], self.refused.append, listen))
        return self.open[-1]

    def raw(self, certificate: str, key: bytes, authority: str) -> ssl.SSLSocket:
        """Open a bare TLS connection that can break the protocol."""
        context = tls_context(server=False, authority=authority, certificate=certificate, key=key)
        context.verify_mode = ssl.CERT_NONE
        return self.shake(context)

    def shake(self, context: ssl.SSLContext) -> ssl.SSLSocket:
        raw = self.plain()
        self.sockets.append(context.wrap_socket(raw))
        return self.sockets[-1]  # type: ignore[return-value]

    def plain(self) -> socket.socket:
        self.sockets.append(socket.create_connection(self.address, timeout=180))
        return self.sockets[-1]

    def close(self) -> None:
        for end in (*self.sockets, *self.open):
            end.close()


@pytest.fixture
def patience(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give handshakes another time limit."""
    monkeypatch.setattr(websocket_transport, "HANDSHAKE_SECONDS", request.param)


@pytest.fixture
def net(federation: tuple[Agreement, dict[str, MemberIdentity]]) -> Iterator[Net]:
    net = Net(*federation)
    wait_for_port(net.address)
    yield net
    net.close()


def wait_for_port(address: tuple[str, int]) -> None:
    for _ in range(3600):
        try:
            socket.create_connection(address, timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)


def until(transport: Transport, kind: str, peer: str) -> TransportEvent:
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        event = transport.next(0.2)
        if event is not None and (event.kind, event.peer) == (kind, peer):
            return event
    raise AssertionError(f"no {kind} of {peer}")


def test_bytes_go_both_ways_in_order(net: Net) -> None:
    film = net.join("film")
    until(net.server, "joined", "film")
    until(film, "joined", SERVER)
    messages = [bytes([n]) * (1 + 5000 * n) for n in range(50)]
    for first, second in zip(messages[::2], messages[1::2], strict=True):
        film.send(SERVER, (first,), (second,))
        net.server.send("film", (first,), (second,))
    assert [until(net.server, "message", "film").data for _ in messages] == messages
    assert [until(film, "message", SERVER).data for _ in messages] == messages


def test_small_messages_do_not_wait_for_acknowledgements(net: Net) -> None:
    film = net.join("film")
    until(net.server, "joined", "film")
    until(film, "joined", SERVER)
    for transport, peer in ((net.server, "film"), (film, SERVER)):
        sock = cast(Any, transport)._links[peer].websocket.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_who_leaves_is_noticed_and_may_come_back(net: Net) -> None:
    film = net.join("film")
    until(net.server, "joined", "film")
    film.close()
    until(net.server, "left", "film")
    again = net.join("film")
    until(net.server, "joined", "film")
    until(again, "joined", SERVER)
    again.send(SERVER, (b"hello",))
    assert until(net.server, "message", "film").data == b"hello"


def test_a_restarted_coordinator_is_found_again(net: Net) -> None:
    film = net.join("film")
    until(film, "joined", SERVER)
    net.server.close()
    until(film, "left", SERVER)
    server = net.join(SERVER)
    until(film, "joined", SERVER)
    film.send(SERVER, (b"again",))
    assert until(server, "message", "film").data == b"again"


def test_who_comes_before_the_coordinator_tries_again_soon(
    federation: tuple[Agreement, dict[str, MemberIdentity]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members that one clock starts come within a second of each other."""
    pauses: list[float] = []
    refused: list[str] = []
    sleep = asyncio.sleep

    async def record(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(seconds)

    monkeypatch.setattr(asyncio, "sleep", record)
    film = WebsocketTransport(federation[1]["film"], refused.append)
    while len(refused) < 3:
        time.sleep(0.05)
    film.close()
    assert sum(pauses[:2]) < 0.5


def test_who_has_left_does_not_look_for_the_coordinator(net: Net) -> None:
    film = net.join("film")
    until(film, "joined", SERVER)
    until(net.server, "joined", "film")
    film.close()
    net.server.close()
    time.sleep(10 * websocket_transport.PAUSES[0])  # a party that looks for it connects again after the first
    assert not any("cannot reach" in reason for reason in net.refused)


def is_turned_away(connection: Callable[[], ssl.SSLSocket]) -> bool:
    """Return whether the peer refuses the connection; with TLS 1.3 it does so at the first read."""
    try:
        return connection().recv(1) == b""
    except (ssl.SSLError, ConnectionError):
        return True


def test_only_the_roster_is_let_in(net: Net, tmp_path: Path) -> None:
    """Certificates of another authority, no certificate and no TLS are rejected."""
    stranger = tmp_path / "elsewhere"
    stranger.mkdir()
    other, identities = agree(stranger, ["film"], net.agreement.config)
    outsider = other.member("film").certificate
    assert is_turned_away(
        lambda: net.raw(outsider, identities["film"].key_file.read_bytes(), net.agreement.authority)
    )
    bare = ssl.create_default_context()
    bare.check_hostname = False
    bare.verify_mode = ssl.CERT_NONE
    assert is_turned_away(lambda: net.shake(bare))
    plain = net.plain()
    plain.sendall(b"GET / HTTP/1.0\r\n\r\n")
    with contextlib.suppress(ConnectionError):
        while plain.recv(100):
            pass
    assert len(net.refused) >= 3
    until_reachable(net)


def test_a_certificate_of_the_authority_is_not_enough(
    tmp_path: Path, federation: tuple[Agreement, dict[str, MemberIdentity]]
) -> None:
    agreement, identities = federation
    # The authority signs a third party that is not in the roster.
    from verfedgnn.federation.certificates import new_authority

    authority_key, authority = new_authority("trial2")
    key = new_key()
    spy = issue(authority_key, authority, make_request(key, "spy"))
    members = {"authority": authority}
    renewed = {}
    for name in (SERVER, "film", "book"):
        own = identities[name]._key
        pem = issue(authority_key, authority, make_request(own, name), server=name == SERVER)
        renewed[name] = {"name": name, "certificate": pem}
    changed = agreement.with_values(
        **members, coordinator=renewed[SERVER], parties=[renewed["film"], renewed["book"]]
    )
    ids = {name: MemberIdentity(changed, identities[name].key_file) for name in renewed}
    net = Net(changed, ids)
    try:
        wait_for_port(net.address)
        connection = net.raw(spy, key_pem(key), authority)
        assert is_turned_away(lambda: connection)
        assert any("not in the roster" in reason for reason in net.refused)
    finally:
        net.close()


def test_a_party_speaks_to_its_coordinator_only(
    tmp_path: Path, federation: tuple[Agreement, dict[str, MemberIdentity]]
) -> None:
    """A party does not accept another member of the roster at the coordinator's address."""
    agreement, identities = federation
    context = tls_context(
        server=True,
        authority=agreement.authority,
        certificate=agreement.member("book").certificate,
        key=identities["book"].key_file.read_bytes(),
    )
    refused: list[str] = []
    with socket.create_server(agreement.endpoint) as listener:
        listener.settimeout(180)
        film = WebsocketTransport(identities["film"], refused.append)
        accepted, _ = listener.accept()
        with (
            accepted,
            pytest.raises(OSError, match=r".*"),
            context.wrap_socket(accepted, server_side=True) as shaken,
        ):
            shaken.recv(1)
        assert film.next(0.5) is None
        film.close()
    assert refused


def until_reachable(net: Net) -> None:
    book = net.join("book")
    until(net.server, "joined", "book")
    until(book, "joined", SERVER)
    book.send(SERVER, (b"still here",))
    assert until(net.server, "message", "book").data == b"still here"


def crowd(net: Net, sources: list[str]) -> None:
    """Connect from each address and send nothing: more connections than strangers may have."""
    assert len(sources) > MAX_CONNECTIONS
    for source in sources:
        net.sockets.append(socket.create_connection(net.address, timeout=180, source_address=(source, 0)))


@pytest.mark.parametrize("patience", [3600.0], indirect=True)
@pytest.mark.parametrize(
    "sources",
    [["127.0.0.1"] * 80, [f"127.0.0.{n}" for n in range(2, 82)]],
    ids=["one-address", "many-addresses"],
)
def test_silent_strangers_keep_nobody_out(patience: None, net: Net, sources: list[str]) -> None:
    """A member gets in while eighty silent connections, also from its own address, last; none of them times out."""
    crowd(net, sources)
    until_reachable(net)
    listener = net.server._listener  # type: ignore[attr-defined]
    assert len(list(listener.strangers)) <= MAX_CONNECTIONS


def test_one_address_does_not_end_handshakes_of_others(net: Net) -> None:
    """A member that is slow to begin its handshake keeps its place while another address opens 80 connections."""
    context = tls_context(
        server=False,
        authority=net.agreement.authority,
        certificate=net.agreement.member("film").certificate,
        key=net.identities["film"].key_file.read_bytes(),
    )
    slow = net.plain()
    crowd(net, ["127.0.0.9"] * 80)
    film = context.wrap_socket(slow)
    film.settimeout(0.5)
    with (
        film,
        pytest.raises(TimeoutError),
    ):  # the coordinator waits for film; a refused peer would read the end
        film.recv(1)


@pytest.mark.parametrize("patience", [0.5], indirect=True)
def test_a_handshake_has_one_time_limit_for_all_its_bytes(patience: None, net: Net) -> None:
    connection = net.plain()

    def trickle() -> None:
        for byte in b"\x16\x03\x01\x02\x00" + bytes(500):
            connection.sendall(bytes([byte]))
            time.sleep(0.1)

    with pytest.raises(ConnectionError):
        trickle()


def test_a_key_is_read_once(federation: tuple[Agreement, dict[str, MemberIdentity]]) -> None:
    """A key file that is exchanged after its check is not read again."""
    agreement, identities = federation
    for identity in identities.values():
        identity.key_file.unlink()
    net = Net(agreement, identities)
    try:
        wait_for_port(net.address)
        until_reachable(net)
    finally:
        net.close()


def upgraded(net: Net, name: str) -> ssl.SSLSocket:
    """Open a websocket of a member by hand, so that it can break the protocol."""
    connection = net.raw(
        net.agreement.member(name).certificate,
        net.identities[name].key_file.read_bytes(),
        net.agreement.authority,
    )
    connection.sendall(
        b"GET / HTTP/1.1\r\nHost: c\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    assert b"101" in connection.recv(1 << 16)
    return connection


def ended(connection: ssl.SSLSocket) -> bool:
    """Wait for the end of a connection."""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while connection.recv(1 << 16):
            pass
    return True


READY = b"\x82\x80\0\0\0\0"
"""An empty binary message, masked with zeros."""


@pytest.mark.parametrize(
    "sent",
    [
        READY + b"\x82\xff" + struct.pack(">Q", PART_BYTES + 1),
        READY + b"\x82\xff" + struct.pack(">Q", 2**63 - 1),
        READY + b"\x82\x05plain",
        READY + b"\xc2\x80\0\0\0\0",
        READY + b"\x89\xfe\0\x7e\0\0\0\0" + bytes(126),
        READY + b"\x02\x80\0\0\0\0" + (MOST_PARTS + 1) * b"\x00\x80\0\0\0\0",
        b"\x82\x85\0\0\0\0first",
        b"\xff" * 64,
    ],
    ids=[
        "oversize",
        "huge",
        "unmasked",
        "compressed",
        "large ping",
        "endless fragments",
        "not ready",
        "garbled",
    ],
)
def test_oversize_and_garbled_frames_end_their_own_connection_only(net: Net, sent: bytes) -> None:
    book = net.join("book")
    until(book, "joined", SERVER)
    connection = upgraded(net, "film")
    connection.sendall(sent)
    assert ended(connection)
    book.send(SERVER, (b"undisturbed",))
    assert until(net.server, "message", "book").data == b"undisturbed"


@pytest.mark.parametrize("patience", [0.5], indirect=True)
@pytest.mark.parametrize("asks", [False, True], ids=["no request", "no first message"])
def test_a_member_that_says_nothing_is_disconnected(patience: None, net: Net, asks: bool) -> None:
    film = net.identities["film"]
    connection = None
    while connection is None:
        with contextlib.suppress(
            OSError, AssertionError
        ):  # on a busy machine, the handshake itself may take too long
            connection = (
                upgraded(net, "film")
                if asks
                else net.raw(film.member.certificate, film.key_file.read_bytes(), net.agreement.authority)
            )
    assert ended(connection)
    until_reachable(net)


def test_a_large_message_arrives_in_parts(net: Net) -> None:
    """Progress is reported, and what is larger than expected is refused before it is there."""
    film = net.join("film")
    until(net.server, "joined", "film")
    net.server.largest = 3 * PART_BYTES
    large = bytes(2 * PART_BYTES) + b"end"
    film.send(SERVER, (large[:7], large[7:]))
    kinds = []
    while (event := net.server.next(180)) is not None and event.kind != "message":
        kinds.append(event.kind)
    assert kinds == ["part"]
    assert event is not None
    assert event.data == large
    net.server.largest = PART_BYTES
    film.send(SERVER, (large,))
    assert "at most 16,777,216 bytes" in until(net.server, "broken", "film").reason
    until(net.server, "joined", "film")
    until(film, "joined", SERVER)
    film.send(SERVER, (b"small",))
    assert until(net.server, "message", "film").data == b"small"


def test_who_sends_part_of_a_large_message_occupies_little(net: Net) -> None:
    """The attack: the first bytes of a message that could be larger than the memory, in one fragment."""
    net.server.largest = 1 << 40
    connection = upgraded(net, "film")
    before = resident_bytes()
    connection.sendall(READY + b"\x02\xff" + struct.pack(">Q", PART_BYTES) + bytes(4 + 1000))
    until(net.server, "joined", "film")
    time.sleep(0.3)
    assert resident_bytes() - before < PART_BYTES // 2


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def test_what_was_sent_before_closing_arrives(net: Net) -> None:
    film = net.join("film")
    until(net.server, "joined", "film")
    sent = [bytes([n]) * 300_000 for n in range(20)]
    for message in sent:
        film.send(SERVER, (message,))
    closing = threading.Thread(target=film.close)
    closing.start()
    assert [until(net.server, "message", "film").data for _ in sent] == sent
    until(net.server, "left", "film")
    closing.join()


def test_who_is_reported_can_already_send(net: Net) -> None:
    """A party sends as soon as the coordinator reports it, on a busy machine, and no message is lost."""
    stop = threading.Event()

    def keep_busy() -> None:
        while not stop.is_set():
            pass

    interval = sys.getswitchinterval()
    sys.setswitchinterval(0.02)
    busy = threading.Thread(target=keep_busy)
    busy.start()
    try:
        for number in range(8):
            film = net.join("film")
            until(net.server, "joined", "film")
            film.send(SERVER, (b"%d" % number,))
            assert until(net.server, "message", "film").data == b"%d" % number
            film.close()
            until(net.server, "left", "film")
    finally:
        stop.set()
        busy.join()
        sys.setswitchinterval(interval)


def test_a_flood_stalls_its_sender_only(net: Net) -> None:
    """Few of film's messages are held in memory while nobody reads them, and book still gets through."""
    film, book = net.join("film"), net.join("book")
    until(film, "joined", SERVER)
    until(book, "joined", SERVER)
    for _ in range(60):
        film.send(SERVER, (bytes(1 << 19),))
    time.sleep(1.0)
    queued = net.server._events.qsize()  # type: ignore[attr-defined]
    assert queued <= 8
    book.send(SERVER, (b"through",))
    assert until(net.server, "message", "book").data == b"through"


def test_a_new_connection_brings_no_room_for_more_messages(net: Net) -> None:
    """While nobody reads, film connects again and again, each time with as many messages as may wait."""
    for number in range(6):
        connection = upgraded(net, "film")
        connection.sendall(READY + (b"\x82\x81\0\0\0\0" + bytes([number])) * MESSAGES_IN_FLIGHT)
        time.sleep(0.1)
    taken = [until(net.server, "message", "film").data]
    while taken.count(bytes([number])) < MESSAGES_IN_FLIGHT:
        taken.append(until(net.server, "message", "film").data)
    assert len(taken) <= 2 * MESSAGES_IN_FLIGHT, "the first that waited, and those of the present connection"


def test_who_sends_pings_and_takes_no_answer_is_disconnected(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket_transport, "PART_BYTES", 1 << 16)
    connection = upgraded(net, "film")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.sendall(READY)
    pings = 500 * (b"\x89\xfd\0\0\0\0" + bytes(125))
    with pytest.raises(OSError):  # noqa: PT011, PT012
        for _ in range(300):
            connection.sendall(pings)
    until_reachable(net)


def test_a_port_in_use_is_said_at_once(federation: tuple[Agreement, dict[str, MemberIdentity]]) -> None:
    agreement, identities = federation
    with (
        socket.create_server(agreement.endpoint),
        pytest.raises(vf.ConfigError, match=r"cannot listen on .*use another --listen"),
    ):
        WebsocketTransport(identities[SERVER], [].append, agreement.endpoint)


def test_a_party_says_why_it_does_not_get_through(
    federation: tuple[Agreement, dict[str, MemberIdentity]],
) -> None:
    agreement, identities = federation
    reasons: list[str] = []
    film = WebsocketTransport(identities["film"], reasons.append)
    deadline = time.monotonic() + 180
    while not reasons and time.monotonic() < deadline:
        time.sleep(0.05)
    film.close()
    assert reasons[0] == f"cannot reach {agreement.address} (Connection refused)"


def test_a_second_process_of_a_party_is_refused_until_the_first_is_gone(net: Net) -> None:
    first = net.join("film")
    until(net.server, "joined", "film")
    second = net.join("film")
    until(net.server, "second", "film")
    first.send(SERVER, (b"still here",))
    assert until(net.server, "message", "film").data == b"still here"
    deadline = time.monotonic() + 180
    while not any("another process of film is connected" in reason for reason in net.refused):
        assert time.monotonic() < deadline, net.refused  # the second process says so in a thread of its own
        time.sleep(0.01)
    first.close()
    until(net.server, "joined", "film")
    second.send(SERVER, (b"now it is me",))
    assert until(net.server, "message", "film").data == b"now it is me"


def test_a_doctor_refuses_the_data_that_a_training_refuses_and_doubts_ids(net: Net, tmp_path: Path) -> None:
    table = vf.data.synthetic_ratings(users=40, items=20, ratings=300, seed=1)
    likes = replace(table, rating=np.full(len(table), 5, np.float32))
    ids = np.array([f"{number:05}" for number in range(table.n_users)])
    identity = net.identities["film"]

    def rows(given: vf.Ratings, **settings: Any) -> dict[str, tuple[str, str]]:
        config = vf.Config.preset("best").with_values(settings)
        identity.agreement = identity.agreement.with_values(config=config)
        found = examine(identity, tmp_path / "run", lambda: given)
        return {finding.check: (finding.outcome, finding.text) for finding in found}

    outcome, text = rows(likes)["data"]
    assert outcome == "failed"
    assert "agree on lists alone, with `verfedgnn federation init --set model.biases=false`" in text
    outcome, text = rows(likes, **{"model.biases": False})["data"]
    assert (outcome, text.split(" by ")[0]) == ("ok", f"{len(table)} likes")
    low = replace(table, rating=np.full(len(table), 1, np.float32))
    outcome, text = rows(low, **{"model.biases": False})["data"]
    assert outcome == "failed"
    assert "the coordinator writes biases = true in its federation.toml" in text
    assert "ids" not in rows(table)
    outcome, text = rows(replace(table, user_ids=ids))["ids"]
    assert outcome == "warning"
    assert 'agree on ids = "number" in federation.toml' in text


def test_a_doctor_examines_a_party_before_the_day(
    net: Net, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = vf.data.synthetic_ratings(users=40, items=20, ratings=300, seed=1)
    identity = net.identities["film"]

    def outcomes() -> dict[str, tuple[str, str]]:
        found = examine(identity, tmp_path / "run", lambda: table)
        assert summarise_findings(found)["ready"] == all(f.outcome != "failed" for f in found)
        return {finding.check: (finding.outcome, finding.text) for finding in found}

    healthy = outcomes()
    assert {name: outcome for name, (outcome, _) in healthy.items()} == dict.fromkeys(
        (
            "agreement",
            "certificates",
            "connection",
            "software",
            "clock",
            "versions",
            "data",
            "disk",
            "memory",
        ),
        "ok",
    )
    assert healthy["data"][1].startswith(f"{len(table)} ratings by 40 users")
    monkeypatch.setattr(doctor, "installed_version", lambda: "0.0.1")
    assert outcomes()["versions"] == ("warning", f"verfedgnn 0.0.1 here, {installed_version()} there")
    film = net.join("film")
    until(net.server, "joined", "film")
    until(film, "joined", SERVER)
    assert outcomes()["connection"] == (
        "failed",
        "another process of film is connected to the coordinator; stop one of the two",
    )
    net.server.close()
    outcome, text = outcomes()["connection"]
    assert outcome == "failed"
    assert text.startswith("cannot reach 127.0.0.1:")

"""Compare carriers of bytes between a coordinator and its parties: our transport (websockets)
and plain gRPC streams, both with mutual TLS 1.3 between the same certificates.

    python benchmarks/transports.py [--parties 10] [--bytes 50000] [--trips 500]

A trip sends a message to every party, each a process that sends it back, and waits for all of them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc

from federation_round import command, free_port
from verfedgnn.federation.connect import connect
from verfedgnn.federation.identity import MemberIdentity, load_coordinator, load_party
from verfedgnn.federation.roster import request_membership

METHOD = "/bench/Talk"
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


def plain(data: bytes) -> bytes:
    return data


def credentials(identity: MemberIdentity) -> tuple[bytes, bytes, bytes]:
    """Return the authority, the private key and the certificate of a member."""
    return identity.agreement.authority.encode(), identity.key_pem(), identity.member.certificate.encode()


def run_party(kind: str, folder: Path) -> None:
    """Send every message back."""
    identity = load_party(folder)
    if kind == "own":
        transport = connect(identity, lambda reason: None)
        while True:
            event = transport.next(60)
            if event is None or event.kind == "left":
                return
            if event.kind == "message":
                transport.send(event.peer, (event.data,))
    authority, key, certificate = credentials(identity)
    chosen = grpc.ssl_channel_credentials(authority, key, certificate)
    name = (("grpc.ssl_target_name_override", identity.agreement.coordinator.name),)
    address = identity.agreement.address
    outgoing: queue.Queue[bytes] = queue.Queue()
    with grpc.secure_channel(address, chosen, [*OPTIONS, *name]) as channel:
        talk = channel.stream_stream(METHOD, plain, plain)
        outgoing.put(identity.name.encode())
        with contextlib.suppress(grpc.RpcError):  # the coordinator has ended
            for data in talk(iter(outgoing.get, None), wait_for_ready=True):
                outgoing.put(data)


class GrpcHub:
    """The coordinator's end of gRPC: one stream a party, one queue of arrivals."""

    def __init__(self, identity: MemberIdentity, parties: int) -> None:
        authority, key, certificate = credentials(identity)
        self.arrived: queue.Queue[str] = queue.Queue()
        self.outgoing: dict[str, queue.Queue[bytes]] = {}
        self.server = grpc.server(futures.ThreadPoolExecutor(2 * parties + 2), options=OPTIONS)
        chosen = grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=True)
        self.server.add_secure_port(identity.agreement.address, chosen)
        handler = grpc.stream_stream_rpc_method_handler(self._talk, plain, plain)
        self.server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler("bench", {"Talk": handler})]
        )
        self.server.start()

    def _talk(self, messages: Iterator[bytes], context: Any) -> Iterator[bytes]:
        name = next(messages).decode()
        self.outgoing[name] = queue.Queue()
        threading.Thread(target=self._listen, args=(name, messages), daemon=True).start()
        self.arrived.put(name)
        while True:
            yield self.outgoing[name].get()

    def _listen(self, name: str, messages: Iterator[bytes]) -> None:
        try:
            for _ in messages:
                self.arrived.put(name)
        except grpc.RpcError:
            return


def time_trips(
    send: Callable[[str, bytes], None], take: Callable[[], None], names: list[str], options: Any
) -> float:
    """Return the median milliseconds of a trip."""
    data = bytes(options.bytes)
    times = []
    for _ in range(options.trips):
        began = time.perf_counter()
        for name in names:
            send(name, data)
        for _ in names:
            take()
        times.append(time.perf_counter() - began)
    return 1e3 * statistics.median(times[len(times) // 10 :])


def found_federation(folder: Path, parties: int) -> list[str]:
    """Create a federation in `folder` and return the names of its parties."""
    names = [f"party-{number}" for number in range(parties)]
    home = folder / "home"
    command("federation", "init", home, "--address", f"127.0.0.1:{free_port()}", "--name", "bench")
    for name in names:
        request_membership(name, folder / name)
    command("federation", "approve", home, *(folder / n / f"{n}.csr" for n in names), "--yes")
    for name in names:
        (folder / name / "federation.toml").write_bytes((home / "federation.toml").read_bytes())
    return names


def measure(kind: str, folder: Path, names: list[str], options: argparse.Namespace) -> float:
    """Return the median milliseconds of a trip over one carrier."""
    identity = load_coordinator(folder / "home")
    words = [sys.executable, __file__, "--party", kind]
    if kind == "grpc":
        hub = GrpcHub(identity, len(names))
        started = [subprocess.Popen([*words, str(folder / name)]) for name in names]
        for _ in names:
            hub.arrived.get()
        found = time_trips(
            lambda name, data: hub.outgoing[name].put(data),
            lambda: hub.arrived.get() and None,
            names,
            options,
        )
        hub.server.stop(0)
    else:
        transport = connect(identity, lambda reason: None, (identity.agreement.host, identity.agreement.port))
        started = [subprocess.Popen([*words, str(folder / name)]) for name in names]

        def take(wanted: str = "message") -> None:
            while (event := transport.next(60)) is None or event.kind != wanted:
                pass

        for _ in names:
            take("joined")
        found = time_trips(transport.send, take, names, options)
        transport.close()
    for process in started:
        process.kill()
        process.wait()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parties", type=int, default=10)
    parser.add_argument("--bytes", type=int, default=50_000)
    parser.add_argument("--trips", type=int, default=500)
    parser.add_argument("--party", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.party:
        run_party(options.party[0], Path(options.party[1]))
        return
    found: dict[str, list[float]] = {"own_ms": [], "grpc_ms": []}
    with tempfile.TemporaryDirectory() as place:
        names = found_federation(Path(place), options.parties)
        for kind in ("own", "grpc") * 3:
            found[f"{kind}_ms"].append(round(measure(kind, Path(place), names, options), 2))
    print(json.dumps({"parties": options.parties, "bytes": options.bytes} | found))


if __name__ == "__main__":
    main()

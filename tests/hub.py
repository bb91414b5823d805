"""A federation in one process: the real services, connected by queues instead of a network, with faults on demand."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import verfedgnn as vf
from verfedgnn.core.errors import Interrupted, VerFedGNNError
from verfedgnn.federation import coordinator_stage, party_service
from verfedgnn.federation.agreement import Agreement, Member, Timeouts, build_agreement
from verfedgnn.federation.certificates import (
    issue,
    key_pem,
    make_request,
    new_authority,
    new_key,
    write_secret,
)
from verfedgnn.federation.coordinator_link import CoordinatorLink
from verfedgnn.federation.coordinator_service import CoordinatorService
from verfedgnn.federation.party_service import PartyService, load_finished, run_party
from verfedgnn.federation.roster import MemberIdentity
from verfedgnn.federation.status import StatusPublisher
from verfedgnn.federation.stores import PartyStore
from verfedgnn.federation.transport import TransportEvent, too_large
from verfedgnn.protocol.messages import EncodedMessage

SERVER = "server"
QUICK = Timeouts(reply=30, hello=0.3, idle=30, link=5, finish=60)


class Killed(Exception):
    """The process was killed at this point."""


class Clock:
    """The coordinator's clock, which a test can set forward."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead


def wait_until(wanted: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + 180
    while not wanted():
        assert time.monotonic() < deadline, "the condition does not hold"
        time.sleep(0.005)


class Wire:
    """One end of a connection. `fault` receives every outgoing message and may change it, drop it (None) or raise `Killed`."""

    def __init__(self, hub: Hub, name: str, fault: Callable[[bytes], bytes | None] | None = None) -> None:
        self.largest = 1 << 24
        self.holds: dict[str, str] = {}
        self.hub = hub
        self.name = name
        self.fault = fault
        self.events: queue.Queue[TransportEvent] = queue.Queue()
        self.alive = True
        hub.attach(self)

    def send(self, to: str, *messages: EncodedMessage) -> None:
        for data in map(b"".join, messages):  # one by one, so that a fault can separate them
            passed = data if self.fault is None else self.fault(data)
            if passed is not None and self.alive:
                self.hub.deliver(to, TransportEvent("message", self.name, passed), self)

    def next(self, timeout: float) -> TransportEvent | None:
        try:
            event = self.events.get(timeout=min(timeout, 0.02))
        except queue.Empty:
            return None
        return too_large(event.peer, self.largest) if len(event.data) > self.largest else event

    def close(self) -> None:
        if self.alive:
            self.alive = False
            self.hub.detach(self)


class Hub:
    """A switch that connects every party to the server."""

    def __init__(self) -> None:
        self.wires: dict[str, Wire] = {}
        self.lock = threading.RLock()
        self.seen: list[tuple[str, str, bytes]] = []
        self.services: dict[str, Any] = {}
        """The present service of each member."""

    def attach(self, wire: Wire) -> None:
        with self.lock:
            self.wires[wire.name] = wire
            for other in self._peers(wire.name):
                other.events.put(TransportEvent("joined", wire.name))
                wire.events.put(TransportEvent("joined", other.name))

    def detach(self, wire: Wire) -> None:
        with self.lock:
            if self.wires.get(wire.name) is wire:
                del self.wires[wire.name]
                for other in self._peers(wire.name):
                    other.events.put(TransportEvent("left", wire.name))

    def deliver(self, to: str, event: TransportEvent, sender: Wire) -> None:
        with self.lock:
            if self.wires.get(sender.name) is sender and to in self.wires:
                self.seen.append((event.peer, to, bytes(event.data)))
                self.wires[to].events.put(event)

    def _peers(self, name: str) -> list[Wire]:
        others = [wire for other, wire in self.wires.items() if other != name]
        return others if name == SERVER else [wire for wire in others if wire.name == SERVER]


def agree(
    folder: Path, names: list[str], config: vf.Config, **values: Any
) -> tuple[Agreement, dict[str, MemberIdentity]]:
    """Return an agreement and the identities of its members."""
    authority_key, authority = new_authority("trial")
    members = {}
    files = {}
    for name in (SERVER, *names):
        key = new_key()
        files[name] = folder / f"{name}.pem"
        write_secret(files[name], key_pem(key))
        pem = issue(authority_key, authority, make_request(key, name), server=name == SERVER)
        members[name] = Member(name=name, certificate=pem)
    fields = {
        "name": "trial",
        "address": "127.0.0.1:1",
        "authority": authority,
        "config": config,
        "timeouts": QUICK,
        "min_users": 1,
        "min_overlap": 0,
        **values,
    }
    agreement = build_agreement(
        {**fields, "coordinator": members[SERVER], "parties": [members[name] for name in names]}
    )
    return agreement, {name: MemberIdentity(agreement, file) for name, file in files.items()}


class ObservedParty(PartyService):
    """A party's service that the hub knows while it runs."""

    def run(self) -> None:
        wire: Any = self.link.transport
        wire.hub.services[self.identity.name] = self
        super().run()


party_service.PartyService = ObservedParty  # type: ignore[misc]


class Trial:
    """A federation whose services run in threads; a killed service is restarted, as a service manager would."""

    def __init__(self, folder: Path, parties: list[vf.PartyData], config: vf.Config, **values: Any) -> None:
        self.folder = folder
        self.parties = {party.name: party for party in parties}
        folder.mkdir(parents=True, exist_ok=True)
        self.agreement, self.identities = agree(folder, list(self.parties), config, **values)
        self.hub = Hub()
        self.errors: dict[str, list[BaseException]] = {}
        self.verdicts: dict[str, dict[str, str]] = {}
        """Verdict that a party shares, by party."""
        self.align_options: dict[str, dict[str, Any]] = {}
        """Options of the alignment, by party."""
        self.runs: dict[str, vf.Run] = {}
        self.threads: list[threading.Thread] = []
        self.stopping = False

    def start(
        self, name: str, fault: Callable[[bytes], bytes | None] | None = None, *, restart: bool = True
    ) -> threading.Thread:
        thread = threading.Thread(
            target=self._keep_running, args=(name, fault, restart), name=name, daemon=True
        )
        self.threads.append(thread)
        thread.start()
        return thread

    def run(
        self, faults: dict[str, Callable[[bytes], bytes | None]] | None = None, seconds: float = 180
    ) -> None:
        """Run all members until all have finished."""
        for name in (SERVER, *self.parties):
            self.start(name, (faults or {}).get(name))
        self.join(seconds)

    def join(self, seconds: float = 180) -> None:
        deadline = time.monotonic() + seconds
        servers = [thread for thread in self.threads if thread.name == SERVER]
        for thread in self.threads:
            if thread not in servers:
                thread.join(max(0.0, deadline - time.monotonic()))
        if servers:  # nobody is left to fetch a result, so the coordinator takes what has arrived and ends
            stage = getattr(self.services.get(SERVER), "stage", None)
            soon = coordinator_stage.time.monotonic() + 2  # a test may have set this clock forward
            if stage is not None and stage.finishing and stage._finish_deadline > soon:
                stage._finish_deadline = soon
            for thread in servers:
                thread.join(max(0.0, deadline - time.monotonic()))
        alive = [thread.name for thread in self.threads if thread.is_alive()]
        self.stopping = True
        assert not alive, f"still running: {alive}; errors: {self.errors}"

    def run_without(
        self, gone: str, clock: Clock, fault: Callable[[bytes], bytes | None] | None = None
    ) -> None:
        """Run all members until all have finished but `gone`, which has the fault and never fetches the result."""
        for name in (SERVER, *self.parties):
            self.start(name, fault if name == gone else None)
        self.end_without(gone, clock)

    def end_without(self, gone: str, clock: Clock) -> None:
        """Set the clock forward at the end of each training, when all others have the result; join all members."""
        wait_until(lambda: SERVER in self.services)

        def is_last(place: int) -> bool:
            stage = self.services[SERVER].stages[place]  # of the present process of the coordinator
            return bool(stage.finishing and stage.without_result == [gone])

        for place in range(len(self.services[SERVER].stages)):
            wait_until(lambda place=place: is_last(place))
            clock.ahead += self.agreement.timeouts.finish + 1
        self.join()

    @property
    def services(self) -> dict[str, Any]:
        return self.hub.services

    def public(self, name: str) -> torch.Tensor:
        return self.runs[name].public

    def _keep_running(self, name: str, fault: Callable[[bytes], bytes | None] | None, restart: bool) -> None:
        torch.set_num_threads(1)
        while not self.stopping:
            wire = Wire(self.hub, name, fault)
            try:
                self._once(name, wire)
                return
            except Interrupted:
                return
            except Killed:
                if not restart:
                    return
            except VerFedGNNError as error:
                self.errors.setdefault(name, []).append(error)
                return
            finally:
                wire.close()

    def _once(self, name: str, wire: Wire) -> None:
        folder = self.folder / f"run-{name}"
        identity = self.identities[name]
        if name == SERVER:
            service = CoordinatorService(identity, wire, StatusPublisher(folder, identity))
            self.services[name] = service
            service.run(lambda: self.stopping)
            return
        store = PartyStore(folder, identity)
        publisher = StatusPublisher(folder, identity)
        if store.is_trained:
            self.runs[name] = load_finished(store)
            return
        link = CoordinatorLink(
            identity, wire, lambda: self.stopping, publisher, verdict=self.verdicts.get(name)
        )
        options = self.align_options.get(name, {})
        self.runs[name] = run_party(store, link, lambda: self.parties[name].ratings, **options)

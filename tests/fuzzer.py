"""Send hostile messages to a coordinator and to parties in every state of a federation, and check what they do with them.

    python tests/fuzzer.py --messages 1000000 --seed 0

A small federation runs in one thread. Before a member gets an honest message, a forked copy of the process sends it hostile ones:
changed bits, other lengths, wrong types, deep nesting, and valid messages at the wrong time. A member has to take a message or refuse
it with a `VerFedGNNError`, within a second and without much memory. A refused message leaves its model as it was, and no other
member is blamed for it. Everything else is a finding.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import logging
import os
import random
import resource
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import verfedgnn as vf
from hub import SERVER, Hub, Wire, agree
from message_samples import ALL
from verfedgnn.core.errors import VerFedGNNError
from verfedgnn.data import synthetic_ratings
from verfedgnn.federation.coordinator_link import CoordinatorLink
from verfedgnn.federation.coordinator_service import CoordinatorService
from verfedgnn.federation.party_service import PartyService, Realign, align_party
from verfedgnn.federation.status import StatusPublisher
from verfedgnn.federation.stores import PartyStore
from verfedgnn.federation.transport import TransportEvent
from verfedgnn.protocol.messages import HEADER, decode, encode
from verfedgnn.protocol.user_alignment import AlignmentRules, CoordinatorAlignment, PartyAlignment

SECONDS = 1.0
"""Time that a member may take for one message."""
BYTES = 200 << 20
"""Memory that a member may take for one message."""
BATCH = 250
"""Hostile messages that one copy of the process sends."""

Handle = Callable[[bytes], None]
State = Callable[[], str]


class Mutator:
    """Hostile variants of honest messages, drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.known = [encode(message) for message in ALL]
        """Messages to vary: a sample of each kind, and honest ones that were sent."""

    def draw(self, due: bytes) -> bytes:
        """Return a hostile message; half of them are variants of the one that is due."""
        rng = self.rng
        data = due if rng.random() < 0.5 else rng.choice(self.known)
        change = rng.choice(
            [
                self._flip,
                self._flip,
                self._cut,
                self._lengths,
                self._field,
                self._field,
                self._splice,
                self._replay,
            ]
        )
        return change(data)

    def _flip(self, data: bytes) -> bytes:
        raw = bytearray(data)
        for _ in range(self.rng.randint(1, 4)):
            raw[self.rng.randrange(len(raw))] ^= 1 << self.rng.randrange(8)
        return bytes(raw)

    def _cut(self, data: bytes) -> bytes:
        if self.rng.random() < 0.3:
            return data + self.rng.randbytes(self.rng.randint(1, 40))
        return data[: self.rng.randrange(len(data))]

    def _lengths(self, data: bytes) -> bytes:
        magic, version, kind, text, body = HEADER.unpack_from(data)
        odd = [0, 1, 255, 2**16, 2**20 + 1, 2**31, 2**32 - 1]
        if self.rng.random() < 0.5:
            text = self.rng.choice(odd)
        else:
            body = self.rng.choice([*odd, 2**40, 2**63, 2**64 - 1])
        if self.rng.random() < 0.3:
            kind = self.rng.randrange(256)
        changed = HEADER.pack(magic, version, kind, text, body) + data[HEADER.size :]
        if body == 0 or self.rng.random() < 0.5:
            return changed
        at = HEADER.size + HEADER.unpack_from(data)[3]  # the table of contents in front of the arrays
        table = struct.pack("<Q", self.rng.choice([0, 1, 2**16, 2**31, 2**63]))
        return data[:at] + table + data[at + 8 :] if len(data) >= at + 8 else changed

    def _field(self, data: bytes) -> bytes:
        size = HEADER.unpack_from(data)[3]
        try:
            fields = json.loads(data[HEADER.size : HEADER.size + size])
        except ValueError:
            return self._flip(data)
        for name in self.rng.sample(sorted(fields), min(len(fields), self.rng.randint(1, 2))):
            fields[name] = self._odd_value(fields[name])
        if self.rng.random() < 0.1:
            fields["extra"] = 1
        text = json.dumps(fields).replace('"<deep>"', "[" * 5000 + "]" * 5000).encode()
        return self._join(data, text, data[HEADER.size + size :])

    def _odd_value(self, value: Any) -> Any:
        rng = self.rng
        odd: list[Any] = [
            -1, 0, 1, 2, 3, 255, 65535, 2**31, 2**63, 10**30, 1e308, float("nan"), float("inf"), None, True, "", "ab" * 32,
            "x" * 100_000, [], [0] * 5000, [[0] * 50] * 50, {}, "<deep>",
        ]  # fmt: skip
        if isinstance(value, int) and rng.random() < 0.5:
            return value + rng.choice([-2, -1, 1, 2])
        if isinstance(value, list) and value and rng.random() < 0.5:
            return rng.choice([value[:-1], value * 2, [*value, rng.choice(odd)], value[::-1]])
        return rng.choice(odd)

    def _splice(self, data: bytes) -> bytes:
        other = self.rng.choice(self.known)
        size, own = (HEADER.unpack_from(one)[3] for one in (other, data))
        return self._join(data, data[HEADER.size : HEADER.size + own], other[HEADER.size + size :])

    def _join(self, data: bytes, text: bytes, body: bytes) -> bytes:
        magic, version, kind, _, _ = HEADER.unpack_from(data)
        return HEADER.pack(magic, version, kind, len(text), len(body)) + text + body

    def _replay(self, data: bytes) -> bytes:
        """Return a valid message that is not due."""
        return self.rng.choice(self.known)


class Fuzzer:
    """Counts what members do with hostile messages, and keeps what they should not have done."""

    def __init__(self, messages: int, seed: int, per_state: int) -> None:
        self.messages = messages
        self.per_state = per_state
        self.mutator = Mutator(seed)
        self.counts: Counter[str] = Counter()
        self.findings: list[str] = []
        self.slowest = 0.0
        self.grown = 0

    @property
    def done(self) -> bool:
        return self.counts["sent"] >= self.messages

    def attack(
        self, where: str, due: bytes, handle: Handle, state: State, undo: Callable[[], None] | None = None
    ) -> None:
        """Send hostile messages to a member that is about to get the message `due`.

        `state` describes what must not change when a message is refused. A copy ends when a message was taken, unless `undo`
        takes it back.
        """
        self.mutator.known = [*self.mutator.known[-200:], due]
        left = min(self.per_state, self.messages - self.counts["sent"])
        while left > 0:
            left -= self._batch(where, due, min(left, BATCH), handle, state, undo)

    def _batch(self, where: str, due: bytes, most: int, *member: Any) -> int:
        seed = self.mutator.rng.getrandbits(64)
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            os.close(reader)
            self.mutator.rng.seed(seed)
            try:
                report = self._send(where, due, most, *member)
            except BaseException:
                report = {"sent": 1, "findings": [f"{where}: {traceback.format_exc()}"]}
            os.write(writer, json.dumps(report).encode()[:60_000])
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            text = pipe.read()
        _, status = os.waitpid(child, 0)
        report = (
            json.loads(text) if text else {"sent": 1, "findings": [f"{where}: ended with status {status}"]}
        )
        self.findings += report.pop("findings")
        self.slowest = max(self.slowest, report.pop("slowest", 0.0))
        self.grown = max(self.grown, report.pop("grown", 0))
        self.counts.update(report)
        self.counts[f"sent to {where}"] += report["sent"]
        return int(report["sent"])

    def _send(
        self, where: str, due: bytes, most: int, handle: Handle, state: State, undo: Callable[[], None] | None
    ) -> dict[str, Any]:
        signal.signal(signal.SIGALRM, _raise_slow)
        before = state()
        found: dict[str, Any] = {"sent": 0, "refused": 0, "taken": 0, "findings": [], "slowest": 0.0}
        memory = _peak_memory()
        for _ in range(most):
            data = self.mutator.draw(due)
            found["sent"] += 1
            signal.setitimer(signal.ITIMER_REAL, 10 * SECONDS)
            began = time.process_time()
            try:
                handle(data)
                refused = False
            except (VerFedGNNError, Realign):
                refused = True
            except Exception as error:
                found["findings"].append(f"{where}: {type(error).__name__}: {error} at {data[:2000].hex()}")
                break
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            found["slowest"] = max(found["slowest"], time.process_time() - began)
            found["refused" if refused else "taken"] += 1
            if refused and state() != before:
                found["findings"].append(
                    f"{where}: changed by a message that it refused: {data[:2000].hex()}"
                )
                break
            if undo is not None:
                undo()
            elif not refused and state() != before:
                break
        found["grown"] = _peak_memory() - memory
        if found["slowest"] > SECONDS or found["grown"] > BYTES:
            found["findings"].append(
                f"{where}: {found['slowest']:.1f} s, {found['grown'] >> 20} MB for one message"
            )
        return found


def _raise_slow(*_: Any) -> None:
    raise TimeoutError("no answer in time")


def _peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# -- the federation --------------------------------------------------------------------------------------


class ServiceParty:
    """A party's service, driven message by message."""

    def __init__(self, hub: Hub, folder: Path, identity: Any, ratings: vf.Ratings) -> None:
        self.wire = Wire(hub, identity.name)
        self.link = CoordinatorLink(identity, self.wire, lambda: False, StatusPublisher(folder))
        store = PartyStore(folder, identity)
        align_party(store, self.link, ratings)
        (stage,) = store.stages
        self.service = PartyService(store, stage, self.link)
        self.link.begin(stage.name, self.service._hello, self.service.candidate)

    def take(self, event: TransportEvent) -> None:
        if event.kind == "joined":
            self.link.send(self.service._hello())
        elif event.kind == "message":
            self.handle(event.data)

    def handle(self, data: bytes) -> None:
        self.service._handle(self.link._read(data))

    def hostile(self, data: bytes) -> None:
        """Take a hostile message in a copy of the process, which must not write to the files of the original."""
        self.link.transcript._handle = os.open(os.devnull, os.O_WRONLY)
        self.link.transcript._flush = lambda: None  # type: ignore[method-assign]
        self.service.record.write_progress = lambda *_: None  # type: ignore[method-assign]
        self.service.ledger.store = lambda entry, values, before: None
        self.handle(data)
        kept = self.service.progress.checkpoint().arrays
        assert all(np.isfinite(values).all() for values in kept.values()), "no message spoils the model"

    def state(self) -> str:
        kept = self.service.progress.checkpoint()
        found = hashlib.sha256(repr(sorted(kept.values.items())).encode())
        for name in sorted(kept.arrays):
            found.update(np.ascontiguousarray(kept.arrays[name]).tobytes())
        return found.hexdigest()


class HostedCoordinator:
    """The coordinator's service, driven event by event; one of its parties is hostile."""

    def __init__(self, hub: Hub, folder: Path, identity: Any, hostile: str) -> None:
        self.wire = Wire(hub, SERVER)
        self.service = CoordinatorService(identity, self.wire, StatusPublisher(folder))
        self.bad = hostile

    def take(self, event: TransportEvent) -> None:
        self.service._handle(event)
        while self.service.stage.step():
            pass

    def hostile(self, data: bytes) -> None:
        self.service.transcript._handle = os.open(os.devnull, os.O_WRONLY)
        self.service.offences.clear()
        self.service._times.clear()
        self.service._handle(TransportEvent("message", self.bad, data))
        if self.service.offences:
            raise vf.ProtocolError("refused")

    def state(self) -> str:
        coordinator = self.service.coordinator
        others = (
            sorted(coordinator.members.present - {self.bad}),
            sorted(set(coordinator.replies) - {self.bad}),
            sorted(set(self.service.offences) - {self.bad}),
        )
        model = coordinator.replica.digest() if coordinator.began else ""
        return repr((coordinator.round, coordinator.attempt, coordinator.state, others, model))

    def keep(self) -> Callable[[], None]:
        """Return a function that takes back what messages have changed since now."""
        service = self.service
        objects = [service, *service.stages]
        objects += [
            part for stage in service.stages for part in (stage.coordinator, stage.coordinator.members)
        ]
        kept = [(one, _copy_attributes(one)) for one in objects]

        def undo() -> None:
            for one, attributes in kept:
                vars(one).update({name: _copy(value) for name, value in attributes.items()})

        return undo


def _copy_attributes(thing: Any) -> dict[str, Any]:
    return {name: _copy(value) for name, value in vars(thing).items()}


def _copy(value: Any) -> Any:
    if isinstance(value, dict) and not isinstance(value, Counter):
        return {key: _copy(one) for key, one in value.items()}
    return copy.copy(value) if isinstance(value, set | list | Counter) else value


def attack_training(fuzzer: Fuzzer, folder: Path, seed: int) -> None:
    """Attack every member before each honest message of a short training; without masks every odd time."""
    ratings = synthetic_ratings(users=30, items=24, ratings=500, seed=seed)
    parties = vf.split_items(ratings, parties=3, seed=seed)
    chosen = {"batch": 0, "epochs": 4, "evaluate_every": 2, "dim": 4, "unprotected": ["noise"]}
    config = vf.Config.preset("paper", masking=seed % 2 == 0, **chosen)
    names = [party.name for party in parties]
    _, identities = agree(folder, names, config, alignment="none")
    hub = Hub()
    host = HostedCoordinator(hub, folder / "run-server", identities[SERVER], names[0])
    members = [
        ServiceParty(hub, folder / name, identities[name], party.ratings)
        for name, party in zip(names, parties, strict=True)
    ]
    waiting = True
    while waiting and not fuzzer.done:
        waiting = False
        for member in (host, *members):
            event = member.wire.next(0)
            if event is None:
                continue
            waiting = True
            if event.kind == "message":
                state = host.service.coordinator.state if member is host else member.service.state
                where = f"{'coordinator' if member is host else 'party'} {state.name}"
                undo = host.keep() if member is host else None
                fuzzer.attack(where, bytes(event.data), member.hostile, member.state, undo)
            member.take(event)
    if not fuzzer.done:
        results = {bytes(member.service.record.read_result().public.numpy()) for member in members}
        assert len(results) == 1, "the honest training ends as if nobody had attacked"


def attack_alignment(fuzzer: Fuzzer, folder: Path, seed: int) -> None:
    """Attack both sides of an alignment before each of its honest messages."""
    names = ["film", "book", "music"]
    agreement, identities = agree(folder, names, vf.Config.preset("paper"))
    ids = np.array([f"u{n}" for n in range(20)])
    rules = AlignmentRules("keyed", agreement.digest())
    parties = {name: PartyAlignment(name, ids, rules, identities[name]) for name in names}
    host = CoordinatorAlignment(names, rules)
    pending = deque((SERVER, name, encode(party.hello())) for name, party in parties.items())
    while pending and not fuzzer.done:
        to, sender, data = pending.popleft()
        if to == SERVER:
            kept = _copy_attributes(host)
            fuzzer.attack(
                "alignment at the coordinator",
                data,
                lambda raw, sender=sender: host.handle(sender, decode(raw, 64 * len(raw))),
                lambda: "",
                lambda kept=kept: vars(host).update({name: _copy(value) for name, value in kept.items()}),
            )
            for other, answer in host.handle(sender, decode(data)):
                pending.append((other, SERVER, encode(answer)))
        else:
            party = parties[to]
            fuzzer.attack(
                "alignment at a party",
                data,
                lambda raw, party=party: party.handle(decode(raw, 64 * len(raw))),
                lambda party=party: repr((party.rows, party.users, party.alignment)),
            )
            for answer in party.handle(decode(data)):
                pending.append((SERVER, to, encode(answer)))
    assert fuzzer.done or len({party.alignment for party in parties.values()}) == 1


def fuzz(messages: int, seed: int, per_state: int) -> Fuzzer:
    """Send so many hostile messages, `per_state` of them before each honest one."""
    logging.getLogger("verfedgnn.federation").setLevel(logging.CRITICAL)
    torch.set_num_threads(1)
    fuzzer = Fuzzer(messages, seed, per_state)
    while not fuzzer.done and len(fuzzer.findings) < 20:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "alignment").mkdir()
            attack_alignment(fuzzer, Path(folder) / "alignment", seed)
            attack_training(fuzzer, Path(folder), seed)
        seed += 1
    return fuzzer


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--per-state", type=int, default=1000, help="hostile messages before each honest one")
    chosen = parser.parse_args()
    began = time.monotonic()
    fuzzer = fuzz(chosen.messages, chosen.seed, chosen.per_state)
    seconds = time.monotonic() - began
    for name, count in sorted(fuzzer.counts.items()):
        print(f"{name:40} {count:>10,}")
    print(
        f"{'seconds':40} {seconds:>10,.0f}\n{'messages a second':40} {fuzzer.counts['sent'] / seconds:>10,.0f}"
    )
    print(
        f"{'slowest message, CPU seconds':40} {fuzzer.slowest:>10.3f}\n{'memory taken at most, MB':40} {fuzzer.grown >> 20:>10,}"
    )
    print(f"{'findings':40} {len(fuzzer.findings):>10}")
    for finding in fuzzer.findings:
        print(finding[:3000])
    return bool(fuzzer.findings)


if __name__ == "__main__":
    sys.exit(main())

"""The coordinator as a service: events of the network in, rounds out.

The protocol is `protocol.coordinator`; this is its clock, its memory on disk and its patience.

    event -> handle -> step: open a trip, open it anew without those who were lost, close it, finish
"""

from __future__ import annotations

import json
import secrets
import time
from collections import Counter
from collections.abc import Callable, Set
from pathlib import Path
from typing import Any

from verfedgnn.core.errors import ConfigError, Interrupted, ProtocolError, RunError
from verfedgnn.core.files import write_bytes, writing
from verfedgnn.federation.agreement import Agreement
from verfedgnn.federation.event_log import log_event, log_warning
from verfedgnn.federation.identity import check_key
from verfedgnn.federation.mask_faults import MaskFaultSearch
from verfedgnn.federation.status_server import StatusPublisher
from verfedgnn.federation.transport.interface import Transport, TransportEvent
from verfedgnn.privacy.masking import usable
from verfedgnn.protocol.coordinator.coordinator import Coordinator
from verfedgnn.protocol.round.aggregation import SumError
from verfedgnn.protocol.round.replica import parameters_digest
from verfedgnn.protocol.user_alignment import Host
from verfedgnn.protocol.wire.alignment_messages import Aligned, AlignHello, Pseudonyms, Sealed
from verfedgnn.protocol.wire.framing import kind_of
from verfedgnn.protocol.wire.messages import (
    Finished,
    Hello,
    Message,
    Refused,
    RoundReply,
    Waiting,
    decode,
    encode,
)
from verfedgnn.runs.checkpoint import read_checkpoint, write_checkpoint
from verfedgnn.runs.ledger import Ledger
from verfedgnn.runs.metrics_file import cost, history_entry, round_seconds
from verfedgnn.runs.run import read_history, write_history, write_json, write_public

MOST_OFFENCES = 20
"""Refused messages after which a party is not heard any more until the coordinator is started again."""
MOST_HELLOS = 30
"""Times a party may join within a minute."""
_TICK = 0.25


class CoordinatorService:
    """One training, from the first Hello to the last Finished. `folder` is its run folder; what is there is continued."""

    def __init__(
        self,
        agreement: Agreement,
        transport: Transport,
        folder: Path,
        watch: StatusPublisher,
        *,
        checkpoint_every: int = 1,
        device: str = "cpu",
    ) -> None:
        self.agreement, self.transport, self.folder, self.watch = agreement, transport, folder, watch
        self.checkpoint_every = checkpoint_every
        names = [party.name for party in agreement.parties]
        fingerprint = agreement.fingerprint()
        self.host = Host(names, agreement.alignment, fingerprint) if agreement.alignment != "none" else None
        self.coordinator = Coordinator(
            agreement.config,
            names,
            device,
            quorum=agreement.quorum,
            agreement=fingerprint,
            training=secrets.token_hex(8),
        )
        self.ledger, self.history, self.seconds = Ledger(), list[dict[str, Any]](), 0.0
        self.greeted: set[str] = set()
        """Parties that said hello on the connection they have."""
        self.offences: Counter[str] = Counter()
        self._hellos: dict[str, list[float]] = {}
        self.repeats = 0
        self.search = MaskFaultSearch()
        self.finished: set[str] = set()
        """Parties that have the result."""
        self._deadline = self._began = 0.0
        self._company = time.monotonic()
        self._finish_until: float | None = None
        self._over = False
        self._waiting_for: list[str] | None = None
        self._restore()

    def run(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Until training is over and handed out, or `stop()` turns true."""
        config = self.agreement.config
        log_event(
            "coordinator ready",
            training=self.coordinator.training,
            parties=self.coordinator.names,
            config=config.fingerprint(),
        )
        while not self._over:
            if stop():
                raise Interrupted("stopped")
            event = self.transport.next(_TICK)
            if event is not None:
                self._handle(event)
            while self._step():
                pass
            self._keep_company()
            self.watch.update(self._status)
        self.watch.update(self._status, now=True)
        without = [name for name in self.coordinator.names if name not in self.finished]
        if without:
            who = ", ".join(without)
            raise Interrupted(
                f"training is over, but {who} could not be given the result",
                "start it again when they are there",
            )

    # -- events --------------------------------------------------------------------------------------------------------------

    def _handle(self, event: TransportEvent) -> None:
        name = event.peer
        if event.kind == "joined":
            log_event("party connected", party=name)
        elif event.kind == "left":
            log_event("party disconnected", party=name, round=self.coordinator.round)
            self._gone(name)
        elif self.offences[name] < MOST_OFFENCES:
            kind = kind_of(event.data)
            if kind is RoundReply and name not in self.greeted:
                return  # it answers what was asked before the connection was lost
            # What is packed outside of rounds has a bit or more for every value.
            most = self.coordinator.largest_array if kind is RoundReply else 64 * len(event.data)
            try:
                message = decode(event.data, self.agreement.max_message, most)
                self.ledger.record(type(message).__name__, "up", name, len(event.data))
                self._take(name, message)
            except ProtocolError as error:
                self._offended(name, str(error))

    def _take(self, name: str, message: Message) -> None:
        if isinstance(message, RoundReply):
            self.coordinator.receive(name, message)
        elif isinstance(message, Hello):
            self._hello(name, message)
        elif isinstance(message, AlignHello | Sealed | Pseudonyms | Aligned):
            self._align(name, message)
        elif isinstance(message, Finished):
            self._has_result(name, message)
        elif isinstance(message, Refused):
            log_warning("a party refuses", party=name, reason=message.reason)
            self._gone(name)
        else:
            raise ProtocolError(f"{name}: a {type(message).__name__} makes no sense here")

    def _gone(self, name: str) -> None:
        self.greeted.discard(name)
        self.coordinator.lost(name)
        if self.host is not None:
            self.host.left(name)

    def _offended(self, name: str, reason: str) -> None:
        """What does not fit is refused and counted; the sender hears why, nobody else hears anything."""
        self.offences[name] += 1
        last = self.offences[name] == MOST_OFFENCES
        log_warning(
            "message refused", party=name, reason=reason, refused=self.offences[name], barred=last or None
        )
        self._send(name, Refused(reason=reason[:500]))
        self._gone(name)

    def _hello(self, name: str, message: Hello) -> None:
        if message.party != name:
            raise ProtocolError(f"{name}: it says hello under another name than its certificate's")
        recent = [*(at for at in self._hellos.get(name, []) if at > time.monotonic() - 60), time.monotonic()]
        self._hellos[name] = recent
        if len(recent) > MOST_HELLOS:
            raise ProtocolError(f"{name}: it joined {len(recent)} times within a minute")
        if message.mask_key is not None:
            keys = {
                hello.mask_key for other, hello in self.coordinator.members.hellos.items() if other != name
            }
            self._check_key(name, "mask", message.mask_key, message.mask_signature or "", keys)
        fresh = message.training is None and not self.coordinator.began
        if self.host is not None and fresh and self.host.must_align(name):
            self._send(name, Waiting(missing=self.host.missing, align=True))
            return
        self.coordinator.hello(message)
        self.greeted.add(name)
        if not self.coordinator.began:
            missing = [
                other for other in self.coordinator.names if other not in self.coordinator.members.hellos
            ]
            log_event(
                "party joined", party=name, users=message.users, items=message.items, missing=missing or None
            )
            self._send(name, Waiting(missing=missing))
            return
        self._waiting_for = None
        if not self.coordinator.round:
            self._checkpoint()  # from here on parties know this training by its name
        for other in self.coordinator.names:
            members = self.coordinator.members
            if other in self.greeted and other not in members.present | members.slow:
                log_event("party takes part", party=other, round=self.coordinator.round)
                self._send(other, Waiting(missing=[]))  # heard; what follows may take its time
                self._send(other, self.coordinator.welcome(other))
                if self._finish_until is not None:
                    self._send(other, self.coordinator.finish())

    def _align(self, name: str, message: Message) -> None:
        if self.host is None:
            raise ProtocolError(f"{name}: this federation aligns no users")
        if isinstance(message, AlignHello):
            if self.coordinator.began:
                raise ProtocolError(
                    f"{name}: training has begun; go back to this party's --out folder, or begin a new training"
                )
            keys = {hello.seal_key for other, hello in self.host.hellos.items() if other != name}
            self._check_key(name, "seal", message.seal_key, message.seal_signature, keys)
            log_event("party is ready to align", party=name)
            for other in sorted(
                self.coordinator.members.hellos
            ):  # aligned before, without this party: all must do it again
                self._send(other, Waiting(missing=[name], align=True))
            self.coordinator.members.hellos.clear()
        for to, answer in self.host.handle(name, message):
            data = encode(answer)
            if len(data) > self.agreement.max_message:
                raise ProtocolError(f"{name}: its message for {to} is too large")
            self._send(to, answer, data)
        if isinstance(message, Aligned) and len(self.host.users) == len(self.coordinator.names):
            log_event("users aligned", method=self.host.method, common=next(iter(self.host.users.values())))

    def _check_key(self, name: str, purpose: str, key: str, signature: str, others: Set[str | None]) -> None:
        """A key that others would refuse is refused here, where it is known whose it is."""
        try:
            check_key(self.agreement, purpose, self.coordinator.names.index(name), key, signature)
            usable(key)
        except ProtocolError:
            raise ProtocolError(f"{name}: its {purpose} key is not usable, or not signed by it") from None
        if key in others:
            raise ProtocolError(f"{name}: its {purpose} key is another party's")

    def _has_result(self, name: str, message: Finished) -> None:
        if self._finish_until is None:
            raise ProtocolError(f"{name}: it is finished before training is over")
        if message.digest != parameters_digest(self.coordinator.best.parameters):
            raise ProtocolError(f"{name}: it keeps other public parameters than the coordinator")
        self.finished.add(name)
        self._write_result()
        log_event("party has the result", party=name, public=message.digest)

    def _send(self, name: str, message: Message, data: bytes | None = None) -> None:
        data = encode(message) if data is None else data
        if len(data) > self.agreement.max_message:
            raise ConfigError(
                f"a message of {len(data):,} bytes exceeds max_message of the federation file; raise it there"
            )
        self.ledger.record(type(message).__name__, "down", name, len(data))
        self.transport.send(name, data)

    def _keep_company(self) -> None:
        """A sign of life to everybody who waits, long before they take silence for a lost coordinator."""
        now = time.monotonic()
        if now - self._company > self.agreement.timeouts.idle / 3:
            self._company = now
            waiting = self.greeted | (set(self.host.hellos) if self.host is not None else set())
            for name in sorted(waiting):
                self._send(name, Waiting(missing=[]))

    # -- rounds --------------------------------------------------------------------------------------------------------------

    def _step(self) -> bool:
        """One thing that can be done now; whether there was one."""
        coordinator = self.coordinator
        if not coordinator.began:
            return False
        if self._finish_until is not None:
            return self._finishing()
        if coordinator.open_parties:
            if time.monotonic() > self._deadline:
                for name in set(coordinator.due) - coordinator.members.slow:
                    log_warning(
                        "party is late",
                        party=name,
                        round=coordinator.round,
                        seconds=self.agreement.timeouts.reply,
                    )
                    coordinator.lost(name, slow=True)
            if not coordinator.broken:
                return not coordinator.due and self._close()
        elif coordinator.done:
            return self._finish()
        if not coordinator.ready:
            return self._wait()
        self._open()
        return True

    def _open(self) -> None:
        coordinator = self.coordinator
        if self._waiting_for is not None:
            log_event("enough parties are there", round=coordinator.round)
            self._waiting_for = None
        again = bool(coordinator.open_parties)
        starts = coordinator.open(self.search.among(coordinator))
        if again:
            self.repeats += 1
            log_event(
                "trip begun anew", round=coordinator.round, attempt=coordinator.attempt, parties=list(starts)
            )
        elif not self._began:
            self._began = time.monotonic()
        encoded = {
            key: encode(start) for key, start in {id(start): start for start in starts.values()}.items()
        }
        for name, start in starts.items():
            self._send(name, start, encoded[id(start)])
        self._deadline = time.monotonic() + self.agreement.timeouts.reply

    def _wait(self) -> bool:
        missing = self.coordinator.members.missing
        if missing != self._waiting_for:
            self._waiting_for = missing
            log_warning(
                "waiting for parties",
                missing=missing,
                needed=self.coordinator.members.quorum,
                round=self.coordinator.round,
            )
        return False

    def _close(self) -> bool:
        coordinator = self.coordinator
        try:
            closed = coordinator.close()
        except SumError as error:
            self.search.go_on(coordinator, error)
            return True
        found = self.search.end()
        if found is not None:
            self.offences[found] += 1
            log_warning(
                "party left out: without it the sums add up, with it they do not",
                party=found,
                round=closed.round,
            )
            self._gone(found)
        if coordinator.trip > 0:
            return True
        self.seconds += time.monotonic() - self._began
        self._began = 0.0
        if closed.valid_error is not None:
            self.history.append(
                history_entry(closed.round, closed.valid_error, coordinator.config, self.ledger, self.seconds)
            )
            with writing(self.folder):
                write_history(self.folder, self.history)
            log_event(
                "validated",
                round=closed.round,
                of=coordinator.rounds,
                valid_error=closed.valid_error,
                best=coordinator.best.error,
            )
        self.watch.round(closed, self._status)
        if closed.round % self.checkpoint_every == 0 or closed.valid_error is not None or coordinator.done:
            self._checkpoint()
        return True

    # -- the end -------------------------------------------------------------------------------------------------------------

    def _finish(self) -> bool:
        message = self.coordinator.finish()
        data = encode(message)
        self._finish_until = time.monotonic() + self.agreement.timeouts.finish
        log_event("training is over", rounds=self.coordinator.round, best_round=self.coordinator.best.round)
        self._write_result()
        for name in sorted(self.greeted):
            self._send(name, message, data)
        return True

    def _finishing(self) -> bool:
        assert self._finish_until is not None
        without = [name for name in self.coordinator.names if name not in self.finished]
        if without and time.monotonic() < self._finish_until:
            return False
        self._over = True
        return False

    # -- on disk -------------------------------------------------------------------------------------------------------------

    def _restore(self) -> None:
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            config_file = self.folder / "config.toml"
            config = self.agreement.config.to_toml().encode()
            mark, fingerprint = self.folder / "federation.txt", self.agreement.fingerprint()
            if config_file.exists() and not (
                mark.exists() and mark.read_text("utf-8").strip() == fingerprint
            ):
                raise RunError(
                    f"{self.folder} belongs to another agreement than the federation file; choose another --out"
                )
            write_bytes(config_file, config)
            write_bytes(mark, f"{fingerprint}\n".encode())
        found = read_checkpoint(self.folder / "checkpoint")
        if found is None:
            return
        states, values = found
        self.coordinator.restore(states["_coordinator"])
        self.ledger, self.seconds, self.repeats = (
            Ledger.from_dict(values["ledger"]),
            values["seconds"],
            values["repeats"],
        )
        if (self.folder / "history.jsonl").is_file():
            self.history = [
                entry for entry in read_history(self.folder) if entry["round"] <= self.coordinator.round
            ]
        if self.coordinator.done and (self.folder / "metrics.json").is_file():
            parties = json.loads((self.folder / "metrics.json").read_text("utf-8"))["parties"]
            self.finished = {party["name"] for party in parties if party["has_result"]}
        log_event("continuing from checkpoint", round=self.coordinator.round)

    def _checkpoint(self) -> None:
        values = {"ledger": self.ledger.to_dict(), "seconds": self.seconds, "repeats": self.repeats}
        write_checkpoint(
            self.folder / "checkpoint",
            self.coordinator.round,
            {"_coordinator": self.coordinator.state()},
            values,
        )

    def _write_result(self) -> None:
        coordinator = self.coordinator
        metrics = {
            "valid": coordinator.config.training.judged(coordinator.best.error),
            **cost(self.ledger, coordinator.round, len(coordinator.names), self.seconds),
            "best_round": coordinator.best.round,
            "public": parameters_digest(coordinator.best.parameters),
            "parties": [{"name": name, "has_result": name in self.finished} for name in coordinator.names],
            "repeats": self.repeats,
            "refused": dict(self.offences),
            "config": self.agreement.config.fingerprint(),
            "seed": self.agreement.config.seed,
        }
        with writing(self.folder):
            write_public(self.folder, coordinator.best.parameters)
            write_json(self.folder / "ledger.json", self.ledger.to_dict())
            write_json(self.folder / "metrics.json", metrics)

    def _status(self) -> dict[str, Any]:
        coordinator, members = self.coordinator, self.coordinator.members
        state = "joining"
        if self._over:
            state = "finished"
        elif self._finish_until is not None:
            state = "finishing"
        elif self._waiting_for is not None:
            state = "waiting"
        elif coordinator.began:
            state = "training"
        elif (
            self.host is not None
            and self.host.session is not None
            and len(self.host.users) < len(coordinator.names)
        ):
            state = "aligning"
        return {
            "role": "coordinator",
            "federation": self.agreement.name,
            "training": coordinator.training,
            "state": state,
            "round": coordinator.round,
            "rounds": coordinator.rounds if coordinator.began else None,
            "valid_error": coordinator.config.training.error_of(self.history[-1]) if self.history else None,
            "best_error": coordinator.best.error if coordinator.best.round else None,
            "best_round": coordinator.best.round,
            "seconds": round_seconds(self.seconds),
            "repeats": self.repeats,
            "bytes": {"up": self.ledger.total("up"), "down": self.ledger.total("down")},
            "parties": {
                name: {
                    "here": name in members.present,
                    "joined": name in self.greeted or (self.host is not None and name in self.host.hellos),
                    "slow": name in members.slow,
                    "refused": self.offences[name],
                    "up": self.ledger.total("up", party=name),
                    "down": self.ledger.total("down", party=name),
                }
                for name in coordinator.names
            },
        }

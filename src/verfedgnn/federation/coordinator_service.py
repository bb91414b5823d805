"""The coordinator as a service: network events in, rounds out.

    event -> _handle (a party joined, left or sent a message) -> _step (open, restart or close a trip, or finish)

The protocol itself is in `protocol.coordinator`. This module connects it to the network, the clock and the disk.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Set
from pathlib import Path
from typing import Any

from verfedgnn.core.errors import ConfigError, Interrupted, ProtocolError
from verfedgnn.federation.agreement import Agreement
from verfedgnn.federation.coordinator_store import CoordinatorStore, TrainingRecord
from verfedgnn.federation.event_log import log_event, log_warning
from verfedgnn.federation.identity import check_key
from verfedgnn.federation.mask_faults import MaskFaultSearch
from verfedgnn.federation.status_server import StatusPublisher
from verfedgnn.federation.transport.interface import Transport, TransportEvent
from verfedgnn.privacy.masking import check_public_key
from verfedgnn.protocol.coordinator.coordinator import ClosedRound, Coordinator
from verfedgnn.protocol.coordinator.coordinator_states import COORDINATOR_STATES
from verfedgnn.protocol.round.aggregation import SumError
from verfedgnn.protocol.round.replica import parameters_digest
from verfedgnn.protocol.user_alignment.coordinator_side import CoordinatorAlignment
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
from verfedgnn.runs.metrics_file import history_entry, round_seconds

MOST_OFFENCES = 20
"""Number of refused messages after which a party is ignored until the coordinator restarts."""
MOST_HELLOS = 30
"""Number of times a party may join within a minute."""
_TICK = 0.25


class CoordinatorService:
    """One training, from the first Hello to the last Finished; it resumes from the checkpoint in `folder`."""

    def __init__(
        self,
        agreement: Agreement,
        transport: Transport,
        folder: Path,
        publisher: StatusPublisher,
        *,
        checkpoint_every: int = 1,
        device: str = "cpu",
    ) -> None:
        self.agreement = agreement
        self.transport = transport
        self.publisher = publisher
        self.checkpoint_every = checkpoint_every
        self.store = CoordinatorStore(folder, agreement)
        names = [party.name for party in agreement.parties]
        fingerprint = agreement.fingerprint()
        self.host = (
            CoordinatorAlignment(
                names,
                agreement.alignment,
                fingerprint,
                agreement.config.users,
                most_users=agreement.max_users,
            )
            if agreement.alignment != "none"
            else None
        )
        self.coordinator = Coordinator(
            agreement.config,
            names,
            device,
            quorum=agreement.quorum,
            agreement=fingerprint,
            training=secrets.token_hex(8),
        )
        self.greeted: set[str] = set()
        """Parties that said hello on their present connection."""
        self.offences: Counter[str] = Counter()
        """Number of refused messages of each party."""
        self.search = MaskFaultSearch()
        self._hello_times: dict[str, list[float]] = {}
        self._reply_deadline = 0.0
        self._round_began = 0.0
        self._last_sign_of_life = time.monotonic()
        self._finish_deadline: float | None = None
        """Time until which absent parties may fetch the result; None while training."""
        self._over = False
        self._waiting_for: list[str] | None = None
        self.store.claim()
        restored = self.store.restore(self.coordinator)
        if restored is not None:
            log_event("resuming from checkpoint", round=self.coordinator.round)
        self.record = restored or TrainingRecord()

    def run(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Train and hand out the result; raise `Interrupted` when `stop()` turns true."""
        log_event(
            "coordinator ready",
            training=self.coordinator.training,
            parties=self.coordinator.names,
            config=self.agreement.config.fingerprint(),
        )
        while not self._over:
            if stop():
                raise Interrupted("stopped")
            event = self.transport.next(_TICK)
            if event is not None:
                self._handle(event)
            while self._step():
                pass
            self._send_sign_of_life()
            self.publisher.update(self._status)
        self.publisher.update(self._status, now=True)
        if self._without_result:
            raise Interrupted(
                f"training has finished, but {', '.join(self._without_result)} did not receive the result",
                "start the coordinator again when they are back",
            )

    @property
    def _without_result(self) -> list[str]:
        return [name for name in self.coordinator.names if name not in self.record.finished]

    # -- events ------------------------------------------------------------------------------------------

    def _handle(self, event: TransportEvent) -> None:
        name = event.peer
        if event.kind == "joined":
            log_event("party connected", party=name)
        elif event.kind == "left":
            log_event("party disconnected", party=name, round=self.coordinator.round)
            self._lose(name)
        elif self.offences[name] < MOST_OFFENCES:
            try:
                self._receive(name, event.data)
            except ProtocolError as error:
                self._refuse(name, str(error))

    def _receive(self, name: str, data: bytes) -> None:
        kind = kind_of(data)
        if kind is RoundReply and name not in self.greeted:
            return  # it answers a round from before the connection was lost
        if kind is not None:
            COORDINATOR_STATES.after(self.coordinator.state, kind, name)
        # Outside of rounds, arrays are packed with at least one bit per value, which bounds their size.
        largest = self.coordinator.largest_array if kind is RoundReply else 64 * len(data)
        message = decode(data, self.agreement.max_message, largest)
        self.record.ledger.record(type(message).__name__, "up", name, len(data))
        self._dispatch(name, message)

    def _dispatch(self, name: str, message: Message) -> None:
        if isinstance(message, RoundReply):
            self.coordinator.receive(name, message)
        elif isinstance(message, Hello):
            self._take_hello(name, message)
        elif isinstance(message, AlignHello | Sealed | Pseudonyms | Aligned):
            self._take_alignment(name, message)
        elif isinstance(message, Finished):
            self._take_finished(name, message)
        elif isinstance(message, Refused):
            log_warning("party refused to continue", party=name, reason=message.reason)
            self._lose(name)

    def _lose(self, name: str) -> None:
        """Go on without a party until it joins again."""
        self.greeted.discard(name)
        self.coordinator.lose(name)
        if self.host is not None:
            self.host.left(name)

    def _refuse(self, name: str, reason: str) -> None:
        """Count a bad message and tell its sender, and nobody else, what is wrong with it."""
        self.offences[name] += 1
        count = self.offences[name]
        log_warning(
            "message refused", party=name, reason=reason, refused=count, barred=count == MOST_OFFENCES or None
        )
        self._send(name, Refused(reason=reason[:500]))
        self._lose(name)

    # -- joining -----------------------------------------------------------------------------------------

    def _take_hello(self, name: str, message: Hello) -> None:
        self._check_hello(name, message)
        fresh = message.training is None and not self.coordinator.began
        if self.host is not None and fresh and self.host.must_align(name):
            self._send(name, Waiting(missing=self.host.missing, align=True))
            return
        self.coordinator.hello(message)
        self.greeted.add(name)
        if self.coordinator.began:
            self._admit_greeted()
            return
        missing = [other for other in self.coordinator.names if other not in self.coordinator.members.hellos]
        log_event(
            "party joined", party=name, users=message.users, items=message.items, missing=missing or None
        )
        self._send(name, Waiting(missing=missing))

    def _check_hello(self, name: str, message: Hello) -> None:
        if message.party != name:
            raise ProtocolError(f"{name}: the name in its Hello differs from the name in its certificate")
        now = time.monotonic()
        recent = [*(at for at in self._hello_times.get(name, []) if at > now - 60), now]
        self._hello_times[name] = recent
        if len(recent) > MOST_HELLOS:
            raise ProtocolError(f"{name}: it joined {len(recent)} times within a minute")
        if message.mask_key is not None:
            hellos = self.coordinator.members.hellos
            others = {hello.mask_key for other, hello in hellos.items() if other != name}
            self._check_key(name, "mask", message.mask_key, message.mask_signature or "", others)

    def _admit_greeted(self) -> None:
        """Welcome all parties that said hello and do not take part yet."""
        self._waiting_for = None
        if not self.coordinator.round:
            self._write_checkpoint()  # from now on parties know this training by its name
        members = self.coordinator.members
        for name in self.coordinator.names:
            if name in self.greeted and name not in members.present | members.slow:
                log_event("party admitted", party=name, round=self.coordinator.round)
                self._send(name, Waiting(missing=[]))  # acknowledges the Hello; a Welcome may take long
                self._send(name, self.coordinator.welcome(name))
                if self._finish_deadline is not None:
                    self._send(name, self.coordinator.finish())

    def _take_alignment(self, name: str, message: Message) -> None:
        if self.host is None:
            raise ProtocolError(
                f"{name}: unexpected {type(message).__name__}, this federation aligns no users"
            )
        if isinstance(message, AlignHello):
            self._start_alignment(name, message)
        for to, answer in self.host.handle(name, message):
            data = encode(answer)
            if len(data) > self.agreement.max_message:
                raise ProtocolError(f"{name}: its message for {to} is too large")
            self._send(to, answer, data)
        if isinstance(message, Aligned) and len(self.host.users) == len(self.coordinator.names):
            log_event("users aligned", method=self.host.method, users=next(iter(self.host.users.values())))

    def _start_alignment(self, name: str, message: AlignHello) -> None:
        assert self.host is not None
        others = {hello.seal_key for other, hello in self.host.hellos.items() if other != name}
        self._check_key(name, "seal", message.seal_key, message.seal_signature, others)
        log_event("party is ready to align", party=name)
        # Parties that aligned before, without this one, have to align again.
        for other in sorted(self.coordinator.members.hellos):
            self._send(other, Waiting(missing=[name], align=True))
        self.coordinator.members.hellos.clear()

    def _check_key(self, name: str, purpose: str, key: str, signature: str, others: Set[str | None]) -> None:
        """Refuse a key here that the other parties would refuse, since here its sender is known."""
        try:
            check_key(self.agreement, purpose, self.coordinator.names.index(name), key, signature)
            check_public_key(key)
        except ProtocolError:
            raise ProtocolError(f"{name}: its {purpose} key is not usable, or not signed by it") from None
        if key in others:
            raise ProtocolError(f"{name}: its {purpose} key is another party's")

    # -- sending -----------------------------------------------------------------------------------------

    def _send(self, name: str, message: Message, data: bytes | None = None) -> None:
        data = encode(message) if data is None else data
        if len(data) > self.agreement.max_message:
            raise ConfigError(
                f"a message of {len(data):,} bytes exceeds max_message in federation.toml; raise it for all members"
            )
        self.record.ledger.record(type(message).__name__, "down", name, len(data))
        self.transport.send(name, data)

    def _send_sign_of_life(self) -> None:
        """Send a message to all waiting parties before they take the silence for a lost coordinator."""
        now = time.monotonic()
        if now - self._last_sign_of_life > self.agreement.timeouts.idle / 3:
            self._last_sign_of_life = now
            aligning = set(self.host.hellos) if self.host is not None else set()
            for name in sorted(self.greeted | aligning):
                self._send(name, Waiting(missing=[]))

    # -- rounds ------------------------------------------------------------------------------------------

    def _step(self) -> bool:
        """Do one thing that can be done now; return whether there may be more to do."""
        coordinator = self.coordinator
        if not coordinator.began:
            return False
        if self._finish_deadline is not None:
            self._over = not self._without_result or time.monotonic() >= self._finish_deadline
            return False
        if coordinator.open_parties:
            self._mark_slow_parties()
            if not coordinator.broken:
                return not coordinator.due and self._close_trip()
        elif coordinator.done:
            self._finish()
            return True
        if not coordinator.ready:
            self._report_waiting()
            return False
        self._open_trip()
        return True

    def _mark_slow_parties(self) -> None:
        if time.monotonic() <= self._reply_deadline:
            return
        for name in set(self.coordinator.due) - self.coordinator.members.slow:
            log_warning(
                "party is late",
                party=name,
                round=self.coordinator.round,
                seconds=self.agreement.timeouts.reply,
            )
            self.coordinator.lose(name, slow=True)

    def _open_trip(self) -> None:
        """Open the next trip, or restart the open one among the parties that are left."""
        coordinator = self.coordinator
        if self._waiting_for is not None:
            log_event("enough parties are here", round=coordinator.round)
            self._waiting_for = None
        restarted = bool(coordinator.open_parties)
        starts = coordinator.open(self.search.choose_parties(coordinator))
        if restarted:
            self.record.repeats += 1
            log_event(
                "trip restarted", round=coordinator.round, attempt=coordinator.attempt, parties=list(starts)
            )
        elif not self._round_began:
            self._round_began = time.monotonic()
        distinct = {id(start): start for start in starts.values()}
        encoded = {key: encode(start) for key, start in distinct.items()}
        for name, start in starts.items():
            self._send(name, start, encoded[id(start)])
        self._reply_deadline = time.monotonic() + self.agreement.timeouts.reply

    def _report_waiting(self) -> None:
        members = self.coordinator.members
        if members.missing != self._waiting_for:
            self._waiting_for = members.missing
            log_warning(
                "waiting for parties",
                missing=members.missing,
                needed=members.quorum,
                round=self.coordinator.round,
            )

    def _close_trip(self) -> bool:
        """Close the open trip and, after its last trip, the round; return True."""
        coordinator = self.coordinator
        try:
            closed = coordinator.close()
        except SumError as error:
            self.search.record_failure(coordinator, error)
            return True
        self._exclude_suspect(closed.round)
        if coordinator.trip == 0:
            self._close_round(closed)
        return True

    def _exclude_suspect(self, round: int) -> None:
        found = self.search.finish()
        if found is not None:
            self.offences[found] += 1
            log_warning("party excluded: the sums add up only without it", party=found, round=round)
            self._lose(found)

    def _close_round(self, closed: ClosedRound) -> None:
        coordinator = self.coordinator
        record = self.record
        record.seconds += time.monotonic() - self._round_began
        self._round_began = 0.0
        if closed.valid_error is not None:
            record.history.append(
                history_entry(
                    closed.round, closed.valid_error, coordinator.config, record.ledger, record.seconds
                )
            )
            self.store.write_history(record)
            log_event(
                "validated",
                round=closed.round,
                of=coordinator.rounds,
                valid_error=closed.valid_error,
                best=coordinator.best.error,
            )
        self.publisher.close_round(closed, self._status)
        if closed.round % self.checkpoint_every == 0 or closed.valid_error is not None or coordinator.done:
            self._write_checkpoint()

    # -- the end -----------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Write the result and send it to all connected parties; the others get it when they join again."""
        message = self.coordinator.finish()
        data = encode(message)
        self._finish_deadline = time.monotonic() + self.agreement.timeouts.finish
        log_event("training finished", rounds=self.coordinator.round, best_round=self.coordinator.best.round)
        self._write_result()
        for name in sorted(self.greeted):
            self._send(name, message, data)

    def _take_finished(self, name: str, message: Finished) -> None:
        if message.digest != parameters_digest(self.coordinator.best.parameters):
            raise ProtocolError(f"{name}: its public parameters differ from the coordinator's")
        self.record.finished.add(name)
        self._write_result()
        log_event("party has the result", party=name, public=message.digest)

    def _write_checkpoint(self) -> None:
        self.store.write_checkpoint(self.coordinator, self.record)

    def _write_result(self) -> None:
        self.store.write_result(self.coordinator, self.record, dict(self.offences))

    # -- status ------------------------------------------------------------------------------------------

    def _status(self) -> dict[str, Any]:
        coordinator = self.coordinator
        record = self.record
        training = coordinator.config.training
        return {
            "role": "coordinator",
            "federation": self.agreement.name,
            "training": coordinator.training,
            "state": self._state(),
            "round": coordinator.round,
            "rounds": coordinator.rounds if coordinator.began else None,
            "valid_error": training.error_of(record.history[-1]) if record.history else None,
            "best_error": coordinator.best.error if coordinator.best.round else None,
            "best_round": coordinator.best.round,
            "seconds": round_seconds(record.seconds),
            "repeats": record.repeats,
            "bytes": {"up": record.ledger.total("up"), "down": record.ledger.total("down")},
            "parties": {name: self._party_status(name) for name in coordinator.names},
        }

    def _state(self) -> str:
        if self._over:
            return "finished"
        if self._finish_deadline is not None:
            return "finishing"
        if self._waiting_for is not None:
            return "waiting"
        if self.coordinator.began:
            return "training"
        host = self.host
        if host is not None and host.session is not None and len(host.users) < len(self.coordinator.names):
            return "aligning"
        return "joining"

    def _party_status(self, name: str) -> dict[str, Any]:
        members = self.coordinator.members
        return {
            "here": name in members.present,
            "joined": name in self.greeted or (self.host is not None and name in self.host.hellos),
            "slow": name in members.slow,
            "refused": self.offences[name],
            "up": self.record.ledger.total("up", party=name),
            "down": self.record.ledger.total("down", party=name),
        }

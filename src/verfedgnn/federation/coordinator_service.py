"""The coordinator as a service: network events in, rounds out.

    event -> _handle (a party joined, left or sent a message) -> step of the present training

The protocol itself is in `protocol.coordinator`, and each training in `coordinator_stage`. This module connects them to the
network, aligns users before the first training, and sends every message to the training that its sender takes part in.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence, Set
from pathlib import Path
from typing import Any, NoReturn

from verfedgnn.core.errors import DataError, Interrupted, ProtocolError, VerFedGNNError
from verfedgnn.core.worker_group import WorkerGroup
from verfedgnn.federation.absence import has_request, remove_request
from verfedgnn.federation.coordinator_stage import CoordinatorStage
from verfedgnn.federation.coordinator_store import TrainingRecord
from verfedgnn.federation.event_log import log_event, log_warning
from verfedgnn.federation.identity import MemberIdentity, check_key
from verfedgnn.federation.revocation import RevocationWatch
from verfedgnn.federation.stages import list_stages
from verfedgnn.federation.status_server import StatusPublisher
from verfedgnn.federation.transcript import ALIGNMENT, Transcript, mark_message
from verfedgnn.federation.transport.interface import Transport, TransportEvent
from verfedgnn.privacy.masking import check_public_key
from verfedgnn.protocol.coordinator.coordinator import Coordinator
from verfedgnn.protocol.coordinator.coordinator_states import COORDINATOR_STATES
from verfedgnn.protocol.party.policy import name_mask_purpose
from verfedgnn.protocol.round.mask_context import list_statement
from verfedgnn.protocol.round.message_sizes import largest_alignment
from verfedgnn.protocol.user_alignment.coordinator_side import CoordinatorAlignment
from verfedgnn.protocol.wire.alignment_messages import Aligned, AlignHello, Pseudonyms, Sealed
from verfedgnn.protocol.wire.framing import Buffer, EncodedMessage, kind_of
from verfedgnn.protocol.wire.integer_packing import use_packing_threads
from verfedgnn.protocol.wire.messages import (
    Finished,
    Hello,
    ListSignature,
    MaskShares,
    Message,
    Refused,
    RoundReply,
    Unmask,
    Waiting,
    decode,
    encode_parts,
)
from verfedgnn.runs.start_from import claim_ancestor, read_public_start

MOST_OFFENCES = 20
"""Number of refused messages after which a party is ignored until the coordinator restarts."""
MOST_HELLOS = 30
"""Number of times a party may join within a minute."""
_TICK = 0.25
_OF_TRIPS = (RoundReply, MaskShares, ListSignature, Unmask)
_ALIGNMENT = (AlignHello, Sealed, Pseudonyms, Aligned)


class CoordinatorService:
    """All trainings of a federation, one after the other; it resumes from the checkpoints in `folder`.

    `start_from` is the folder of an earlier run of the coordinator to continue from. With `workers`, this process is the first of
    several that share the users.
    """

    def __init__(
        self,
        identity: MemberIdentity,
        transport: Transport,
        folder: Path,
        publisher: StatusPublisher,
        *,
        device: str = "cpu",
        start_from: Path | None = None,
        workers: WorkerGroup | None = None,
    ) -> None:
        agreement = identity.agreement
        stages = list_stages(agreement)
        claim_ancestor(folder, start_from, agreement.training_config)
        if start_from is None and agreement.config.is_for_nights:
            log_warning(
                "this agreement is for nights, but the training starts from nothing; stop it and pass --from, or change the "
                "agreement back with `verfedgnn federation night --undo`",
                epochs=agreement.config.training.epochs,
            )
        starts = [
            None if start_from is None else read_public_start(stage.folder(start_from)) for stage in stages
        ]
        self.agreement = agreement
        self.folder = folder
        self.transcript = Transcript(folder, identity)
        self.transport = transport
        self.publisher = publisher
        self.host = (
            CoordinatorAlignment(
                [party.name for party in agreement.parties],
                agreement.alignment,
                agreement.digest(),
                agreement.config.users,
                most_users=agreement.max_users,
                least_overlap=agreement.min_overlap,
                before=0 if starts[0] is None else starts[0].users,
            )
            if agreement.alignment != "none"
            else None
        )
        self.offences: Counter[str] = Counter()
        """Number of refused messages of each party."""
        self.revoked: set[str] = set()
        """Parties whose certificates were revoked since the coordinator was started; nothing of them is heard."""
        self._revocations = RevocationWatch(identity)
        self._hello_times: dict[str, list[float]] = {}
        self._heard: dict[str, float] = {}
        """Time of the last sign of each party."""
        self._announced: list[str] = []
        """The parties of which the others were last told that the training waits for them."""
        self._reported_second: dict[str, float] = {}
        """Time at which each party heard last of a second process under its name."""
        self._last_sign_of_life = time.monotonic()
        self._looked = 0.0
        """Time (monotonic) of the last look for what an operator has written."""
        if workers is not None:
            use_packing_threads(workers.size)
        self.stages = [
            CoordinatorStage(stage, self, folder, device=device, start=start, workers=workers)
            for stage, start in zip(stages, starts, strict=True)
        ]
        self.stage = self.stages[0]
        """The present training: the first one whose result some party lacks."""
        self._joined: dict[str, CoordinatorStage] = {}
        """The training to which each party said hello last."""
        self._limit_messages()

    @property
    def coordinator(self) -> Coordinator:
        """The protocol's coordinator of the present training."""
        return self.stage.coordinator

    @property
    def record(self) -> TrainingRecord:
        """The record of the present training."""
        return self.stage.record

    def run(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Run all trainings and hand out their results; raise `Interrupted` when `stop()` turns true."""
        for stage in self.stages:
            self.stage = stage
            self.publisher.start_stage()
            log_event(
                "coordinator ready",
                stage=stage.stage.name,
                training=stage.coordinator.training,
                parties=stage.coordinator.names,
                config=stage.stage.config.digest(),
            )
            if self.stages[0].record.ended is not None and not stage.coordinator.began:
                stage.end(self.stages[0].record.ended)
            self._run_stage(stage, stop)
        self.publisher.update(self.status, now=True)
        self._add_lists()
        self.transcript.finish()
        names = self.coordinator.names
        without = [name for name in names if any(name in stage.without_result for stage in self.stages)]
        if without:
            raise Interrupted(
                f"training has finished, but {', '.join(without)} did not receive the result",
                "start the coordinator again when they are back",
            )

    def _run_stage(self, stage: CoordinatorStage, stop: Callable[[], bool]) -> None:
        """Handle events until a training is over."""
        while stage.step():
            pass
        while not stage.over:
            if stop():
                raise Interrupted("stopped")
            event = self.transport.next(_TICK)
            if event is not None:
                self._handle(event)
            self._obey_operator(stage)
            while stage.step():
                pass
            self._announce_waiting()
            self._send_sign_of_life()
            self.publisher.update(self.status)

    def _obey_operator(self, stage: CoordinatorStage) -> None:
        """Look a few times a second for what an operator has written: a request to finish, and revoked certificates."""
        now = time.monotonic()
        if now - self._looked >= _TICK:
            self._looked = now
            self._take_request(stage)
            self._lock_out_revoked()

    def _take_request(self, stage: CoordinatorStage) -> None:
        """End the training if an operator asked for it with `verfedgnn federation finish`."""
        if has_request(self.folder):
            if not stage.finishing and stage.record.ended is None:
                stage.end("the coordinator's operator asked to finish")
            remove_request(self.folder)

    def _lock_out_revoked(self) -> None:
        """Go on without parties whose certificates an operator has revoked."""
        for name in self._revocations.find():
            if name not in self.revoked:
                self.revoked.add(name)
                log_warning("certificate revoked, going on without the party", party=name)
                self.send(name, Refused(reason=f"the certificate of {name} was revoked"))
                self._lose(name)
                for stage in self.stages:
                    stage.revoked.add(name)

    def _add_lists(self) -> None:
        """Report the training of lists in the figures of the run."""
        first, *rest = self.stages
        for stage in rest:
            first.store.add_lists(stage.store)

    # -- events ------------------------------------------------------------------------------------------

    def _handle(self, event: TransportEvent) -> None:
        name = event.peer
        if event.kind != "left":
            self._heard[name] = time.time()
        if event.kind == "joined":
            log_event("party connected", party=name)
        elif event.kind == "left":
            log_event(
                "party disconnected", party=name, stage=self.stage.stage.name, round=self.coordinator.round
            )
            self._lose(name)
        elif event.kind == "second":
            self._report_second(name)
        elif event.kind != "part" and self.offences[name] < MOST_OFFENCES and name not in self.revoked:
            try:
                if event.kind == "broken":
                    raise ProtocolError(f"{name}: {event.reason}")
                self._receive(name, event.data)
            except ProtocolError as error:
                self._refuse(name, str(error))

    def _report_second(self, name: str) -> None:
        """Tell a party, at most once a minute, that a second process wanted to join under its name."""
        now = time.monotonic()
        if now - self._reported_second.get(name, -math.inf) > 60:
            self._reported_second[name] = now
            log_warning("a second process of a party was refused", party=name)
            self.send(name, Waiting(missing=[], second=True))

    def _receive(self, name: str, data: Buffer) -> None:
        kind = kind_of(data)
        stage = self.stages[0] if kind in _ALIGNMENT else self._stage_of(name)
        if kind in _OF_TRIPS and name not in stage.greeted:
            return  # it answers a round from before the connection was lost
        if kind is not None:
            COORDINATOR_STATES.after(stage.coordinator.state, kind, name)
        # Outside of rounds, arrays are packed with at least one bit per value, which bounds their size.
        most = min(64 * len(data), self.transport.largest)
        message = decode(data, stage.coordinator.largest_array if kind is RoundReply else most)
        if isinstance(message, Hello):
            stage = self._stage_with(message.config)
        stage.record.ledger.record(type(message).__name__, "up", name, len(data))
        self.transcript.record("in", name, message, mark_message((data,)), _stage_name(message, stage))
        self._dispatch(name, message, stage)

    def _stage_of(self, name: str) -> CoordinatorStage:
        """Return the training that a party takes part in."""
        return self._joined.get(name, self.stage)

    def _stage_with(self, config: str) -> CoordinatorStage:
        """Return the training with that configuration, or the first one, which refuses a configuration that nobody agreed on."""
        for stage in self.stages:
            if stage.stage.config.digest() == config:
                return stage
        return self.stages[0]

    def _dispatch(self, name: str, message: Message, stage: CoordinatorStage) -> None:
        if isinstance(message, _OF_TRIPS):
            if isinstance(message, ListSignature):
                self._check_list_signature(name, message, stage.coordinator)
            stage.coordinator.take(name, message)
        elif isinstance(message, Hello):
            self._take_hello(name, message, stage)
        elif isinstance(message, AlignHello | Sealed | Pseudonyms | Aligned):
            self._take_alignment(name, message)
        elif isinstance(message, Finished):
            stage.take_finished(name, message)
        elif isinstance(message, Refused):
            log_warning("party refused to continue", party=name, reason=message.reason)
            self._lose(name)

    def _lose(self, name: str) -> None:
        """Go on without a party until it joins again."""
        for stage in self.stages:
            stage.lose(name)
        if self.host is not None:
            self.host.left(name)

    def _refuse(self, name: str, reason: str) -> None:
        """Count a bad message and tell its sender, and nobody else, what is wrong with it."""
        self.offences[name] += 1
        count = self.offences[name]
        log_warning(
            "message refused", party=name, reason=reason, refused=count, barred=count == MOST_OFFENCES or None
        )
        self.send(name, Refused(reason=reason[:500]))
        self._lose(name)

    def exclude(self, name: str) -> None:
        """Count an offence of a party and go on without it until it joins again."""
        self.offences[name] += 1
        self._lose(name)

    # -- joining -----------------------------------------------------------------------------------------

    def _take_hello(self, name: str, message: Hello, stage: CoordinatorStage) -> None:
        self._check_hello(name, message, stage)
        fresh = message.training is None and stage.stage.first and not stage.coordinator.began
        if self.host is not None and fresh and self.host.must_align(name):
            self.send(name, Waiting(missing=self.host.missing, align=True))
            return
        self._joined[name] = stage
        stage.take_hello(name, message)
        place = self.stages.index(stage)
        for earlier in self.stages[:place]:
            earlier.pass_on(name)
        for later in self.stages[place + 1 :]:
            later.lose(name)
        self._limit_messages()

    def _limit_messages(self) -> None:
        """Let the transport accept messages as large as the agreement and the number of users require."""
        sizes = [largest_alignment(self.agreement.max_users if self.host is not None else 0)]
        sizes += [stage.coordinator.largest_message for stage in self.stages if stage.coordinator.began]
        self.transport.largest = max(sizes)

    def _check_hello(self, name: str, message: Hello, stage: CoordinatorStage) -> None:
        if message.party != name:
            raise ProtocolError(f"{name}: the name in its Hello differs from the name in its certificate")
        now = time.monotonic()
        recent = [*(at for at in self._hello_times.get(name, []) if at > now - 60), now]
        self._hello_times[name] = recent
        if len(recent) > MOST_HELLOS:
            raise ProtocolError(f"{name}: it joined {len(recent)} times within a minute")
        if message.mask_key is not None:
            hellos = stage.coordinator.members.hellos
            others = {hello.mask_key for other, hello in hellos.items() if other != name}
            purpose = name_mask_purpose(message.alignment)
            self._check_key(name, purpose, message.mask_key, message.mask_signature or "", others)

    def _take_alignment(self, name: str, message: Message) -> None:
        if self.host is None:
            raise ProtocolError(
                f"{name}: unexpected {type(message).__name__}, this federation aligns no users"
            )
        if isinstance(message, AlignHello):
            self._start_alignment(name, message)
        try:
            answers = self.host.handle(name, message)
        except DataError as error:
            self._end_all(error)
        for to, answer in answers:
            self.send(to, answer)
        if isinstance(message, Aligned) and len(self.host.users) == len(self.agreement.parties):
            log_event("users aligned", method=self.host.method, users=next(iter(self.host.users.values())))

    def _start_alignment(self, name: str, message: AlignHello) -> None:
        assert self.host is not None
        self.host.check_hello(name, message)
        others = {hello.seal_key for other, hello in self.host.hellos.items() if other != name}
        self._check_key(name, "seal", message.seal_key, message.seal_signature, others)
        log_event("party is ready to align", party=name)
        # Parties that aligned before, without this one, have to align again.
        hellos = self.stages[0].coordinator.members.hellos
        for other in sorted(hellos):
            self.send(other, Waiting(missing=[name], align=True))
        hellos.clear()

    def _check_key(self, name: str, purpose: str, key: str, signature: str, others: Set[str | None]) -> None:
        """Refuse a key here that the other parties would refuse, since here its sender is known."""
        try:
            check_key(self.agreement, purpose, self.coordinator.names.index(name), key, signature)
            check_public_key(key)
        except ProtocolError:
            raise ProtocolError(
                f"{name}: its {purpose.split()[0]} key is not usable, or not signed by it"
            ) from None
        if key in others:
            raise ProtocolError(f"{name}: its {purpose.split()[0]} key is another party's")

    def _check_list_signature(self, name: str, message: ListSignature, coordinator: Coordinator) -> None:
        """Refuse a signature here that the other parties would not count."""
        masks = coordinator.masks
        if masks is None or masks.place != (message.round, message.trip, message.attempt):
            return  # late
        statement = list_statement(coordinator.training, masks.place, masks.active, masks.survivors)
        try:
            check_key(
                self.agreement, "survivors", coordinator.names.index(name), statement, message.signature
            )
        except ProtocolError:
            raise ProtocolError(f"{name}: its signature of the survivor list is not valid") from None

    # -- sending -----------------------------------------------------------------------------------------

    def send(self, name: str, message: Message) -> None:
        """Send a message to a party."""
        self.send_all([(name, message)])

    def send_all(self, messages: Sequence[tuple[str, Message]]) -> None:
        """Send messages to parties. Those to one party travel together, and one to many parties is encoded once."""
        distinct = {id(message): message for _, message in messages}
        encoded = {key: encode_parts(message) for key, message in distinct.items()}
        marks = {key: mark_message(data) for key, data in encoded.items()}
        queued: dict[str, list[EncodedMessage]] = {}
        with self.transcript.together():
            for name, message in messages:
                stage = self._stage_of(name)
                mark = marks[id(message)]
                stage.record.ledger.record(type(message).__name__, "down", name, mark.size)
                self.transcript.record("out", name, message, mark, _stage_name(message, stage))
                queued.setdefault(name, []).append(encoded[id(message)])
        for name, parts in queued.items():  # once all of them are written down
            self.transport.send(name, *parts)

    def _end_all(self, error: VerFedGNNError) -> NoReturn:
        """Tell every party why the federation cannot train, and raise the error here."""
        for name in self.coordinator.names:
            self.send(name, Refused(reason=str(error)[:500]))
        raise error

    def _announce_waiting(self) -> None:
        """Tell the parties that take part for whom the training waits, whenever that changes."""
        waits = self.stage.waits if self.coordinator.began else None
        missing = [] if waits is None else waits[0]
        if missing != self._announced:
            self._announced = missing
            for name in sorted(self.stage.greeted - set(missing)):
                self.send(name, Waiting(missing=missing))

    def _send_sign_of_life(self) -> None:
        """Send a message to all waiting parties before they take the silence for a lost coordinator."""
        now = time.monotonic()
        if now - self._last_sign_of_life > self.agreement.timeouts.idle / 3:
            self._last_sign_of_life = now
            aligning = set(self.host.hellos) if self.host is not None else set()
            waiting = aligning.union(*(stage.greeted for stage in self.stages))
            for name in sorted(waiting):
                self.send(name, Waiting(missing=self._announced if name in self.stage.greeted else []))

    # -- status ------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Return the present status."""
        sizes = {way: sum(stage.record.ledger.total(way) for stage in self.stages) for way in ("up", "down")}
        return {
            "role": "coordinator",
            "federation": self.agreement.name,
            "state": self._state(),
            **self.stage.status(),
            **self._waiting_status(),
            "bytes": sizes,
            "parties": {name: self._party_status(name) for name in self.coordinator.names},
        }

    def _state(self) -> str:
        stage = self.stage
        if stage.over:
            return "finished"
        if stage.finishing:
            return "finishing"
        if stage.waiting_for is not None:
            return "waiting"
        if stage.coordinator.began:
            return "stalled" if stage.stalled else "training"
        host = self.host
        if host is not None and host.session is not None and len(host.users) < len(stage.coordinator.names):
            return "aligning" if stage.stage.first else "joining"
        return "joining"

    def _waiting_status(self) -> dict[str, Any]:
        waits = self.stage.waits
        if waits is None:
            return {"waits_for": None, "waits_since": None}
        names, since = waits
        return {"waits_for": names, "waits_since": time.time() - (time.monotonic() - since)}

    def _party_status(self, name: str) -> dict[str, Any]:
        members = self.coordinator.members
        greeted = any(name in stage.greeted for stage in self.stages)
        ledgers = [stage.record.ledger for stage in self.stages]
        stalled = name in self.stage.stalled
        return {
            "here": name in members.present and not stalled,
            "stalled": stalled,
            "heard": self._heard.get(name),
            "joined": greeted or (self.host is not None and name in self.host.hellos),
            "slow": name in members.slow,
            "refused": self.offences[name],
            "up": sum(ledger.total("up", party=name) for ledger in ledgers),
            "down": sum(ledger.total("down", party=name) for ledger in ledgers),
        }


def _stage_name(message: Message, stage: CoordinatorStage) -> str:
    return ALIGNMENT if isinstance(message, _ALIGNMENT) else stage.stage.name

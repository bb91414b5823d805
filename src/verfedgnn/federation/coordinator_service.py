"""The coordinator as a service: network events in, rounds out.

    event -> _handle (a party joined, left or sent a message) -> step of the present training

The protocol itself is in `protocol.coordinator`, and each training in `coordinator_stage`. This module connects them to the
network, aligns users before the first training, and sends every message to the training that its sender takes part in.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from verfedgnn.core.errors import DataError, Interrupted, ProtocolError
from verfedgnn.core.files import writing
from verfedgnn.core.installed import installed_version
from verfedgnn.federation import coordinator_stage
from verfedgnn.federation.agreement import list_stages
from verfedgnn.federation.certificates import COORDINATOR
from verfedgnn.federation.coordinator_stage import CoordinatorStage, Situation
from verfedgnn.federation.event_log import RepeatedWarning, log_event, log_warning
from verfedgnn.federation.roster import AgreementWatch, MemberIdentity
from verfedgnn.federation.status import StatusPublisher
from verfedgnn.federation.transcript import ALIGNMENT, Transcript, mark_message
from verfedgnn.federation.transport import Transport, TransportEvent
from verfedgnn.privacy.masking import check_public_key
from verfedgnn.protocol import messages as msg
from verfedgnn.protocol.coordinator import Coordinator
from verfedgnn.protocol.masks import list_statement
from verfedgnn.protocol.party_state import name_mask_purpose
from verfedgnn.protocol.replica import largest_alignment
from verfedgnn.protocol.states import COORDINATOR_STATES, OF_ROUNDS
from verfedgnn.protocol.user_alignment import CoordinatorAlignment
from verfedgnn.runs.nights import read_nights
from verfedgnn.runs.run import write_json

MOST_OFFENCES = 20
"""Number of refused messages after which a party is ignored until the coordinator restarts."""
MOST_A_MINUTE = 30
"""Number of messages of one kind within a minute, of those that a party sends once a connection; each is logged."""
SHOWN_NIGHTS = 30
"""Number of the last nights that all members see."""
SIGN_SECONDS = 4.0
"""Number of seconds after which a waiting party gets a sign of life."""
_TICK = 0.25
_ALIGNMENT = (msg.AlignHello, msg.Sealed, msg.Pseudonyms, msg.Aligned)


@dataclass
class _Peer:
    """A party on the network, whatever it trains. Times are of the monotonic clock."""

    changed: float = field(default_factory=time.monotonic)
    """When it connected or left; at first, when the coordinator started."""
    connected: bool = False
    heard: float | None = None
    """When it gave its last sign."""
    sent: float = 0.0
    """When the last message was sent to it."""
    page: msg.MembersPage | None = None
    """What it was told of all members."""
    stage: CoordinatorStage | None = None
    """The training to which it said hello last."""


class CoordinatorService:
    """All trainings of a federation, one after the other; it resumes from the checkpoints in the publisher's folder."""

    def __init__(
        self,
        identity: MemberIdentity,
        transport: Transport,
        publisher: StatusPublisher,
        *,
        device: str = "cpu",
    ) -> None:
        self.identity = identity
        self.agreement = agreement = identity.agreement
        self.transcript = Transcript(publisher.folder, identity)
        self.transport = transport
        self.publisher = publisher
        self.names = [party.name for party in agreement.parties]
        self.peers = {name: _Peer() for name in self.names}
        self.alignment: CoordinatorAlignment | None = None
        """The alignment of users; None if the parties' lists are equal."""
        if agreement.alignment != "none":
            self.alignment = CoordinatorAlignment(self.names, agreement.alignment_rules)
        self.offences: Counter[str] = Counter()
        """Number of refused messages of each party."""
        self.revoked: set[str] = set()
        """Parties whose certificates were revoked since the coordinator was started; nothing of them is heard."""
        self._file = AgreementWatch(identity)
        self._times: dict[tuple[str, type[msg.Message]], list[float]] = {}
        """When each party sent the messages of each kind whose number is limited, within the last minute."""
        self._announced: list[str] = []
        """The parties for which the training waits, as it was last told to operators and the other parties."""
        self._about = {COORDINATOR: msg.About(version=installed_version())}
        """What each member said of itself."""
        nights = read_nights(publisher.folder.parent)[-SHOWN_NIGHTS:]
        self._nights: list[tuple[str, str]] = [(night.night, night.result) for night in nights]
        self._warn_of_second = RepeatedWarning("a second process of a party was refused")
        self.stages = [
            CoordinatorStage(stage, self, publisher.folder, device=device) for stage in list_stages(agreement)
        ]
        self.stage = self.stages[0]
        """The present training: the first one whose result some party lacks."""
        self._limit_messages()
        publisher.update(self.status, now=True)

    @property
    def coordinator(self) -> Coordinator:
        """The protocol's coordinator of the present training."""
        return self.stage.coordinator

    def run(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Run all trainings and hand out their results; raise `Interrupted` when `stop()` turns true."""
        ended: str | None = None
        looked = 0.0  # for revoked certificates and missing parties
        for stage in self.stages:
            self.stage = stage
            self.publisher.start_stage()
            about = {"stage": stage.name, "training": stage.coordinator.training}
            log_event(
                "coordinator ready", **about, parties=self.names, config=stage.coordinator.config.digest()
            )
            if ended is not None and not stage.coordinator.began:
                stage.end(ended)
            while stage.step():
                pass
            while not stage.over:
                if stop():
                    raise Interrupted("stopped")
                event = self.transport.next(_TICK)
                if event is not None:
                    self._handle(event)
                if time.monotonic() - looked >= _TICK:
                    looked = time.monotonic()
                    self._exclude_revoked()
                    self._announce_waiting()
                while stage.step():
                    pass
                self.publisher.update(self.status)
            ended = ended or stage.record.ended
        self.publisher.update(self.status, now=True)
        self._join_figures()
        self.transcript.finish()
        without = [name for name in self.names if any(name in stage.without_result for stage in self.stages)]
        if without:
            problem = f"training has finished, but {', '.join(without)} did not receive the result"
            raise Interrupted(problem, "start the coordinator again when they are back")

    def _join_figures(self) -> None:
        """Report the figures of every training in those of the one whose folder holds its folder."""
        for stage in reversed(self.stages[1:]):
            file = stage.record.metrics
            outer = file.parent.parent / file.name
            into, figures = (json.loads(one.read_text("utf-8")) for one in (outer, file))
            with writing(outer):
                write_json(outer, into | {file.parent.name: figures})

    def _exclude_revoked(self) -> None:
        """Go on without parties whose certificates are revoked."""
        for name in set(self._file.find_revoked()) - self.revoked:
            self.revoked.add(name)
            log_warning("certificate revoked, going on without the party", party=name)
            self.send(name, msg.Refused(reason=f"the certificate of {name} was revoked"))
            self._lose(name)

    # -- events ------------------------------------------------------------------------------------------

    def _handle(self, event: TransportEvent) -> None:
        name, now = event.peer, time.monotonic()
        peer, connected = self.peers[name], event.kind != "left"
        if connected != peer.connected:
            peer.changed, peer.connected = now, connected
        if connected:
            peer.heard = now
        if event.kind == "joined":
            log_event("party connected", party=name)
        elif event.kind == "left":
            where = {"stage": self.stage.name, "round": self.coordinator.round}
            log_event("party disconnected", party=name, **where)
            peer.page = None
            self._lose(name)
        elif event.kind == "second":
            if self._warn_of_second(name):
                self.send(name, msg.Waiting(missing=[], second=True))
        elif event.kind != "part" and self.offences[name] < MOST_OFFENCES and name not in self.revoked:
            try:
                if event.kind == "broken":
                    raise ProtocolError(f"{name}: {event.reason}")
                self._receive(name, event.data)
            except ProtocolError as error:
                self._refuse(name, str(error))

    def _receive(self, name: str, data: msg.Buffer) -> None:
        kind = msg.kind_of(data)
        stage = self.stages[0] if kind in _ALIGNMENT else self._stage_of(name)
        if kind in OF_ROUNDS and (name not in stage.greeted or stage.record.ended is not None):
            return  # it answers a round from before the connection was lost, or before the training ended early
        if kind is not None:
            COORDINATOR_STATES.after(stage.coordinator.state, kind, name)
        # Outside of rounds, arrays are packed with at least one bit per value, which bounds their size.
        most = min(64 * len(data), self.transport.largest)
        message = msg.decode(data, stage.coordinator.largest_array if kind is msg.RoundReply else most)
        if isinstance(message, msg.Hello | msg.About | msg.Refused | msg.Finished):
            self._check_pace(name, type(message))
        if isinstance(message, msg.Hello):
            agreed = (one for one in self.stages if one.coordinator.config.digest() == message.config)
            stage = next(agreed, self.stages[0])  # which refuses another configuration
        self.transcript.record("in", name, message, mark_message((data,)), _place(message, stage))
        if isinstance(message, OF_ROUNDS):
            if isinstance(message, msg.ListSignature):
                self._check_list_signature(name, message, stage.coordinator)
            stage.coordinator.take(name, message)
        elif isinstance(message, msg.Hello):
            self._take_hello(name, message, stage)
        elif isinstance(message, _ALIGNMENT):
            self._take_alignment(name, message)
        elif isinstance(message, msg.Finished):
            stage.take_finished(name, message)
        elif isinstance(message, msg.About):
            self._take_about(name, message)
        elif isinstance(message, msg.Refused):
            log_warning("party refused to continue", party=name, reason=message.reason)
            self._lose(name)

    def _lose(self, name: str) -> None:
        """Go on without a party until it joins again."""
        for stage in self.stages:
            stage.lose(name)
        if self.alignment is not None:
            self.alignment.left(name)

    def _refuse(self, name: str, reason: str) -> None:
        """Count a bad message and tell its sender, and nobody else, what is wrong with it."""
        self.offences[name] += 1
        self._lose(name)
        count = self.offences[name]
        barred = count == MOST_OFFENCES or None
        log_warning("message refused", party=name, reason=reason, refused=count, barred=barred)
        self.send(name, msg.Refused(reason=reason[:500]))

    def _check_pace(self, name: str, kind: type[msg.Message]) -> None:
        now = time.monotonic()
        recent = [*(at for at in self._times.get((name, kind), []) if at > now - 60), now]
        self._times[name, kind] = recent
        if len(recent) > MOST_A_MINUTE:
            raise ProtocolError(f"{name}: it sent {len(recent)} messages {kind.__name__} within a minute")

    def _check_key(self, name: str, purpose: str, key: str, signature: str, others: Set[str | None]) -> None:
        """Refuse a key here that the other parties would refuse, since here its sender is known."""
        what = f"{name}: its {purpose.split()[0]} key is"
        try:
            self.identity.check(purpose, self.names.index(name), key, signature)
            check_public_key(key)
        except ProtocolError:
            raise ProtocolError(f"{what} not usable, or not signed by it") from None
        if key in others:
            raise ProtocolError(f"{what} another party's")

    def _check_list_signature(self, name: str, message: msg.ListSignature, coordinator: Coordinator) -> None:
        """Refuse a signature here that the other parties would not count."""
        masks = coordinator.masks
        if masks is None or masks.place != message.place:
            return  # late
        statement = list_statement(coordinator.training, masks.place, masks.active, masks.survivors)
        try:
            self.identity.check("survivors", self.names.index(name), statement, message.signature)
        except ProtocolError:
            raise ProtocolError(f"{name}: its signature of the survivor list is not valid") from None

    # -- joining -----------------------------------------------------------------------------------------

    def _take_hello(self, name: str, message: msg.Hello, stage: CoordinatorStage) -> None:
        if message.party != name:
            raise ProtocolError(f"{name}: the name in its Hello differs from the name in its certificate")
        if message.mask_key is not None:
            hellos = stage.coordinator.members.hellos
            others = {hello.mask_key for other, hello in hellos.items() if other != name}
            purpose = name_mask_purpose(message.alignment)
            self._check_key(name, purpose, message.mask_key, message.mask_signature or "", others)
        fresh = message.training is None and stage is self.stages[0] and not stage.coordinator.began
        if self.alignment is not None and fresh and self.alignment.must_align(name):
            self.send(name, msg.Waiting(missing=self.alignment.missing, align=True))
            return
        self.peers[name].stage = stage
        stage.take_hello(name, message)
        place = self.stages.index(stage)
        for earlier in self.stages[:place]:
            earlier.pass_on(name)
        for later in self.stages[place + 1 :]:
            later.lose(name)
        self._limit_messages()

    def _stage_of(self, name: str) -> CoordinatorStage:
        """Return the training that a party takes part in."""
        return self.peers[name].stage or self.stage

    def _limit_messages(self) -> None:
        """Let the transport accept messages as large as the agreement and the number of users require."""
        sizes = [largest_alignment(self.agreement.max_users if self.alignment is not None else 0)]
        sizes += [stage.coordinator.largest_message for stage in self.stages if stage.coordinator.began]
        self.transport.largest = max(sizes)

    def _take_about(self, name: str, message: msg.About) -> None:
        if message.word and self.agreement.config.gradients.protects_ratings:
            raise ProtocolError(f"{name}: it shares a verdict, which nothing protects; omit --share-verdict")
        self._about[name] = message
        log_event(
            "party introduced itself", party=name, version=message.version, verdict=message.word or None
        )

    def _members_page(self) -> msg.MembersPage:
        """Return what all members may see besides the rounds."""
        return msg.MembersPage(members=self._about, nights=self._nights, offer=self._file.offered)

    def _take_alignment(self, name: str, message: msg.Message) -> None:
        host = self.alignment
        if host is None:
            kind = type(message).__name__
            raise ProtocolError(f"{name}: unexpected {kind}, this federation aligns no users")
        if isinstance(message, msg.AlignHello):
            host.check_hello(name, message)
            others = {hello.seal_key for other, hello in host.hellos.items() if other != name}
            self._check_key(name, "seal", message.seal_key, message.seal_signature, others)
            log_event("party is ready to align", party=name)
            # Parties that aligned before, without this one, have to align again.
            hellos = self.stages[0].coordinator.members.hellos
            self.send_all([(other, msg.Waiting(missing=[name], align=True)) for other in sorted(hellos)])
            hellos.clear()
        try:
            self.send_all(host.handle(name, message))
        except DataError as error:
            self.send_all([(other, msg.Refused(reason=str(error)[:500])) for other in self.names])
            raise
        if isinstance(message, msg.Aligned) and len(host.users) == len(self.names):
            log_event("users aligned", method=self.agreement.alignment, users=next(iter(host.users.values())))

    # -- sending -----------------------------------------------------------------------------------------

    def send(self, name: str, message: msg.Message) -> None:
        """Send a message to a party."""
        self.send_all([(name, message)])

    def send_all(self, messages: Sequence[tuple[str, msg.Message]]) -> None:
        """Send messages to parties; one to many parties is encoded once."""
        distinct = {id(message): message for _, message in messages}
        encoded = {key: msg.encode_parts(message) for key, message in distinct.items()}
        marks = {key: mark_message(data) for key, data in encoded.items()}
        queued: dict[str, list[msg.EncodedMessage]] = {}
        for name, message in messages:
            place = _place(message, self._stage_of(name))
            self.transcript.record("out", name, message, marks[id(message)], place)
            queued.setdefault(name, []).append(encoded[id(message)])
        for name, parts in queued.items():  # once all of them are written down
            self.peers[name].sent = time.monotonic()
            self.transport.send(name, *parts)

    def _announce_waiting(self) -> None:
        """Tell operators and waiting parties for whom the training waits, when that changes, and that this side is alive."""
        _, names, since, then = self._situation()
        changed, now = names != self._announced, time.monotonic()
        if changed and names:
            answers = all(self.peers[name].connected for name in names)
            event = "no answer from parties" if answers else "waiting for parties"
            start = time.strftime("%H:%M:%S", time.localtime(_wall_clock(since)))
            log_warning(event, stage=self.stage.name, missing=names, since=start, next=then)
        elif changed:
            log_event("nobody is missing", stage=self.stage.name, round=self.coordinator.round)
        self._announced = names
        quiet = min(SIGN_SECONDS, self.agreement.timeouts.idle / 3)
        page = self._members_page()
        for name in sorted(self._greeted):
            peer = self.peers[name]
            if peer.page != page:
                peer.page = page.model_copy(update={"members": dict(page.members)})
                self.send(name, peer.page)
            elif name not in names and (changed or now - peer.sent > quiet):
                self.send(name, msg.Waiting(missing=names))

    # -- status ------------------------------------------------------------------------------------------

    @property
    def _greeted(self) -> set[str]:
        """Parties that said hello on their present connection, to align users or to a training."""
        aligning = set() if self.alignment is None else set(self.alignment.hellos)
        return aligning.union(*(stage.greeted for stage in self.stages))

    def _situation(self) -> Situation:
        """Return what the coordinator does, for whom it waits, since which time, and what happens next."""
        stage, host, peers = self.stage, self.alignment, self.peers
        if stage.coordinator.began and not stage.finishing:
            return stage.situation()
        state, awaited, due = "joining", self.names, stage.missing
        then = "the training starts when all parties are here"
        if stage.finishing:
            state = "finished" if stage.over else "finishing"
            awaited = due = stage.without_result
            then = "the next training starts when they have the result of this one"
            if stage is self.stages[-1]:
                seconds = f"{self.agreement.timeouts.finish:g} s"
                then = f"the coordinator waits {seconds} for them to fetch the result"
        elif host is not None and host.hellos:
            state = "aligning"
            due = host.missing or [name for name in due if name not in {*host.sets, *host.users}]
        if missing := [name for name in awaited if not peers[name].connected]:
            since = min(peers[name].changed for name in missing)
            return Situation(state if stage.finishing else "gathering", missing, since, then)
        if not stage.finishing:
            then = "the training starts when they have answered"
        since = min((peers[name].heard or peers[name].changed for name in due), default=math.inf)
        silent = time.monotonic() >= since + coordinator_stage.STALL_SECONDS
        return Situation(state, due, since, then) if silent else Situation(state, [])

    def status(self) -> dict[str, Any]:
        """Return the present status."""
        state, names, since, then = self._situation()
        parties = {name: self._party_status(name, peer) for name, peer in self.peers.items()}
        holds, offered = self.transport.holds, self._file.offered
        same = offered == self.agreement.digest()
        return {
            "ready": True,
            "state": state,
            **self.stage.status(),
            "waits_for": names,
            "waits_since": _wall_clock(since) if names else None,
            "next": then or None,
            "members": self._members_page().model_dump(),
            "accepted": [n for n in self.names if holds.get(n) == offered or (same and parties[n]["joined"])],
            "parties": parties,
        }

    def _party_status(self, name: str, peer: _Peer) -> dict[str, Any]:
        members, stalled = self.coordinator.members, name in self.stage.stalled
        return {
            "here": name in members.present and not stalled,
            "stalled": stalled,
            "heard": None if peer.heard is None else _wall_clock(peer.heard),
            "joined": name in self._greeted,
            "connected": peer.connected,
            "missing_since": None if peer.connected else _wall_clock(peer.changed),
            "slow": name in members.slow,
            "refused": self.offences[name],
            "up": self.transcript.total("up", name),
            "down": self.transcript.total("down", name),
        }


def _wall_clock(moment: float) -> float:
    """Return a time of the monotonic clock as Unix time."""
    return time.time() - time.monotonic() + moment


def _place(message: msg.Message, stage: CoordinatorStage) -> str:
    """Return under which training a transcript has a message."""
    return ALIGNMENT if isinstance(message, _ALIGNMENT) else stage.name

"""A party as a service in one training: it joins, answers rounds, writes checkpoints, and stores its result.

The protocol itself is in `protocol.party`. This module connects it to the link, the disk and the status page.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from verfedgnn.core.errors import ProtocolError
from verfedgnn.core.files import writing
from verfedgnn.core.worker_group import WorkerGroup
from verfedgnn.federation.certificates import COORDINATOR
from verfedgnn.federation.coordinator_link import CoordinatorLink
from verfedgnn.federation.cost_outlook import CostOutlook
from verfedgnn.federation.event_log import log_event
from verfedgnn.federation.party_checkpoints import PartyCheckpoints
from verfedgnn.federation.party_policy import make_policy
from verfedgnn.federation.party_store import FIRST_ROUNDS, PartyStore, StageResult
from verfedgnn.federation.release_file import open_ledger
from verfedgnn.federation.stages import Stage
from verfedgnn.federation.status_server import StatusPublisher
from verfedgnn.federation.survivor_log import SurvivorLog
from verfedgnn.federation.transcript import SPENT
from verfedgnn.privacy.accounting import SECRET, SIMULATED, privacy_report
from verfedgnn.protocol.coordinator.best_validation import mean_error
from verfedgnn.protocol.coordinator.coordinator import ClosedRound
from verfedgnn.protocol.party.candidate import Candidate
from verfedgnn.protocol.party.party import FinishedTraining, Party
from verfedgnn.protocol.party.party_states import PARTY_STATES, PartyEvent, PartyState
from verfedgnn.protocol.party.release_ledger import GRADIENT, NEIGHBOURHOODS, VALIDATION
from verfedgnn.protocol.round.user_blocks import UserBlocks
from verfedgnn.protocol.round.worker_orders import Order, tell_all
from verfedgnn.protocol.state_table import Event
from verfedgnn.protocol.wire.alignment_messages import AlignStart
from verfedgnn.protocol.wire.integer_packing import use_packing_threads
from verfedgnn.protocol.wire.messages import (
    Finish,
    Finished,
    Message,
    RoundReply,
    RoundStart,
    ShareRequest,
    Survivors,
    TripShares,
    Waiting,
    Welcome,
)
from verfedgnn.runs.ledger import Ledger
from verfedgnn.runs.metrics_file import history_entry, round_seconds
from verfedgnn.runs.run import read_history, write_history
from verfedgnn.runs.start_from import (
    count_spent,
    read_party_start,
    record_forgotten,
    recorded_ancestor,
    write_public_state,
)
from verfedgnn.training.simple_models import liked


class Realign(Exception):
    """The coordinator asks all parties to align again, because another party has no aligned users."""


class PartyService:
    """One training of a party, from Hello to its stored result.

    `start_from` is the folder of an earlier run of the party to continue from. With `workers`, this process is the first of several
    that share the party's users.
    """

    def __init__(
        self,
        store: PartyStore,
        stage: Stage,
        link: CoordinatorLink,
        publisher: StatusPublisher,
        *,
        checkpoint_every: int = 1,
        device: str = "cpu",
        start_from: Path | None = None,
        workers: WorkerGroup | None = None,
    ) -> None:
        self.store = store
        self.stage = stage
        self.link = link
        self.publisher = publisher
        self.checkpoint_every = checkpoint_every
        self.device = torch.device(device)
        self.identity = store.identity
        self.config = stage.config
        self.folder = store.begin_stage(stage)
        self.prepared, alignment = store.load(self.device)
        data = self.prepared.input
        self.takes_part = stage.first or bool(len(liked(data.train, data.scale)))
        """Whether the party has ratings to train on; lists need liked items."""
        config = self.config if self.takes_part else store.stages[0].config
        policy = make_policy(self.identity, self.config, alignment)
        self.workers = workers if self.takes_part else None
        self.ledger = open_ledger(self.folder, config)
        self.ledger.check_age(link.transcript.released[stage.name], str(link.transcript.file))
        self.ledger.before = count_spent(recorded_ancestor(store.folder))
        """What this party has released in this training."""
        start = (
            None
            if start_from is None
            else read_party_start(start_from, self.prepared.party, lists=not stage.first)
        )
        self.candidate = Candidate(
            data,
            config,
            store.read_secret(stage),
            self.device,
            policy,
            start=start if self.takes_part else None,
            ledger=self.ledger,
            commitments=SurvivorLog(self.folder / "survivors.jsonl"),
            workers=self.workers,
        )
        self.progress = self.candidate.progress
        self.party: Party | None = None
        """The party of the present stay; None until it has joined."""
        self.state = PartyState.GREETING
        link.expect(self.candidate.largest_message, self.candidate.largest_array)
        link.stage = stage.name
        link.blocks = UserBlocks(config, self.candidate.whole.model)
        if not stage.first:
            link.ledger = Ledger()
        self.earlier = [store.read_result(other) for other in store.stages if other is not stage]
        """Results of the trainings before this one."""
        self.history: list[dict[str, Any]] = []
        self.seconds = 0.0
        self.round = 0
        self.repeats = 0
        self.waits_for: list[str] = []
        """Parties for whom the training waits, according to the coordinator."""
        self._waits_since: float | None = None
        self._rounds: int | None = None
        self._outlook = CostOutlook(self.config, stage.name)
        count = 1 if self.workers is None else self.workers.size
        others = (open_ledger(store.worker_folder(stage, rank), config) for rank in range(1, count))
        self._lost = max((ledger.lost for ledger in others), default=0)
        """Round that another worker has released and cannot repeat; 0 if there is none."""
        self._checkpoints = PartyCheckpoints(self.folder / "checkpoint", self.progress, self.ledger, count)
        self._restore()
        if self.workers is not None:
            use_packing_threads(self.workers.size)
            begun = None if start_from is None else str(start_from)
            tell_all(self.workers, Order.STAGE, stage=stage.name, round=self.round, start_from=begun)

    def run(self) -> None:
        """Answer the coordinator until the training is over and its result is stored."""
        self.publisher.start_stage()
        log_event(
            "party ready",
            stage=self.stage.name,
            party=self.identity.name,
            round=self.round,
            users=self.prepared.input.users,
            items=self.prepared.input.items,
            epsilon_spent=self.ledger.epsilon,
        )
        self.link.greet()
        while self.state is not PartyState.FINISHED:
            message = self.link.receive(
                self._hello,
                lambda: self.state is PartyState.GREETING,
                lambda: self.publisher.update(self.status),
            )
            try:
                self._handle(message)
            except ProtocolError as error:
                self.link.refuse(error)
                raise
            self.publisher.update(self.status)

    # -- messages ----------------------------------------------------------------------------------------

    def _hello(self) -> Message:
        self.state = PARTY_STATES.after(self.state, PartyEvent.SAY_HELLO)
        hello = self.candidate.hello()
        if self.takes_part:
            return hello.model_copy(update={"lost": max(hello.lost, self._lost)})
        return hello.model_copy(update={"config": self.config.digest(), "ratings": 0})

    def _handle(self, message: Message) -> None:
        """Act on a message."""
        event: Event = type(message)
        if isinstance(message, Waiting) and message.align:
            event = AlignStart
        elif isinstance(message, Finish) and message.round == 0 and not self.stage.first:
            event = PartyEvent.SKIP
        if event is AlignStart and (self.progress.training is not None or not self.stage.first):
            raise ProtocolError(
                "the coordinator asked to align users again during a training; the training here is kept"
            )
        late = isinstance(message, Welcome) and message.stay != self.candidate.stay
        if late or PARTY_STATES.ignores(self.state, event):
            return
        self.state = PARTY_STATES.after(self.state, event)
        self._note_waiting(message)
        if self.state is PartyState.REALIGNING:
            raise Realign
        if isinstance(message, Welcome):
            self._join(message)
        elif isinstance(message, RoundStart):
            self._answer_round(message)
        elif isinstance(message, ShareRequest | TripShares | Survivors):
            self._answer_masks(message)
        elif isinstance(message, Finish):
            self._finish(message)

    def _note_waiting(self, message: Message) -> None:
        """Remember for whom the training waits, according to the coordinator; any other message ends the waiting."""
        missing = message.missing if isinstance(message, Waiting) else []
        if missing != self.waits_for:
            self.waits_for = missing
            self._waits_since = time.time() if missing else None

    def _join(self, message: Welcome) -> None:
        if not self.takes_part:
            return
        self.party = self.candidate.welcome(message)
        self._rounds = self.party.replica.rounds
        if message.forgotten:
            record_forgotten(self.store.folder, message.forgotten)
            log_event("rows of forgotten users reset", stage=self.stage.name, rows=len(message.forgotten))
        log_event("taking part", stage=self.stage.name, round=message.round, public=message.digest)

    def _answer_round(self, message: RoundStart) -> None:
        began = time.monotonic()
        if message.attempt:
            self.repeats += 1
            log_event(
                "round restarted", round=message.round, attempt=message.attempt, parties=len(message.active)
            )
        if self.party is None:
            raise ProtocolError("the coordinator started a round without parties that can take part")
        reply = self.party.handle(message)
        assert isinstance(reply, RoundReply)
        self.round = message.round
        spent = {} if self.ledger.epsilon is None else {"epsilon": self.ledger.epsilon}
        self.link.transcript.note(SPENT, self.stage.name, releases=len(self.ledger.entries), **spent)
        is_kept = message.round % self.checkpoint_every == 0
        if is_kept:
            self._write_checkpoint()  # before sending, so that this party remembers all it has sent
        self.ledger.flush()
        self.link.send(reply)
        if is_kept:
            self.link.transcript.sign()  # while the others compute, like the next line
        if self.party.masks is not None:
            self.party.masks.prepare_next()
        self.seconds += time.monotonic() - began
        if not message.trip:
            self._outlook.note_round(message.round, self.party.replica.rounds, self.link.ledger.total())
        error = self._record_validation(reply)
        self.publisher.close_round(ClosedRound(message.round, error), self.status)

    def _answer_masks(self, message: ShareRequest | TripShares | Survivors) -> None:
        """Answer a message about masks, and send the shares for the next trip ahead after an Unmask."""
        if self.party is None or self.party.masks is None:
            raise ProtocolError("the coordinator sent a message about masks, but this party draws none")
        if isinstance(message, Survivors) and message.signatures is None:
            self._log_survivors(message)
        answers = (self.party.handle(message), self.party.masks.shares_ahead())
        present = [answer for answer in answers if answer is not None]
        if present:
            self.link.send(*present)

    def _log_survivors(self, message: Survivors) -> None:
        lost = len(self.identity.agreement.parties) - len(message.survivors)
        if lost and self.config.training.participation == 1:
            log_event("sum without some parties", round=message.round, parties=len(message.survivors))

    def _record_validation(self, reply: RoundReply) -> float | None:
        """Add this party's validation error to its history and return it; None if the round had no validation."""
        if reply.error is None or not reply.count:
            return None
        error = mean_error(reply.error, reply.count, self.config.training)
        entry = history_entry(reply.round, error, self.config, self.link.ledger, self.seconds)
        self.history = [*(e for e in self.history if e["round"] < reply.round), entry]
        with writing(self.folder):
            write_history(self.folder, self.history)
        log_event(
            "validated",
            stage=self.stage.name,
            round=reply.round,
            own_valid_error=error,
            epsilon_spent=self.ledger.epsilon,
        )
        return error

    # -- the end -----------------------------------------------------------------------------------------

    def _finish(self, message: Finish) -> None:
        """Store the result and report it."""
        if not self.stage.first and message.round == 0:
            log_event(
                "no lists are trained: a party is missing or has no training rating that counts as a like"
            )
            self.store.write_result(self.stage, StageResult(0, {}, self.link.ledger, {}))
            self.link.send(Finished(digest=message.digest))
            return
        if self.party is None:
            raise ProtocolError("the coordinator finished a training in which this party did not take part")
        finished = self.party.finish(message)
        write_public_state(self.folder, message.round, finished.public, finished.accumulator.cpu().numpy())
        self.store.write_result(self.stage, self._make_result(message, self.party, finished))
        self.link.send(finished.reply)
        log_event(
            "training finished",
            stage=self.stage.name,
            rounds=message.round,
            best_round=message.best_round,
            public=finished.reply.digest,
        )

    def _make_result(self, message: Finish, party: Party, finished: FinishedTraining) -> StageResult:
        arrays = finished.model | {"public": finished.public}
        if finished.others_means is not None:
            arrays["others_means"] = finished.others_means
        if finished.first_rounds is not None:
            arrays |= {f"{FIRST_ROUNDS}.{key}": value for key, value in finished.first_rounds.items()}
        figures = {
            "best_round": message.best_round,
            "seconds": self.seconds,
            "privacy": self._report_privacy(),
            "digest": finished.reply.digest,
            "ratings": party.replica.ratings,
        }
        return StageResult(message.round, arrays, self.link.ledger, figures)

    def _report_privacy(self) -> dict[str, Any]:
        projection = self.candidate.projection
        report = privacy_report(
            self.config,
            releases=self.ledger.count(GRADIENT) + self.ledger.before[0],
            exchanges=self.ledger.count(NEIGHBOURHOODS),
            users=self.prepared.input.users,
            rows=projection.rows if projection is not None else 0,
            protected=projection.protected if projection is not None else True,
            validations=self.ledger.count(VALIDATION) + self.ledger.before[1],
            randomness=SIMULATED if "noise" in self.config.unprotected else SECRET,
            parties=[self.prepared.input],
        )
        return report | {"spent": self.ledger.summary()}

    # -- checkpoints and status --------------------------------------------------------------------------

    def _write_checkpoint(self) -> None:
        values = {
            "ledger": self.link.ledger.to_dict(),
            "seconds": self.seconds,
        }
        if self.workers is not None:  # the first worker writes last, so that the others have what it restores
            tell_all(self.workers, Order.CHECKPOINT, round=self.round)
            self.workers.wait()
        self._checkpoints.write(self.round, values)

    def _restore(self) -> None:
        found = self._checkpoints.restore()
        if found is None:
            return
        self.round = found.round
        self.link.ledger = Ledger.from_dict(found.values["ledger"])
        self.seconds = found.values["seconds"]
        self.history = [entry for entry in read_history(self.folder) if entry["round"] <= self.round]

    def status(self) -> dict[str, Any]:
        """Return the present status."""
        name = self.identity.name
        ledgers = [self.link.ledger, *(result.ledger for result in self.earlier if result is not None)]
        sizes = {way: sum(ledger.total(way) for ledger in ledgers) for way in ("up", "down")}
        errors = [self.config.training.error_of(entry) for entry in self.history]
        joined = self.state in (PartyState.JOINED, PartyState.FINISHED)
        state = "training" if joined else "joining"
        if joined and self.waits_for:
            state = "waiting"
        elif self.state is PartyState.JOINED and not self.link.connected:
            state = "stalled"
        return {
            "role": f"party {name}",
            "federation": self.identity.agreement.name,
            "training": self.progress.training,
            "stage": self.stage.name,
            "state": state,
            "waits_for": self.waits_for if self.link.connected else [COORDINATOR],
            "waits_since": self._waits_since if self.link.connected else self.link.heard,
            "round": self.round,
            "rounds": self._rounds,
            "valid_error": errors[-1] if errors else None,
            "best_error": min(errors, default=None),
            "seconds": round_seconds(self.seconds),
            "repeats": self.repeats,
            "epsilon_spent": self.ledger.epsilon,
            "bytes": sizes,
            "parties": {
                name: {"here": joined, **sizes},
                COORDINATOR: {"here": self.link.connected, "heard": self.link.heard, "up": 0, "down": 0},
            },
        }

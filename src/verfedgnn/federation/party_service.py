"""A party as a service in one training: it joins, answers rounds, writes checkpoints, and stores its result.

The protocol itself is in `protocol.party`. This module connects it to the link, the disk and the status page.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from verfedgnn.config import Config
from verfedgnn.config.party_counts import active_count
from verfedgnn.core.errors import ProtocolError
from verfedgnn.core.files import writing
from verfedgnn.federation.agreement import Stage
from verfedgnn.federation.certificates import COORDINATOR
from verfedgnn.federation.coordinator_link import CoordinatorLink
from verfedgnn.federation.event_log import log_event
from verfedgnn.federation.roster import MemberIdentity
from verfedgnn.federation.stores import PartyCheckpoints, PartyStore, StageResult, SurvivorLog, open_ledger
from verfedgnn.federation.transcript import SPENT
from verfedgnn.privacy.accounting import SECRET, SIMULATED, privacy_report
from verfedgnn.protocol.coordinator import ClosedRound
from verfedgnn.protocol.messages import (
    AlignStart,
    Finish,
    Finished,
    Message,
    RoundReply,
    RoundShares,
    RoundStart,
    ShareRequest,
    Survivors,
    Waiting,
    Welcome,
)
from verfedgnn.protocol.party import Candidate, FinishedTraining, Party
from verfedgnn.protocol.party_setup import Policy
from verfedgnn.protocol.public_state import mean_error
from verfedgnn.protocol.release_ledger import GRADIENT, NEIGHBOURHOODS, VALIDATION
from verfedgnn.protocol.states import PARTY_STATES, Event, PartyEvent, PartyState
from verfedgnn.runs.ledger import Ledger
from verfedgnn.runs.metrics_file import history_entry, round_seconds
from verfedgnn.runs.run import read_history, write_history
from verfedgnn.training.simple_models import liked


class Realign(Exception):
    """The coordinator asks all parties to align again, because another party has no aligned users."""


class PartyService:
    """One training of a party, from Hello to its stored result."""

    def __init__(
        self, store: PartyStore, stage: Stage, link: CoordinatorLink, *, device: str = "cpu"
    ) -> None:
        self.store = store
        self.stage = stage
        self.link = link
        self.publisher = link.publisher
        self.device = torch.device(device)
        self.identity = store.identity
        self.config = stage.config
        self.folder = store.begin_stage(stage)
        prepared, alignment = store.load(self.device)
        judged = None if stage.continues is None else store.read_result(store.stages[stage.continues])
        self.prepared = prepared if judged is None else prepared.with_everything(store.stages[0].config)
        data = self.prepared.input
        self.takes_part = stage.first or not self.config.ranks or bool(len(liked(data.train, data.scale)))
        """Whether the party has ratings to train on; lists need liked items."""
        self.takes_part &= judged is None or bool(judged.rounds)
        config = self.config if self.takes_part else store.stages[0].config
        policy = make_policy(self.identity, self.config, alignment)
        self.ledger = open_ledger(self.folder, config)
        self.ledger.check_age(link.transcript.released[stage.name], str(link.transcript.file))
        """What this party has released in this training."""
        self.candidate = Candidate(
            data,
            config,
            store.read_secret(stage),
            self.device,
            policy,
            ledger=self.ledger,
            commitments=SurvivorLog(self.folder / "survivors.jsonl"),
            start=None if judged is None or not judged.rounds else judged.arrays["public"].to(self.device),
        )
        self.progress = self.candidate.progress
        self.party: Party | None = None
        """The party of the present stay; None until it has joined."""
        self.state = PartyState.GREETING
        link.expect(self.candidate.largest_message, self.candidate.largest_array)
        link.stage = stage.name
        link.model = self.candidate.setup.model
        if not stage.first:
            link.ledger = Ledger()
        self.earlier = [store.read_result(other) for other in store.stages if other is not stage]
        """Results of the trainings before this one."""
        self.history: list[dict[str, Any]] = []
        self.seconds = 0.0
        self.round = 0
        self.repeats = 0
        self._rounds: int | None = None
        self._checkpoints = PartyCheckpoints(self.folder / "checkpoint", self.progress, self.ledger)
        self._restore()

    def run(self) -> None:
        """Answer the coordinator until the training is over and its result is stored."""
        self.publisher.start_stage()
        data = self.prepared.input
        about = {"stage": self.stage.name, "party": self.identity.name, "round": self.round}
        spent = self.ledger.epsilon
        log_event("party ready", **about, users=data.users, items=data.items, epsilon_spent=spent)
        self.link.greet()
        while self.state is not PartyState.FINISHED:
            joining = lambda: self.state is PartyState.GREETING  # noqa: E731
            message = self.link.receive(self._hello, joining, self.status)
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
            return hello
        return hello.model_copy(update={"config": self.config.digest(), "ratings": 0})

    def _handle(self, message: Message) -> None:
        """Act on a message."""
        event: Event = type(message)
        if isinstance(message, Waiting) and message.align:
            event = AlignStart
        elif isinstance(message, Finish) and message.round == 0 and not self.stage.first:
            event = PartyEvent.SKIP
        if event is AlignStart and (self.progress.training is not None or not self.stage.first):
            problem = "the coordinator asked to align users again during a training"
            raise ProtocolError(f"{problem}; the training here is kept")
        late = isinstance(message, Welcome) and message.stay != self.candidate.stay
        if late or PARTY_STATES.ignores(self.state, event):
            return
        self.state = PARTY_STATES.after(self.state, event)
        if self.state is PartyState.REALIGNING:
            raise Realign
        if isinstance(message, Welcome):
            self._join(message)
        elif isinstance(message, RoundStart):
            self._answer_round(message)
        elif isinstance(message, ShareRequest | RoundShares | Survivors):
            self._answer_masks(message)
        elif isinstance(message, Finish):
            self._finish(message)

    def _join(self, message: Welcome) -> None:
        if not self.takes_part:
            return
        self.party = self.candidate.welcome(message)
        self._rounds = self.party.replica.rounds
        log_event("taking part", stage=self.stage.name, round=message.round, public=message.digest)

    def _answer_round(self, message: RoundStart) -> None:
        began = time.monotonic()
        if message.attempt:
            self.repeats += 1
            about = {"round": message.round, "attempt": message.attempt}
            log_event("round restarted", **about, parties=len(message.active))
        if self.party is None:
            raise ProtocolError("the coordinator started a round without parties that can take part")
        reply = self.party.handle(message)
        assert isinstance(reply, RoundReply)
        self.round = message.round
        spent = {} if self.ledger.epsilon is None else {"epsilon": self.ledger.epsilon}
        self.link.transcript.note(SPENT, self.stage.name, releases=len(self.ledger.entries), **spent)
        self._write_checkpoint()  # before sending, so that this party remembers all it has sent
        self.link.send(reply)
        self.link.transcript.sign()  # while the others compute
        self.seconds += time.monotonic() - began
        error = self._record_validation(reply)
        self.publisher.close_round(ClosedRound(message.round, error), self.status)

    def _answer_masks(self, message: ShareRequest | RoundShares | Survivors) -> None:
        """Answer a message about masks."""
        if self.party is None:
            raise ProtocolError("the coordinator sent a message about masks, but this party has not joined")
        if isinstance(message, Survivors) and message.signatures is None:
            lost = len(self.identity.agreement.parties) - len(message.survivors)
            if lost and self.config.training.participation == 1:
                log_event("sum without some parties", round=message.round, parties=len(message.survivors))
        answer = self.party.handle(message)
        if answer is not None:
            self.link.send(answer)

    def _record_validation(self, reply: RoundReply) -> float | None:
        """Add this party's validation error to its history and return it; None if the round had no validation."""
        if reply.error is None or not reply.count:
            return None
        error = mean_error(reply.error, reply.count, self.config)
        entry = history_entry(reply.round, error, self.config, self.link.ledger, self.seconds)
        self.history = [*(e for e in self.history if e["round"] < reply.round), entry]
        with writing(self.folder):
            write_history(self.folder, self.history)
        about = {"stage": self.stage.name, "round": reply.round}
        log_event("validated", **about, own_valid_error=error, epsilon_spent=self.ledger.epsilon)
        return error

    # -- the end -----------------------------------------------------------------------------------------

    def _finish(self, message: Finish) -> None:
        """Store the result and report it."""
        if not self.stage.first and message.round == 0:
            log_event("no lists are trained: a party is missing or has no rating that counts as a like")
            self.store.write_result(self.stage, StageResult(0, {}, self.link.ledger, {}))
            self.link.send(Finished(digest=message.digest))
            return
        if self.party is None:
            raise ProtocolError("the coordinator finished a training in which this party did not take part")
        finished = self.party.finish(message)
        self.store.write_result(self.stage, self._make_result(message, self.party, finished))
        self.link.send(finished.reply)
        about = {"stage": self.stage.name, "rounds": message.round, "best_round": message.best_round}
        log_event("training finished", **about, public=finished.reply.digest)

    def _make_result(self, message: Finish, party: Party, finished: FinishedTraining) -> StageResult:
        arrays = finished.model | {"public": finished.public}
        figures = {
            "best_round": message.best_round,
            "seconds": self.seconds,
            "privacy": self._report_privacy(),
            "digest": finished.reply.digest,
            "ratings": party.replica.ratings,
        }
        return StageResult(message.round, arrays, self.link.ledger, figures)

    def _report_privacy(self) -> dict[str, Any]:
        exchange = self.candidate.exchange
        report = privacy_report(
            self.config,
            releases=self.ledger.count(GRADIENT),
            exchanges=self.ledger.count(NEIGHBOURHOODS),
            users=self.prepared.input.users,
            rows=exchange.rows,
            protected=exchange.protected,
            validations=self.ledger.count(VALIDATION),
            randomness=SIMULATED if "noise" in self.config.unprotected else SECRET,
            parties=[self.prepared.input],
        )
        return report | {"spent": self.ledger.summary()}

    # -- checkpoints and status --------------------------------------------------------------------------

    def _write_checkpoint(self) -> None:
        values = {"ledger": self.link.ledger.to_dict(), "seconds": self.seconds}
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
        link = self.link
        about = link.status()
        ledgers = [link.ledger, *(result.ledger for result in self.earlier if result is not None)]
        sizes = {way: sum(ledger.total(way) for ledger in ledgers) for way in ("up", "down")}
        errors = [self.config.error_of(entry) for entry in self.history]
        joined = self.state in (PartyState.JOINED, PartyState.FINISHED)
        state = "training" if joined else about["state"] if link.waits_for else "joining"
        if joined and link.waits_for:
            state = "stalled" if link.waits_for == [COORDINATOR] else "waiting"
        about["parties"][self.identity.name] = {"here": joined, "joined": link.connected, **sizes}
        return about | {
            "training": self.progress.training,
            "state": state,
            "round": self.round,
            "rounds": self._rounds,
            "valid_error": errors[-1] if errors else None,
            "best_error": min(errors, default=None),
            "seconds": round_seconds(self.seconds),
            "repeats": self.repeats,
            "epsilon_spent": self.ledger.epsilon,
            "bytes": sizes,
        }


def make_policy(identity: MemberIdentity, config: Config, alignment: str) -> Policy:
    """Return a party's conditions for taking part in a training; `alignment` names its aligned users."""
    agreement = identity.agreement
    active = active_count(config, len(agreement.parties))
    return Policy(
        agreement.digest(),
        alignment,
        identity,
        smallest=min(agreement.smallest_sum, active) if config.masking else 1,
        place=(identity.index, len(agreement.parties)),
        most_rounds=agreement.max_rounds,
        fresh_noise="noise" not in config.unprotected,
    )

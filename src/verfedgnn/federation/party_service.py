"""A party as a service: it joins, answers rounds, writes checkpoints, and ends with a run folder.

The protocol itself is in `protocol.party`. This module connects it to the link, the disk and the status page.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from verfedgnn.core.errors import ProtocolError
from verfedgnn.core.files import writing
from verfedgnn.federation.coordinator_link import CoordinatorLink
from verfedgnn.federation.event_log import log_event
from verfedgnn.federation.party_store import PartyStore
from verfedgnn.federation.status_server import StatusPublisher
from verfedgnn.privacy.accounting import SECRET, SIMULATED, privacy_report
from verfedgnn.protocol.coordinator.best_validation import mean_error
from verfedgnn.protocol.coordinator.coordinator import ClosedRound, active_count
from verfedgnn.protocol.party.candidate import Candidate
from verfedgnn.protocol.party.party import FinishedTraining, Party
from verfedgnn.protocol.party.party_states import PARTY_STATES, PartyEvent, PartyState
from verfedgnn.protocol.party.policy import Policy
from verfedgnn.protocol.wire.alignment_messages import AlignStart
from verfedgnn.protocol.wire.messages import Finish, Message, RoundReply, RoundStart, Waiting, Welcome
from verfedgnn.runs.checkpoint import read_checkpoint, write_checkpoint
from verfedgnn.runs.ledger import Ledger
from verfedgnn.runs.metrics_file import build_metrics, history_entry, round_seconds
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.release_counts import ReleaseCounts
from verfedgnn.runs.run import Run, read_history, write_history
from verfedgnn.training.party_gate import gate_parties


class Realign(Exception):
    """The coordinator asks all parties to align again, because another party has no aligned users."""


class PartyService:
    """One party's training, from Hello to its run folder."""

    def __init__(
        self,
        store: PartyStore,
        link: CoordinatorLink,
        publisher: StatusPublisher,
        *,
        checkpoint_every: int = 1,
        device: str = "cpu",
    ) -> None:
        self.store = store
        self.link = link
        self.publisher = publisher
        self.checkpoint_every = checkpoint_every
        self.device = torch.device(device)
        self.identity = store.identity
        self.config = self.identity.agreement.config
        self.prepared, alignment = store.load(self.device)
        policy = self._make_policy(alignment)
        self.candidate = Candidate(self.prepared.input, self.config, store.read_secret(), self.device, policy)
        self.progress = self.candidate.progress
        self.party: Party | None = None
        """The party of the present stay; None until it has joined."""
        self.state = PartyState.GREETING
        link.largest = self.candidate.largest_array
        self.history: list[dict[str, Any]] = []
        self.seconds = 0.0
        self.round = 0
        self.repeats = 0
        self.releases = ReleaseCounts()
        self._rounds: int | None = None
        self._saved_models: int | None = None
        """Round of the models in the last checkpoint."""
        self._restore()

    def _make_policy(self, alignment: str) -> Policy:
        agreement = self.identity.agreement
        active = active_count(self.config, len(agreement.parties))
        return Policy(
            agreement.fingerprint(),
            alignment,
            self.identity,
            smallest=min(agreement.quorum, active) if self.config.masking else 1,
            place=(self.identity.index, len(agreement.parties)),
            fresh_noise="noise" not in self.config.unprotected,
        )

    def run(self) -> Run:
        """Answer the coordinator until training is over, and return the finished run."""
        log_event(
            "party ready",
            party=self.identity.name,
            round=self.round,
            users=self.prepared.input.users,
            items=self.prepared.input.items,
        )
        self.link.greet()
        while True:
            message = self.link.receive(self._hello, lambda: self.state is PartyState.GREETING)
            try:
                run = self._handle(message)
            except ProtocolError as error:
                self.link.refuse(error)
                raise
            if run is not None:
                return run
            self.publisher.update(self._status)

    # -- messages ----------------------------------------------------------------------------------------

    def _hello(self) -> Message:
        self.state = PARTY_STATES.after(self.state, PartyEvent.SAY_HELLO)
        return self.candidate.hello()

    def _handle(self, message: Message) -> Run | None:
        """Act on a message; return the run once the coordinator has finished the training."""
        realign = isinstance(message, Waiting) and message.align
        event = AlignStart if realign else type(message)
        if event is AlignStart and self.progress.training is not None:
            raise ProtocolError(
                "the coordinator asked to align users again during a training; the training here is kept"
            )
        late = isinstance(message, Welcome) and message.stay != self.candidate.stay
        if late or PARTY_STATES.ignores(self.state, event):
            return None
        self.state = PARTY_STATES.after(self.state, event)
        if self.state is PartyState.REALIGNING:
            raise Realign
        if isinstance(message, Welcome):
            self._join(message)
        elif isinstance(message, RoundStart):
            self._answer_round(message)
        elif isinstance(message, Finish):
            return self._finish(message)
        return None

    def _join(self, message: Welcome) -> None:
        self.party = self.candidate.welcome(message)
        self._rounds = self.party.replica.rounds
        log_event("taking part", round=message.round, public=message.digest)

    def _answer_round(self, message: RoundStart) -> None:
        began = time.monotonic()
        if message.attempt:
            self.repeats += 1
            log_event(
                "round restarted", round=message.round, attempt=message.attempt, parties=len(message.active)
            )
        assert self.party is not None
        reply = self.party.handle(message)
        assert isinstance(reply, RoundReply)
        self.round = message.round
        self.releases.count(reply)
        if message.round % self.checkpoint_every == 0:
            self._write_checkpoint()  # before sending, so that this party remembers all it has sent
        self.link.send(reply)
        self.seconds += time.monotonic() - began
        error = self._record_validation(reply)
        self.publisher.close_round(ClosedRound(message.round, error), self._status)

    def _record_validation(self, reply: RoundReply) -> float | None:
        """Add this party's validation error to its history and return it; None if the round had no validation."""
        if reply.error is None or not reply.count:
            return None
        error = mean_error(reply.error, reply.count, self.config.training)
        entry = history_entry(reply.round, error, self.config, self.link.ledger, self.seconds)
        self.history = [*(e for e in self.history if e["round"] < reply.round), entry]
        with writing(self.store.folder):
            write_history(self.store.folder, self.history)
        log_event("validated", round=reply.round, own_valid_error=error)
        return error

    # -- the end -----------------------------------------------------------------------------------------

    def _finish(self, message: Finish) -> Run:
        """Store the model and report it, then choose the gate, which takes long and for which nobody has to wait."""
        assert self.party is not None
        finished = self.party.finish(message)
        run = self._write_result(message, self.party, finished)
        self.link.send(finished.reply)
        if self.config.training.gate:
            run = choose_gate(self.store.folder)
        self.publisher.update(lambda: self._status() | {"state": "finished"}, now=True)
        log_event(
            "training finished",
            rounds=message.round,
            best_round=message.best_round,
            public=finished.reply.digest,
        )
        return run

    def _write_result(self, message: Finish, party: Party, finished: FinishedTraining) -> Run:
        """Write the run folder with the best model and return the run."""
        model = PartyModel.from_arrays(finished.model)
        metrics = build_metrics(
            [self.prepared],
            [model],
            self.config,
            self.link.ledger,
            rounds=message.round,
            best_round=message.best_round,
            seconds=self.seconds,
            privacy=self._report_privacy(party),
            digest=finished.reply.digest,
        )
        metrics["all_ratings"] = party.replica.ratings
        run = Run(
            self.config,
            [self.prepared.party],
            [self.prepared.parts],
            [model],
            metrics,
            self.history,
            self.link.ledger,
            finished.public,
            shares=[finished.others_means],
        )
        run.complete_folder(self.store.folder)
        return run

    def _report_privacy(self, party: Party) -> dict[str, Any]:
        projection = party.projection
        return privacy_report(
            self.config,
            releases=self.releases.gradients,
            exchanges=self.releases.neighbourhoods,
            users=party.data.users,
            rows=projection.rows if projection is not None else 0,
            protected=projection.protected if projection is not None else True,
            validations=len(self.history),
            randomness=SIMULATED if "noise" in self.config.unprotected else SECRET,
        )

    # -- checkpoints and status --------------------------------------------------------------------------

    def _write_checkpoint(self) -> None:
        values = {
            "ledger": self.link.ledger.to_dict(),
            "seconds": self.seconds,
            "releases": self.releases.to_dict(),
        }
        folder = self.store.folder / "checkpoint"
        newest = self.progress.evaluated[0] if self.progress.evaluated is not None else 0
        if newest != self._saved_models:
            write_checkpoint(folder / "models", newest, {"models": self.progress.models()}, {})
            self._saved_models = newest
        write_checkpoint(folder / "party", self.round, {"party": self.progress.checkpoint()}, values)

    def _restore(self) -> None:
        folder = self.store.folder / "checkpoint"
        found = read_checkpoint(folder / "party")
        models = read_checkpoint(folder / "models")
        if found is None or models is None:
            return
        states, values = found
        self.progress.restore(states["party"], models[0]["models"])
        self.round = values["round"]
        self._saved_models = models[1]["round"]
        self.link.ledger = Ledger.from_dict(values["ledger"])
        self.seconds = values["seconds"]
        self.releases = ReleaseCounts(**values["releases"])
        self.history = [entry for entry in read_history(self.store.folder) if entry["round"] <= self.round]

    def _status(self) -> dict[str, Any]:
        name = self.identity.name
        sizes = {"up": self.link.ledger.total("up"), "down": self.link.ledger.total("down")}
        errors = [self.config.training.error_of(entry) for entry in self.history]
        joined = self.state in (PartyState.JOINED, PartyState.FINISHED)
        return {
            "role": f"party {name}",
            "federation": self.identity.agreement.name,
            "training": self.progress.training,
            "state": "training" if joined else "joining",
            "round": self.round,
            "rounds": self._rounds,
            "valid_error": errors[-1] if errors else None,
            "best_error": min(errors, default=None),
            "seconds": round_seconds(self.seconds),
            "repeats": self.repeats,
            "bytes": sizes,
            "parties": {name: {"here": joined, **sizes}},
        }


def choose_gate(folder: Path) -> Run:
    """Train alone on the data of a finished run, and replace its model by the best mixture of both models.

    The coordinator is not needed for this.
    """
    log_event("training alone to choose the gate")
    run = Run.load(folder)
    shares = run.shares or [None]
    (gated,) = gate_parties(run.prepared(), run.models, shares, run.config, run.metrics["all_ratings"])
    run.models = [gated.served.model]
    run.alone = [gated.alone.model]
    run.metrics |= run.evaluate()
    run.metrics["parties"][0]["gate"] = gated.weights
    run.complete_folder(folder)
    log_event("gate chosen", weights=gated.served.known)
    return run

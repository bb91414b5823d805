"""A party as a service: it dials, aligns its users, joins, answers rounds, and ends with a run folder of its own.

The protocol is `protocol.party`; this is its memory on disk and its patience. Everything in `folder` is the party's own.
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
from verfedgnn.federation.identity import MemberIdentity
from verfedgnn.federation.party_store import PartyStore
from verfedgnn.federation.status_server import StatusPublisher
from verfedgnn.privacy.accounting import SECRET, SIMULATED, privacy_report
from verfedgnn.protocol.coordinator.best_validation import mean_error
from verfedgnn.protocol.coordinator.coordinator import Closed, active_count
from verfedgnn.protocol.party.party import Party
from verfedgnn.protocol.party.policy import Policy
from verfedgnn.protocol.round.replica import parameters_digest
from verfedgnn.protocol.wire.alignment_messages import AlignStart, Common, Sealed
from verfedgnn.protocol.wire.messages import Finish, Message, RoundReply, RoundStart, Waiting, Welcome
from verfedgnn.runs.checkpoint import read_checkpoint, write_checkpoint
from verfedgnn.runs.ledger import Ledger
from verfedgnn.runs.metrics_file import figures, history_entry, round_seconds
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.run import Run, read_history, write_history
from verfedgnn.training.gate import gated_models


class Realign(Exception):
    """Another party came without aligned users; everybody aligns again."""


class PartyService:
    """One party's training, from Hello to its own run folder."""

    def __init__(
        self,
        identity: MemberIdentity,
        store: PartyStore,
        link: CoordinatorLink,
        watch: StatusPublisher,
        *,
        checkpoint_every: int = 1,
        device: str = "cpu",
    ) -> None:
        self.identity, self.store, self.link, self.watch = identity, store, link, watch
        self.checkpoint_every, self.device = checkpoint_every, torch.device(device)
        self.prepared, alignment = store.load(self.device)
        agreement = identity.agreement
        masked = agreement.config.masking
        active = active_count(agreement.config, len(agreement.parties))
        terms = Policy(
            agreement.fingerprint(),
            alignment,
            identity,
            smallest=min(agreement.quorum, active) if masked else 1,
            place=(identity.index, len(agreement.parties)),
            fresh_noise="noise" not in agreement.config.unprotected,
        )
        self.party = Party(self.prepared.input, agreement.config, store.read_secret(), self.device, terms)
        link.largest = self.party.largest_array
        self.history, self.seconds, self.round = list[dict[str, Any]](), 0.0, 0
        self.releases = self.exchanges = 0
        self.welcome = self.waiting = False
        self.repeats = 0
        self._rounds: int | None = None
        self._models_of: int | None = None
        self._restore()

    def run(self) -> Run:
        """Until the coordinator says that training is over."""
        log_event(
            "party ready",
            party=self.identity.name,
            round=self.round,
            users=self.party.data.users,
            items=self.party.data.items,
        )
        self.link.greet()
        while True:
            message = self.link.receive(self._hello, lambda: not self.welcome and not self.waiting)
            try:
                run = self._take(message)
            except ProtocolError as error:
                self.link.refuse(error)
                raise
            if run is not None:
                return run
            self.watch.update(self._status)

    def _hello(self) -> Message:
        self.welcome = self.waiting = False
        return self.party.hello()

    def _take(self, message: Message) -> Run | None:
        if isinstance(message, Welcome):
            if message.stay != self.party.stay or self.welcome:
                return None  # answers a Hello that another one has followed, or one that is answered already
            self.party.welcome(message)
            self.welcome = True
            self._rounds = self.party.replica.rounds
            log_event("taking part", round=message.round, public=message.digest)
        elif isinstance(message, AlignStart) or (isinstance(message, Waiting) and message.align):
            if self.party.training is not None:
                raise ProtocolError(
                    "asked to align users anew in the middle of a training; nothing here is thrown away for that"
                )
            raise Realign
        elif isinstance(message, Waiting):
            self.waiting = True
        elif isinstance(message, RoundStart) and self.welcome:
            self._round(message)
        elif isinstance(message, Finish) and self.welcome:
            return self._finish(message)
        elif not isinstance(
            message, RoundStart | Finish | Sealed | Common
        ):  # these may be of an earlier stay or alignment
            raise ProtocolError(f"a {type(message).__name__} makes no sense here")
        return None

    def _round(self, message: RoundStart) -> None:
        began = time.monotonic()
        if message.attempt:
            self.repeats += 1
            log_event(
                "round begun anew", round=message.round, attempt=message.attempt, parties=len(message.active)
            )
        reply = self.party.handle(message)
        assert isinstance(reply, RoundReply)
        self.round = message.round
        self.releases += reply.gradient is not None
        self.exchanges += reply.neighbourhoods is not None
        if message.round % self.checkpoint_every == 0:
            self._checkpoint()  # first, so that whatever was sent from here is known here
        self.link.send(reply)
        self.seconds += time.monotonic() - began
        error = None
        if reply.error is not None and reply.count:
            error = mean_error(reply.error, reply.count, self.party.config.training)
            entry = history_entry(message.round, error, self.party.config, self.link.ledger, self.seconds)
            self.history = [*(e for e in self.history if e["round"] < message.round), entry]
            with writing(self.store.folder):
                write_history(self.store.folder, self.history)
            log_event("validated", round=message.round, own_valid_error=error)
        self.watch.round(Closed(message.round, error), self._status)

    def _finish(self, message: Finish) -> Run:
        """Keep the model and say so; then choose the gate, if one is agreed on: it takes long, and nobody need wait for it."""
        finished = self.party.finish(message)
        run = self._result(message)
        self.link.send(finished)
        if self.identity.agreement.config.training.gate:
            run = choose_gate(self.store.folder)
        self.watch.update(lambda: self._status() | {"state": "finished"}, now=True)
        log_event(
            "training is over", rounds=message.round, best_round=message.best_round, public=finished.digest
        )
        return run

    def _result(self, message: Finish) -> Run:
        """The run folder with the kept model."""
        party, config = self.party, self.identity.agreement.config
        assert party.best is not None
        assert party.public is not None
        model, projection = PartyModel(**party.best[1]), party.projection
        metrics = figures(
            [self.prepared],
            [model],
            config,
            self.link.ledger,
            rounds=message.round,
            best_round=message.best_round,
            seconds=self.seconds,
            privacy=privacy_report(
                config,
                releases=self.releases,
                exchanges=self.exchanges,
                users=party.data.users,
                rows=projection.rows if projection is not None else 0,
                protected=projection.protected if projection is not None else True,
                validations=len(self.history),
                randomness=SIMULATED if "noise" in config.unprotected else SECRET,
            ),
            digest=parameters_digest(party.public),
        )
        metrics["all_ratings"] = party.replica.ratings
        own = ([self.prepared.party], [self.prepared.parts], [model])
        run = Run(config, *own, metrics, self.history, self.link.ledger, party.public)
        run.complete_folder(self.store.folder)
        return run

    def _checkpoint(self) -> None:
        values = {"ledger": self.link.ledger.to_dict(), "seconds": self.seconds, "releases": self.releases}
        values["exchanges"] = self.exchanges
        folder = self.store.folder
        newest = self.party.candidate[0] if self.party.candidate is not None else 0
        if newest != self._models_of:
            write_checkpoint(folder / "checkpoint" / "models", newest, {"models": self.party.models()}, {})
            self._models_of = newest
        write_checkpoint(folder / "checkpoint" / "party", self.round, {"party": self.party.state()}, values)

    def _restore(self) -> None:
        folder = self.store.folder / "checkpoint"
        found, models = read_checkpoint(folder / "party"), read_checkpoint(folder / "models")
        if found is None or models is None:
            return
        states, values = found
        self.party.restore(states["party"], models[0]["models"])
        self.round, self._models_of = values["round"], models[1]["round"]
        self.link.ledger = Ledger.from_dict(values["ledger"])
        self.seconds, self.releases, self.exchanges = (
            values["seconds"],
            values["releases"],
            values["exchanges"],
        )
        self.history = [entry for entry in read_history(self.store.folder) if entry["round"] <= self.round]

    def _status(self) -> dict[str, Any]:
        ledger, name = self.link.ledger, self.identity.name
        errors = [self.party.config.training.error_of(entry) for entry in self.history]
        return {
            "role": f"party {name}",
            "federation": self.identity.agreement.name,
            "training": self.party.training,
            "state": "training" if self.welcome else "joining",
            "round": self.round,
            "rounds": self._rounds,
            "valid_error": errors[-1] if errors else None,
            "best_error": min(errors, default=None),
            "seconds": round_seconds(self.seconds),
            "repeats": self.repeats,
            "bytes": {"up": ledger.total("up"), "down": ledger.total("down")},
            "parties": {name: {"here": self.welcome, "up": ledger.total("up"), "down": ledger.total("down")}},
        }


def choose_gate(folder: Path) -> Run:
    """Train alone on a finished run's data and keep the mixture of both models in its place; the coordinator is not needed."""
    log_event("training alone, to see what the federation is worth here")
    run = Run.load(folder)
    (gated,) = gated_models(run.prepared(), run.models, run.config, run.metrics["all_ratings"])
    run.models, run.alone = [gated.model], [gated.alone]
    run.metrics |= run.evaluate()
    run.metrics["parties"][0]["gate"] = gated.gate
    run.complete_folder(folder)
    log_event("gate chosen", gate=gated.gate)
    return run

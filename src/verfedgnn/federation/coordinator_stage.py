"""One training of a coordinator: which parties take part, and the trips and rounds until all of them have the result.

step: open, restart or close a trip, or finish
"""

from __future__ import annotations

import math
import secrets
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from verfedgnn.core.errors import ProtocolError, RunError
from verfedgnn.core.worker_group import WorkerGroup
from verfedgnn.federation.absence import AbsenceClock
from verfedgnn.federation.agreement import Agreement
from verfedgnn.federation.coordinator_checkpoints import CHECKPOINT, CoordinatorCheckpoints
from verfedgnn.federation.coordinator_store import CoordinatorStore, TrainingRecord
from verfedgnn.federation.cost_outlook import CostOutlook
from verfedgnn.federation.event_log import log_event, log_warning
from verfedgnn.federation.mask_faults import LiarSearch
from verfedgnn.federation.stages import Stage
from verfedgnn.federation.status_server import StatusPublisher
from verfedgnn.federation.transcript import Transcript
from verfedgnn.protocol.coordinator.coordinator import ClosedRound, Coordinator
from verfedgnn.protocol.coordinator.coordinator_states import CoordinatorState
from verfedgnn.protocol.coordinator.divided_rows import RowWorkers
from verfedgnn.protocol.round.aggregation import SumError
from verfedgnn.protocol.round.start_state import PublicStart
from verfedgnn.protocol.wire.messages import (
    Finish,
    Finished,
    Hello,
    Message,
    Refused,
    Waiting,
)
from verfedgnn.runs.metrics_file import history_entry, round_seconds

STALL_SECONDS = 10.0
"""Least number of seconds without an answer after which a party counts as stalled; five rounds if that is longer."""


class Office(Protocol):
    """What a training needs from the service that runs it."""

    agreement: Agreement
    publisher: StatusPublisher
    offences: Counter[str]
    transcript: Transcript

    def send(self, name: str, message: Message) -> None:
        """Send a message to a party."""

    def send_all(self, messages: Sequence[tuple[str, Message]]) -> None:
        """Send messages to parties. Those to one party travel together, and one to many parties is encoded once."""

    def exclude(self, name: str) -> None:
        """Count an offence of a party and go on without it until it joins again."""

    def status(self) -> dict[str, Any]:
        """Return the present status."""


class CoordinatorStage:
    """One training, from the first Hello to the last Finished; it resumes from the checkpoint in its folder."""

    def __init__(
        self,
        stage: Stage,
        office: Office,
        run: Path,
        *,
        device: str = "cpu",
        start: PublicStart | None = None,
        workers: WorkerGroup | None = None,
    ) -> None:
        agreement = office.agreement
        self.stage = stage
        self.revoked: set[str] = set()
        """Parties whose certificates were revoked; they do not get the result."""
        self.office = office
        checkpoints = CoordinatorCheckpoints(stage.folder(run) / CHECKPOINT, stage.name, workers)
        self.store = CoordinatorStore(stage.folder(run), agreement.digest(), stage.config, checkpoints)
        self.coordinator = Coordinator(
            stage.config,
            [party.name for party in agreement.parties],
            device,
            quorum=agreement.quorum,
            agreement=agreement.digest(),
            training=secrets.token_hex(8),
            start=start,
            masked=True,
            workers=None if workers is None else RowWorkers(workers, stage.config, stage.name, device),
        )
        self.greeted: set[str] = set()
        """Parties that said hello to this training on their present connection."""
        self.search = LiarSearch()
        self.waiting_for: list[str] | None = None
        """Missing parties without which no round can start; None if there are enough."""
        self._reply_deadline = 0.0
        self._round_began = 0.0
        self._outlook = CostOutlook(stage.config, stage.name)
        self._finish_deadline: float | None = None
        """Time until which absent parties may fetch the result; None while training."""
        self.absence = AbsenceClock(agreement.absent.deadline)
        self._created = time.monotonic()
        self._asked = 0.0
        """Time at which the last messages of the open trip were sent."""
        self.store.claim()
        restored = self.store.restore(self.coordinator)
        self.record = restored or TrainingRecord()
        if restored is not None:
            log_event("resuming from checkpoint", stage=stage.name, round=self.coordinator.round)

    @property
    def finishing(self) -> bool:
        """Whether the rounds are over and the result is handed out."""
        return self._finish_deadline is not None

    @property
    def over(self) -> bool:
        """Whether nothing is left to do: all parties have the result, or the time to fetch it is up."""
        if self._finish_deadline is None:
            return False
        return not self.without_result or time.monotonic() >= self._finish_deadline

    @property
    def without_result(self) -> list[str]:
        """Parties that have not received the result and may still fetch it."""
        return [name for name in self.coordinator.names if name not in self.record.finished | self.revoked]

    @property
    def skipped(self) -> bool:
        """Whether no rounds take place, because a party has nothing to train the lists on; it announces 0 ratings."""
        hellos = self.coordinator.members.hellos.values()
        return not self.stage.first and self.coordinator.began and min(hello.ratings for hello in hellos) == 0

    # -- joining and leaving -----------------------------------------------------------------------------

    def take_hello(self, name: str, message: Hello) -> None:
        """Let a party join, or tell it for whom it waits."""
        self.coordinator.hello(message)
        start = self.coordinator.start
        begins = not self.coordinator.began or self.coordinator.round == 0
        if start is not None and begins and message.start is None and name in start.members:
            log_warning(
                "a party of the last training starts without --from, so its items start from nothing; stop it and pass --from",
                party=name,
            )
        self.greeted.add(name)
        if self.coordinator.state is CoordinatorState.CANCELLED:
            self.office.send(name, self._last_messages()[name])
            return
        if self.coordinator.began:
            self._admit_greeted()
            return
        missing = [other for other in self.coordinator.names if other not in self.coordinator.members.hellos]
        log_event(
            "party joined",
            stage=self.stage.name,
            party=name,
            users=message.users,
            items=message.items,
            missing=missing or None,
        )
        self.office.send(name, Waiting(missing=missing))

    def lose(self, name: str) -> None:
        """Go on without a party until it joins again."""
        self.greeted.discard(name)
        self.coordinator.lose(name)

    def pass_on(self, name: str) -> None:
        """Note that a party has joined the next training, so it has the result of this one."""
        self.lose(name)
        if name in self.record.finished:
            return
        if not self.finishing:
            log_warning(
                "party is ahead of the coordinator; restore the coordinator's run folder",
                stage=self.stage.name,
                party=name,
                round=self.coordinator.round,
            )
            return
        self.record.finished.add(name)
        self._write_result()

    def _admit_greeted(self) -> None:
        """Welcome all parties that said hello and do not take part yet."""
        self.waiting_for = None
        if not self.coordinator.round:
            self._write_checkpoint()  # from now on parties know this training by its name
        members = self.coordinator.members
        for name in self.coordinator.names:
            if name in self.greeted and name not in members.present | members.slow:
                log_event("party admitted", stage=self.stage.name, party=name, round=self.coordinator.round)
                self.office.send(name, Waiting(missing=[]))  # acknowledges the Hello; a Welcome may take long
                self.office.send(name, self.coordinator.welcome(name))
                if self.finishing:
                    self.office.send(name, self._last_messages()[name])

    # -- rounds ------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Do one thing that can be done now; return whether there may be more to do."""
        coordinator = self.coordinator
        if self.finishing:
            return False
        if self.record.ended is not None:
            self._finish()
            return True
        if not coordinator.began:
            return not self.stage.first and self._act_on_absence()
        if coordinator.open_parties:
            return self._continue_trip()
        if coordinator.done or self.skipped:
            self._finish()
            return True
        return self._open_if_ready()

    def end(self, reason: str) -> None:
        """End the training early, with the model of the best validation; raise `RunError` if the first one has none."""
        coordinator = self.coordinator
        if self.stage.first and not coordinator.best.round:
            problem = f"the training ends without a model, before the first validation: {reason}"
            for name in sorted(self.greeted):
                self.office.send(name, Refused(reason=problem[:500]))
            raise RunError(f"{problem}; start again with a new --out at all members")
        log_warning("training ends early", stage=self.stage.name, round=coordinator.round, reason=reason)
        self.record.ended = reason
        if coordinator.open_parties:
            self._abandon(reason)
        elif coordinator.began:
            self._write_checkpoint()

    # -- absent parties ----------------------------------------------------------------------------------

    def _act_on_absence(self) -> bool:
        """Finish, or continue with fewer parties, if parties were missing for the agreed time; return whether to go on."""
        self.absence.start()
        if not self.absence.is_over:
            return False
        agreement = self.office.agreement
        members = self.coordinator.members
        began = self.coordinator.began
        missing = members.missing if began else [n for n in members.names if n not in members.hellos]
        if agreement.absent.then == "continue" and began:
            if not agreement.smallest_sum <= len(members.present) < members.quorum:
                return False
            log_warning("continuing without parties", missing=missing, needed=agreement.smallest_sum)
            members.quorum = agreement.smallest_sum
            return True
        seconds = agreement.absent.deadline
        self.end(f"{', '.join(missing)} stayed away for {seconds:g} s")
        return True

    def _open_if_ready(self) -> bool:
        """Open or restart a trip if enough parties are present; return whether it was opened."""
        if not self.coordinator.ready:
            return self._wait_for_parties()
        self._open_trip()
        return True

    def _continue_trip(self) -> bool:
        """Take the next step of the open trip; return whether there was one to take."""
        coordinator = self.coordinator
        self._mark_slow_parties()
        due = coordinator.due
        absent = coordinator.absent
        if not due or (absent and coordinator.spares_absent):
            if len(due) > len(absent):
                return False
            if coordinator.state is CoordinatorState.SHARING and self._settle_commitments():
                return True
            if coordinator.closable:
                return self._close_trip()
            self._send(coordinator.proceed())
            return True
        return bool(absent) and self._restart_trip()

    def _restart_trip(self) -> bool:
        """Restart the open trip without the absent parties, or abandon it if parties committed to a sum that includes one."""
        coordinator = self.coordinator
        wanted = coordinator.commitment
        if wanted is None:
            return self._open_if_ready()
        if set(wanted) <= set(coordinator.members.here):
            self._open_trip(wanted)
            return True
        if coordinator.ready:
            self._abandon("a party of the only possible sum was lost")
            return True
        return self._wait_for_parties()

    def _settle_commitments(self) -> bool:
        """Restart or abandon the open trip if parties committed to another sum, before this coordinator was restarted."""
        coordinator = self.coordinator
        assert coordinator.masks is not None
        lists = coordinator.masks.committed
        if not lists or lists == {tuple(coordinator.drawn)}:
            coordinator.commitment = coordinator.drawn if lists else coordinator.commitment
            return False
        wanted = list(min(lists))
        if len(lists) == 1 and set(wanted) <= set(coordinator.members.here):
            coordinator.commitment = wanted
            self._open_trip(wanted)
        else:
            self._abandon("parties committed to another sum")
        return True

    def _mark_slow_parties(self) -> None:
        if time.monotonic() <= self._reply_deadline:
            return
        for name in set(self.coordinator.due) - self.coordinator.members.slow:
            log_warning(
                "party is late",
                party=name,
                round=self.coordinator.round,
                seconds=self.office.agreement.timeouts.reply,
            )
            self.coordinator.lose(name, slow=True)

    def _open_trip(self, among: list[int] | None = None) -> None:
        """Open the next trip, or restart the open one, `among` the given parties or those that are present.

        Abandon its round if a party cannot repeat what it has released.
        """
        coordinator = self.coordinator
        if self.waiting_for is not None:
            log_event("enough parties are here", round=coordinator.round)
            self.waiting_for = None
        self.absence.stop()
        if len(coordinator.members.present) >= self.office.agreement.quorum:
            coordinator.members.quorum = self.office.agreement.quorum
        restarted = bool(coordinator.open_parties)
        if among is None:
            among = self.search.choose_parties(coordinator)
        starts = coordinator.open(among)
        if restarted:
            self.record.repeats += 1
            log_event(
                "trip restarted", round=coordinator.round, attempt=coordinator.attempt, parties=list(starts)
            )
        elif not self._round_began:
            self._round_began = time.monotonic()
        lost = [name for name in starts if coordinator.members.hellos[name].lost == coordinator.round]
        if lost:
            self._abandon(f"{', '.join(lost)} released it before a power cut and no longer has the values")
            return
        self._send(list((coordinator.share_requests() if coordinator.masked else starts).items()))

    def _send(self, messages: Sequence[tuple[str, Message]]) -> None:
        """Send messages of the open trip, and wait for the answers from now on."""
        self.office.send_all(messages)
        self._asked = time.monotonic()
        self._reply_deadline = self._asked + self.office.agreement.timeouts.reply

    def _wait_for_parties(self) -> bool:
        """Log the missing parties, and act if they were missing for the agreed time; return whether to go on."""
        members = self.coordinator.members
        if members.missing != self.waiting_for:
            self.waiting_for = members.missing
            log_warning(
                "waiting for parties",
                stage=self.stage.name,
                missing=members.missing,
                needed=members.quorum,
                round=self.coordinator.round,
            )
        return self._act_on_absence()

    def _close_trip(self) -> bool:
        """Close the open trip and, after its last trip, the round; return True."""
        coordinator = self.coordinator
        group = list(coordinator.drawn if coordinator.masks is None else coordinator.masks.survivors)
        try:
            closed = coordinator.close()
        except SumError as error:
            self._abandon(str(error))
            self._exclude_liar(self.search.record_failure(coordinator, group))
            return True
        if coordinator.trip == 0:
            self.search.record_success()
        if coordinator.trip == 0:
            self._close_round(closed)
        return True

    def _abandon(self, reason: str) -> None:
        """Go on with the next round; the open one has no update."""
        coordinator = self.coordinator
        log_warning(
            "round abandoned",
            stage=self.stage.name,
            round=coordinator.round,
            trip=coordinator.trip or None,
            reason=reason,
        )
        self.record.abandoned += 1
        self._close_round(coordinator.abandon())

    def _exclude_liar(self, found: int | None) -> None:
        if found is not None:
            name = self.coordinator.names[found]
            log_warning("party excluded: every sum with it is out of range", party=name)
            self.office.exclude(name)

    def _close_round(self, closed: ClosedRound) -> None:
        coordinator = self.coordinator
        record = self.record
        record.seconds += time.monotonic() - self._round_began
        self._round_began = 0.0
        self._outlook.note_round(closed.round, coordinator.rounds, record.ledger.total())
        if closed.valid_error is not None:
            record.history.append(
                history_entry(
                    closed.round, closed.valid_error, coordinator.config, record.ledger, record.seconds
                )
            )
            self.store.write_history(record)
            log_event(
                "validated",
                stage=self.stage.name,
                round=closed.round,
                of=coordinator.rounds,
                valid_error=closed.valid_error,
                best=coordinator.best.error,
            )
        self.office.publisher.close_round(closed, self.office.status)
        self._write_checkpoint()  # parties repeat the open round only

    # -- the end -----------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Write the result and send it to all connected parties; the others get it when they join again."""
        coordinator = self.coordinator
        agreement = self.office.agreement
        messages = self._last_messages()
        seconds = agreement.timeouts.finish
        if not self.stage.last and self.record.ended is None:
            seconds = agreement.absent.deadline or math.inf  # the next training needs every party
        self._finish_deadline = time.monotonic() + seconds
        if not coordinator.began:
            log_warning("no lists are trained", reason=self.record.ended)
        elif self.skipped:
            log_warning("no lists are trained: a party has no training rating that counts as a like")
        else:
            log_event(
                "training finished",
                stage=self.stage.name,
                rounds=coordinator.round,
                best_round=coordinator.best.round,
            )
        self.store.write_start(coordinator)
        self._write_result()
        self.office.send_all([(name, messages[name]) for name in sorted(self.greeted)])

    def _last_messages(self) -> dict[str, Finish]:
        """Return each party's message that ends the training. Its round is 0 if lists ended before their first validation."""
        coordinator = self.coordinator
        if not coordinator.began:
            return coordinator.cancel()
        messages = coordinator.finish()
        if self.record.ended is not None and not coordinator.best.round:
            none = messages[coordinator.names[0]].model_copy(update={"round": 0, "parameters": None})
            return dict.fromkeys(messages, none)
        return messages

    def take_finished(self, name: str, message: Finished) -> None:
        """Note that a party has the result; raise `ProtocolError` if it is another one."""
        if message.digest != self.coordinator.public_digest:
            raise ProtocolError(f"{name}: its public parameters differ from the coordinator's")
        self.record.finished.add(name)
        self._write_result()
        log_event("party has the result", stage=self.stage.name, party=name, public=message.digest)

    def _write_checkpoint(self) -> None:
        self.store.write_checkpoint(self.coordinator, self.record)
        self.office.transcript.sign()

    def _write_result(self) -> None:
        self.store.write_result(self.coordinator, self.record, dict(self.office.offences))

    # -- status ------------------------------------------------------------------------------------------

    @property
    def stalled(self) -> list[str]:
        """Parties whose answer the open trip needs and that have been silent for unusually long."""
        median = self.office.publisher.seconds_per_round
        reply = self.office.agreement.timeouts.reply
        patience = reply if median is None else min(reply, max(STALL_SECONDS, 5 * median))
        if not self.coordinator.open_parties or time.monotonic() < self._asked + patience:
            return []
        return self.coordinator.due

    @property
    def waits(self) -> tuple[list[str], float] | None:
        """The parties that this training waits for, and since which time (monotonic); None if it does not wait."""
        if self.finishing:
            return None
        if self.waiting_for is not None:
            return self.waiting_for, self.absence.since or self._asked
        if not self.coordinator.began:
            hellos = self.coordinator.members.hellos
            return [name for name in self.coordinator.names if name not in hellos], self._created
        stalled = self.stalled
        return (stalled, self._asked) if stalled else None

    def status(self) -> dict[str, Any]:
        """Return the part of the status that is about this training."""
        coordinator = self.coordinator
        record = self.record
        training = coordinator.config.training
        return {
            "training": coordinator.training,
            "stage": self.stage.name,
            "round": coordinator.round,
            "rounds": coordinator.rounds if coordinator.began else None,
            "valid_error": training.error_of(record.history[-1]) if record.history else None,
            "best_error": coordinator.best.error if coordinator.best.round else None,
            "best_round": coordinator.best.round,
            "seconds": round_seconds(record.seconds),
            "repeats": record.repeats,
            "abandoned": record.abandoned,
        }

"""One training of a coordinator: which parties take part, and the rounds until all of them have the result.

step: open, restart or close a round, or finish
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from verfedgnn.core.errors import ProtocolError, RunError
from verfedgnn.federation.agreement import Stage
from verfedgnn.federation.event_log import log_event, log_warning
from verfedgnn.federation.stores import CoordinatorRecord
from verfedgnn.privacy.protections import SumError
from verfedgnn.protocol.coordinator import ClosedRound, Coordinator
from verfedgnn.protocol.messages import Finish, Finished, Hello, Message, Refused, Waiting
from verfedgnn.protocol.states import CoordinatorState

if TYPE_CHECKING:
    from verfedgnn.federation.coordinator_service import CoordinatorService

STALL_SECONDS = 8.0
"""Number of seconds without an answer after which a party counts as stalled; five rounds if that is longer."""
MOST_FAILURES = 3
"""Sums out of range after which a training stops."""


class Situation(NamedTuple):
    """What a coordinator does, for whom it waits, since which time (monotonic), and what happens next."""

    state: str
    waits_for: list[str]
    since: float = 0.0
    then: str = ""


class CoordinatorStage:
    """One training, from the first Hello to the last Finished; it resumes from the checkpoint in its folder."""

    def __init__(self, stage: Stage, service: CoordinatorService, run: Path, *, device: str = "cpu") -> None:
        self.agreement = agreement = service.agreement
        self.stage, self.name = stage, stage.name
        self.service = service
        self.coordinator = Coordinator(
            stage.config,
            [party.name for party in agreement.parties],
            device,
            quorum=agreement.quorum,
            agreement=agreement.digest(),
            training=secrets.token_hex(8),
            masked=True,
        )
        self.greeted: set[str] = set()
        """Parties that said hello to this training on their present connection."""
        self._failures = 0
        """Number of sums out of range."""
        self.lacks_since: float | None = None
        """Time since which no round can start, because parties are missing; None if there are enough."""
        self._asked = 0.0
        """Time at which the last messages of the open round were sent."""
        self._round_began = 0.0
        self._finish_deadline: float | None = None
        """Time until which absent parties may fetch the result; None while training."""
        ledger = service.transcript.ledgers[stage.name]
        self.record = CoordinatorRecord(stage, run, agreement.digest(), ledger)
        if self.record.restore(self.coordinator):
            self._log("resuming from checkpoint", round=self.coordinator.round)

    def _log(self, event: str, **fields: Any) -> None:
        log_event(event, stage=self.name, **fields)

    def _warn(self, event: str, **fields: Any) -> None:
        log_warning(event, stage=self.name, round=self.coordinator.round, **fields)

    # -- joining and leaving -----------------------------------------------------------------------------

    def take_hello(self, name: str, message: Hello) -> None:
        """Let a party join, or tell it for whom it waits."""
        coordinator = self.coordinator
        if self.stage.continues is not None and not coordinator.began:
            judged = self.service.stages[self.stage.continues].coordinator
            coordinator.start = judged.public if judged.began and judged.best.round else None
        coordinator.hello(message)
        self.greeted.add(name)
        if coordinator.state is CoordinatorState.CANCELLED:
            self.service.send(name, self._last_messages()[name])
        elif coordinator.began:
            if not coordinator.round:
                self._write_checkpoint()  # from now on parties know this training by its name
            here = coordinator.members.present | coordinator.members.slow
            for other in [other for other in coordinator.names if other in self.greeted - here]:
                self._log("party admitted", party=other, round=coordinator.round)
                # acknowledges the Hello; a Welcome may take long
                self.service.send(other, Waiting(missing=[]))
                self.service.send(other, coordinator.welcome(other))
                if self.finishing:
                    self.service.send(other, self._last_messages()[other])
        else:
            about = {"users": message.users, "items": message.items, "missing": self.missing or None}
            self._log("party joined", party=name, **about)
            self.service.send(name, Waiting(missing=self.missing))

    @property
    def missing(self) -> list[str]:
        """Parties that are not present or, before the training, have not said hello."""
        members = self.coordinator.members
        known = members.present if self.coordinator.began else members.hellos
        return [name for name in members.names if name not in known]

    def lose(self, name: str) -> None:
        """Go on without a party until it joins again."""
        self.greeted.discard(name)
        self.coordinator.lose(name)

    def pass_on(self, name: str) -> None:
        """Note that a party has joined the next training, so it has the result of this one."""
        self.lose(name)
        if name in self.record.finished:
            return
        if self.finishing:
            self._note_result(name)
        else:
            self._warn("party is ahead of the coordinator; restore the coordinator's run folder", party=name)

    # -- rounds ------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Do one thing that can be done now; return whether there may be more to do."""
        coordinator = self.coordinator
        if self.finishing:
            return False
        if self.record.ended is None:
            if not coordinator.began:
                return not self.stage.first and self._act_on_absence()
            if coordinator.open_parties:
                return self._continue_round()
            if not coordinator.done and not self._is_skipped:
                return self._open_round()
        self._finish()
        return True

    @property
    def _is_skipped(self) -> bool:
        """Whether no rounds take place, because a party has nothing to train the lists on; it announces 0 ratings."""
        hellos = self.coordinator.members.hellos.values()
        return not self.stage.first and self.coordinator.began and min(hello.ratings for hello in hellos) == 0

    def _act_on_absence(self) -> bool:
        """Finish if parties were missing for the agreed time; return whether to go on."""
        deadline, now = self.agreement.timeouts.absent, time.monotonic()
        if self.lacks_since is None:
            self.lacks_since = now
        if not deadline or now < self.lacks_since + deadline:
            return False
        since = datetime.now() - timedelta(seconds=now - self.lacks_since)
        self.end(f"{', '.join(self.missing)} absent from {since:%H:%M}, for more than {deadline:g} s")
        return True

    def _open_round(self, among: list[int] | None = None) -> bool:
        """Open the next round, or restart the open one, `among` the given parties or those that are present, if these are enough.

        Abandon its round if a party cannot repeat what it has released. Return whether to go on.
        """
        coordinator = self.coordinator
        members = coordinator.members
        if among is None and not coordinator.ready:
            return self._act_on_absence()
        if self.lacks_since is not None:
            log_event("enough parties are here", round=coordinator.round)
            self.lacks_since = None
        restarted = bool(coordinator.open_parties)
        messages = coordinator.open(among)
        if restarted:
            self.record.repeats += 1
            about = {"round": coordinator.round, "attempt": coordinator.attempt}
            log_event("round restarted", **about, parties=list(coordinator.open_parties))
        elif not self._round_began:
            self._round_began = time.monotonic()
        lost = [name for name in coordinator.open_parties if members.hellos[name].lost == coordinator.round]
        if lost:
            self._abandon(f"{', '.join(lost)} released it before a power cut and no longer has the values")
        else:
            self._ask(list(messages.items()))
        return True

    def _ask(self, messages: Sequence[tuple[str, Message]]) -> None:
        """Send messages of the open round, and wait for the answers from now on."""
        self.service.send_all(messages)
        self._asked = time.monotonic()

    def _continue_round(self) -> bool:
        """Take the next step of the open round; return whether there was one to take."""
        coordinator = self.coordinator
        if time.monotonic() > self._asked + self.agreement.timeouts.reply:
            for name in set(coordinator.due) - set(coordinator.absent):
                self._warn("party is late", party=name, seconds=self.agreement.timeouts.reply)
                coordinator.lose(name, slow=True)
        due = coordinator.due
        absent = coordinator.absent
        if absent and not coordinator.spares_absent:
            return self._restart_round()
        if len(due) > len(absent):
            return False
        if coordinator.state is CoordinatorState.SHARING and self._settle_commitments():
            return True
        messages = coordinator.proceed()
        if messages is None:
            self._close_round()
        else:
            self._ask(messages)
        return True

    def _restart_round(self) -> bool:
        """Restart the open round without the absent parties, or abandon it if parties committed to a sum that includes one."""
        coordinator = self.coordinator
        wanted = coordinator.commitment
        if wanted is None or coordinator.members.has(wanted):
            return self._open_round(wanted)
        if not coordinator.ready:
            return self._act_on_absence()
        self._abandon("a party of the only possible sum was lost")
        return True

    def _settle_commitments(self) -> bool:
        """Restart or abandon the open round if parties committed to another sum, before this coordinator was restarted."""
        coordinator = self.coordinator
        assert coordinator.masks is not None
        lists = coordinator.masks.committed
        if not lists:
            return False
        wanted = list(min(lists))
        if len(lists) == 1 and (wanted == coordinator.drawn or coordinator.members.has(wanted)):
            coordinator.commitment = wanted
            return wanted != coordinator.drawn and self._open_round(wanted)
        self._abandon("parties committed to another sum")
        return True

    def _close_round(self) -> None:
        """Add up the open round and close it."""
        coordinator = self.coordinator
        group = coordinator.drawn if coordinator.masks is None else coordinator.masks.survivors
        try:
            closed = coordinator.close()
        except SumError as error:
            self._abandon(str(error))
            self._failures += 1
            if self._failures >= MOST_FAILURES:
                names = ", ".join(coordinator.names[index] for index in group)
                raise ProtocolError(
                    f"{self._failures} sums were out of range, the last one in round {coordinator.round}. One of {names} sends values "
                    "that are not gradients, and sums do not show which. Compare the parties' transcripts with "
                    "`verfedgnn federation verify`"
                ) from None
        else:
            self._record_round(closed)

    def _abandon(self, reason: str) -> None:
        """Go on with the next round; the open one has no update."""
        self._warn("round abandoned", reason=reason)
        self.record.abandoned += 1
        self._record_round(self.coordinator.abandon())

    def _record_round(self, closed: ClosedRound) -> None:
        coordinator, record = self.coordinator, self.record
        record.seconds += time.monotonic() - self._round_began
        self._round_began = 0.0
        if closed.valid_error is not None and self.stage.continues is None:  # all ratings train
            error = closed.valid_error
            record.add_validation(closed.round, error)
            about = {"of": coordinator.rounds, "valid_error": error, "best": coordinator.best.error}
            self._log("validated", round=closed.round, **about)
        self.service.publisher.close_round()
        self._write_checkpoint()  # parties repeat the open round only

    def _write_checkpoint(self) -> None:
        self.record.write_checkpoint(self.coordinator.round, self.coordinator.checkpoint())
        self.service.transcript.sign()

    # -- the end -----------------------------------------------------------------------------------------

    def end(self, reason: str) -> None:
        """End the training early, with the model of the best validation; raise `RunError` if the first one has none."""
        coordinator = self.coordinator
        if self.stage.first and not coordinator.best.round:
            problem = f"the training ends without a model, before the first validation: {reason}"
            self.service.send_all([(name, Refused(reason=problem[:500])) for name in sorted(self.greeted)])
            raise RunError(f"{problem}; start again with a new --out at all members")
        self._warn("training ends early", reason=reason)
        self.record.ended = reason
        if coordinator.open_parties:
            self._abandon(reason)
        elif coordinator.began:
            self._write_checkpoint()

    def _finish(self) -> None:
        """Write the result and send it to all connected parties; the others get it when they join again."""
        coordinator = self.coordinator
        messages = self._last_messages()
        seconds = self.agreement.timeouts.finish
        if self is not self.service.stages[-1] and self.record.ended is None:
            seconds = self.agreement.timeouts.absent or math.inf  # the next training needs every party
        self._finish_deadline = time.monotonic() + seconds
        if not coordinator.began:
            self._warn("no lists are trained", reason=self.record.ended)
        elif self._is_skipped:
            self._warn("no lists are trained: a party has no training rating that counts as a like")
        else:
            self._log("training finished", rounds=coordinator.round, best_round=coordinator.best.round)
        self._note_result()
        self.service.send_all([(name, messages[name]) for name in sorted(self.greeted)])

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
        """Parties that have not received the result and may still fetch it; those with revoked certificates may not."""
        return [n for n in self.coordinator.names if n not in self.record.finished | self.service.revoked]

    def take_finished(self, name: str, message: Finished) -> None:
        """Note that a party has the result; raise `ProtocolError` if it is another one."""
        if message.digest != self.coordinator.public_digest:
            raise ProtocolError(f"{name}: its public parameters differ from the coordinator's")
        self._note_result(name)
        self._log("party has the result", party=name, public=message.digest)

    def _note_result(self, *names: str) -> None:
        """Write the result, and which parties have it; `names` are the new ones."""
        self.record.finished.update(names)
        self.record.write_result(self.coordinator, self.service.offences)

    # -- status ------------------------------------------------------------------------------------------

    @property
    def stalled(self) -> list[str]:
        """Parties whose answer the open round needs and that have been silent for unusually long."""
        usual = 5 * (self.service.publisher.seconds_per_round or 0.0)
        patience = min(self.agreement.timeouts.reply, max(STALL_SECONDS, usual))
        if not self.coordinator.open_parties or time.monotonic() < self._asked + patience:
            return []
        return self.coordinator.due

    def situation(self) -> Situation:
        """Return what a training does that began and is not over, and for whom it waits."""
        members, deadline = self.coordinator.members, self.agreement.timeouts.absent
        then = (
            f"; after {deadline:g} s without enough parties it ends with its best model" if deadline else ""
        )
        if self.lacks_since is not None:
            needed = f"the training goes on when {members.quorum} parties are here"
            return Situation("waiting", self.missing, self.lacks_since, needed + then)
        stalled = self.stalled
        if not stalled:
            return Situation("training", [])
        left = max(0.0, self._asked + self.agreement.timeouts.reply - time.monotonic())
        spared = len(members.present - set(stalled)) >= members.quorum
        after = "the others go on without it" if spared else f"the training waits for it{then}"
        told = f"if no answer comes within {left:.0f} s, {after}"
        return Situation("stalled", stalled, self._asked, told)

    def status(self) -> dict[str, Any]:
        """Return the part of the status that is about this training."""
        coordinator, record = self.coordinator, self.record
        return {
            "training": coordinator.training,
            "stage": self.name,
            "round": coordinator.round,
            "rounds": coordinator.rounds if coordinator.began else None,
            "valid_error": coordinator.config.error_of(record.history[-1]) if record.history else None,
            "best_error": coordinator.best.error if coordinator.best.round else None,
            "repeats": record.repeats,
        }

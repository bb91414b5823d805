"""One party's way through a federation: align users, run one training after the other, choose the gates, and complete the run.

Nobody waits for the gates: the party has left by then. After an interruption it starts again from the stored results. The protocol
itself is in `protocol.party`. `PartyService` connects it, in one training, to the link, the disk and the status page.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from verfedgnn.config import Config
from verfedgnn.config.rules import active_count
from verfedgnn.core.errors import DataError, ProtocolError
from verfedgnn.core.files import lock_folder, writing
from verfedgnn.data import PartyData, Ratings
from verfedgnn.data.ids import find_positions, sort_ids
from verfedgnn.data.parties import place_users
from verfedgnn.data.ratings import format_count
from verfedgnn.data.splits import suits
from verfedgnn.federation.agreement import Stage, describe_two_parties
from verfedgnn.federation.certificates import COORDINATOR
from verfedgnn.federation.coordinator_link import CoordinatorLink
from verfedgnn.federation.event_log import log_event, log_warning
from verfedgnn.federation.roster import MemberIdentity
from verfedgnn.federation.stores import PartyCheckpoints, PartyStore, StageResult, SurvivorLog, open_ledger
from verfedgnn.federation.transcript import ALIGNMENT, SPENT
from verfedgnn.privacy.accounting import SECRET, SIMULATED, privacy_report
from verfedgnn.privacy.id_matching import Each
from verfedgnn.protocol.messages import (
    AlignStart,
    Finish,
    Finished,
    Message,
    RoundReply,
    RoundShares,
    RoundStart,
    Sealed,
    ShareRequest,
    Survivors,
    UserRows,
    Waiting,
    Welcome,
)
from verfedgnn.protocol.party import Candidate, FinishedTraining, Party
from verfedgnn.protocol.party_setup import Policy
from verfedgnn.protocol.public_state import mean_error
from verfedgnn.protocol.release_ledger import GRADIENT, NEIGHBOURHOODS, VALIDATION
from verfedgnn.protocol.states import PARTY_STATES, Event, PartyEvent, PartyState
from verfedgnn.protocol.user_alignment import PartyAlignment, check_user_count, describe_reveals
from verfedgnn.runs.forget_record import ForgottenUsers, gather_forgotten
from verfedgnn.runs.ledger import Ledger
from verfedgnn.runs.metrics_file import history_entry, round_seconds
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.prepared_data import Prepared, prepare
from verfedgnn.runs.run import Run, read_history, write_history
from verfedgnn.runs.run_before import find_before, read_before, recorded_before, suspect_files, write_before
from verfedgnn.runs.run_folder import FORGOTTEN
from verfedgnn.training.finished import Trained, make_run
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
        self._record_validation(reply)
        self.publisher.close_round()

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

    def _record_validation(self, reply: RoundReply) -> None:
        """Add this party's validation error to its history, if the round had a validation."""
        if reply.error is None or not reply.count:
            return
        error = mean_error(reply.error, reply.count, self.config)
        entry = history_entry(reply.round, error, self.config, self.link.ledger, self.seconds)
        self.history = [*(e for e in self.history if e["round"] < reply.round), entry]
        with writing(self.folder):
            write_history(self.folder, self.history)
        about = {"stage": self.stage.name, "round": reply.round}
        log_event("validated", **about, own_valid_error=error, epsilon_spent=self.ledger.epsilon)

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


# -- alignment, and all trainings ------------------------------------------------------------------------------------------


def align_party(
    store: PartyStore,
    link: CoordinatorLink,
    ratings: Ratings,
    each: Each = map,
    *,
    pad_to: int = 0,
    after: Path | None = None,
) -> int:
    """Align the users of `ratings` with the other parties, store the result and return the number of users in the federation.

    `pad_to` is the number of users to announce at least. Users whom the party has forgotten, in the run `after` or another of its
    runs, are left out.
    """
    identity = store.identity
    earlier = [] if after is None else [after]
    forgotten = gather_forgotten(identity.key_file, *earlier, store.folder)
    gone = forgotten.find(ratings.user_ids, federated=True)
    if gone.any():
        count = format_count(int(gone.sum()), "forgotten user")
        log_warning(f"left out {count}; remove them from your own data, too")
        ratings = ratings.select_users(~gone)
    data, alignment = _align(ratings, identity, link, each, pad_to)
    (prepared,) = prepare(
        [data], identity.agreement.config, torch.device("cpu"), secrets=[store.withholding_secret]
    )
    _say_split(prepared, identity.agreement.config)
    store.save_alignment(prepared, alignment)
    if forgotten.hashes:
        ForgottenUsers(forgotten.hashes).write(store.folder / FORGOTTEN)
    link.transcript.note(ALIGNMENT, name=alignment, users=data.ratings.n_users)
    link.transcript.sign()
    return data.ratings.n_users


def _align(
    ratings: Ratings, identity: MemberIdentity, link: CoordinatorLink, each: Each, pad_to: int
) -> tuple[PartyData, str]:
    """Return the party's data over the rows of the federation, and the name of the alignment.

    Rows of users whom this party does not know have the id "".
    """
    agreement = identity.agreement
    if agreement.alignment == "none":
        check_user_count(ratings.n_users, agreement.min_users)
        return _align_equal_lists(ratings, identity.name)
    party = PartyAlignment(
        identity.name,
        ratings.user_ids,
        agreement.alignment,
        agreement.digest(),
        identity,
        each,
        pad_to=pad_to,
        most_users=agreement.max_users,
        fewest_users=agreement.min_users,
        rule=agreement.config.users,
    )
    about = {"users": ratings.n_users - party.ambiguous, "ambiguous": party.ambiguous or None}
    log_event("aligning users", method=agreement.alignment, rule=agreement.config.users, **about)
    log_event(describe_reveals(agreement.alignment, agreement.config.users))
    _exchange(party, link)
    assert party.rows is not None
    taking_part = int((party.rows >= 0).sum())
    log_event("users aligned", rows=party.users, own=taking_part, left_out=ratings.n_users - taking_part)
    ids = np.full(party.users, "", ratings.user_ids.dtype)
    ids[party.rows[party.rows >= 0]] = ratings.user_ids[party.rows >= 0]
    placed = place_users(ratings, party.rows, ids, agreement.config.users)
    return PartyData(identity.name, replace(placed, name=identity.name)), party.alignment


def _exchange(party: PartyAlignment, link: CoordinatorLink) -> None:
    """Send and receive messages until the party has its rows."""
    greeted = False

    def hello() -> Message:
        nonlocal greeted
        greeted = True
        return party.hello()

    link.greet()
    while party.rows is None:
        message = link.receive(hello, lambda: not greeted)
        if isinstance(message, AlignStart | Sealed | UserRows):
            try:
                answers = party.handle(message)
            except (DataError, ProtocolError) as error:
                link.refuse(error)
                raise
            for answer in answers:
                link.send(answer)


def _align_equal_lists(ratings: Ratings, name: str) -> tuple[PartyData, str]:
    """Sort the users by id; the name of the alignment is a hash of the list, which has to be the same everywhere."""
    users = sort_ids(ratings.user_ids)
    digest = hashlib.sha256("\n".join(users.tolist()).encode()).hexdigest()
    placed = place_users(ratings, find_positions(ratings.user_ids, users), users)
    return PartyData(name, replace(placed, name=name)), digest


def run_party(
    store: PartyStore,
    link: CoordinatorLink,
    read_ratings: Callable[[], Ratings],
    *,
    each: Each = map,
    pad_to: int = 0,
    device: str = "cpu",
    after: Path | None = None,
    on_start: Callable[[PartyService], None] = lambda service: None,
) -> Run:
    """Align unless `store` holds aligned users, train to the end, and return the finished run.

    `read_ratings` is called only when users are aligned; `pad_to` is that of `align_party`. `on_start` receives the service of each
    training that is started. `after` is the folder of the party's run before this one. Other members need not know it.
    """
    if store.is_trained:
        return load_finished(store, device)
    _compare_with_before(store, after, read_ratings)
    while (stage := store.next_stage) is not None:
        if not store.is_aligned:
            align_party(store, link, read_ratings(), each, pad_to=pad_to, after=after)
        limits = describe_two_parties(store.identity.agreement)
        if stage.first and limits is not None:
            log_event(limits)
        service = PartyService(store, stage, link, device=device)
        on_start(service)
        try:
            service.run()
        except Realign:
            log_warning("another party has no aligned users, aligning again")
            store.clear()
            link.stage = ALIGNMENT
            link.model = None
    link.transcript.finish()
    link.transport.close()  # the coordinator is not needed to choose the gate
    publisher = link.publisher
    publisher.update(lambda: publisher.status | {"state": "choosing the gate"}, now=True)
    run = complete_run(store, device)
    _warn_of_forgotten(store, run)
    publisher.update(lambda: publisher.status | {"state": "finished"}, now=True)
    return run


def _compare_with_before(store: PartyStore, after: Path | None, read_ratings: Callable[[], Ratings]) -> None:
    """Record the run before this one and warn if the ratings are not of its kind; say how to name it if it is not named."""
    name = store.identity.name
    if after is None:
        earlier = find_before(store.folder, name)
        if earlier is not None and recorded_before(store.folder) is None:
            log_warning(f"the ratings are not compared with the run before; name it with --after {earlier}")
        return
    party = store.load(torch.device("cpu"))[0].party if store.is_aligned else PartyData(name, read_ratings())
    before = read_before(after, [party])
    for suspicion in suspect_files(after, before):
        log_warning(suspicion)
    write_before(store.folder, before)


def load_finished(store: PartyStore, device: str = "cpu") -> Run:
    """Return the run of a party whose trainings are over, after choosing its gates if it was stopped before that."""
    log_event("this run has already finished", run=str(store.folder))
    if store.is_finished:
        return Run.load(store.folder, added=False)
    with lock_folder(store.folder):
        return complete_run(store, device)


def _warn_of_forgotten(store: PartyStore, run: Run) -> None:
    """Warn of users in a finished run who were forgotten, in another run of the party, after its users were aligned."""
    forgotten = gather_forgotten(store.identity.key_file, store.folder)
    gone = forgotten.find(run.parties[0].ratings.user_ids, federated=True)
    if gone.any():
        count = format_count(int(gone.sum()), "user")
        log_warning(f"this run has {count} forgotten since the alignment; forget them in {store.folder}, too")


# -- the run folder ---------------------------------------------------------------------------------------------------------


def complete_run(store: PartyStore, device: str = "cpu") -> Run:
    """Choose the gate of every training, write the run folder and return the run."""
    chosen = torch.device(device)
    prepared, _ = store.load(chosen)
    trained: dict[int | None, list[Trained]] = {None: []}
    for stage in store.stages:
        result = store.read_result(stage)
        assert result is not None, "all trainings have finished"
        group = None if stage.continues is None else 0
        if result.rounds:
            history = read_history(stage.folder(store.folder))
            trained.setdefault(group, []).append(_read_trained(result, history, chosen))
    log_event("training alone to choose the gate")
    run = make_run([prepared], store.stages[0].config, trained[None], trained.get(0, []), folder=store.folder)
    for sentence in run.metrics.get("lift", {}).get("verdicts", [{"sentences": []}])[0]["sentences"]:
        log_event(sentence)
    before = recorded_before(store.folder)
    if before is not None:
        run.metrics["after"] = before
    run.complete_folder(store.folder)
    store.remove_results()
    return run


def _read_trained(result: StageResult, history: list[dict[str, Any]], device: torch.device) -> Trained:
    """Return a stored result as that of a training on one machine."""
    arrays = {key: value.to(device) for key, value in result.arrays.items()}
    public = arrays.pop("public")
    figures = result.figures
    return Trained(
        [PartyModel.from_arrays(arrays)],
        public,
        result.rounds,
        figures["best_round"],
        figures["seconds"],
        figures["ratings"],
        history,
        result.ledger,
        figures["privacy"],
    )


def _say_split(prepared: Prepared, config: Config) -> None:
    """Say how the party's ratings are judged, and what a party without dates cannot check."""
    if config.split.kind != "auto" or len(prepared.newcomers) + len(prepared.test) == 0:
        return
    by_date = prepared.party.ratings.time is not None and suits(prepared.party.ratings, config.split.dates)
    if by_date:
        log_event("judged by date", since=str(config.split.dates and config.split.dates[1]))
    else:
        log_warning(
            "judged on ratings at random: without dates in the agreement and enough customers after them, a product that another "
            "party lists, too, can make joining look better than it is"
        )

"""One party's way through a federation: align users, run one training after the other, choose the gates, and complete the run.

Nobody waits for the gates: the party has left by then. After an interruption it starts again from the stored results. The protocol
itself is in `protocol.party`. `PartyService` connects it, in one training, to the link, the disk and the status page.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from verfedgnn.config import Config
from verfedgnn.config.rules import active_count
from verfedgnn.core.errors import ConfigError, DataError, ProtocolError
from verfedgnn.core.files import lock_folder, make_folder
from verfedgnn.data import PartyData, Ratings
from verfedgnn.data.ids import find_positions, sort_ids, suspect_spelling
from verfedgnn.data.parties import place_users
from verfedgnn.data.rating_reader import spell_users
from verfedgnn.data.ratings import format_count
from verfedgnn.evaluation.verdict import summarise_verdict
from verfedgnn.federation.agreement import Stage, describe_two_parties
from verfedgnn.federation.certificates import COORDINATOR
from verfedgnn.federation.coordinator_link import CoordinatorLink
from verfedgnn.federation.event_log import log_event, log_warning
from verfedgnn.federation.roster import MemberIdentity
from verfedgnn.federation.stores import PartyStore, SurvivorLog, open_ledger
from verfedgnn.federation.transcript import ALIGNMENT, SPENT
from verfedgnn.privacy.accounting import SECRET, SIMULATED, privacy_report
from verfedgnn.protocol import messages as msg
from verfedgnn.protocol.coordinator import mean_error
from verfedgnn.protocol.party import Candidate, Party
from verfedgnn.protocol.party_state import Policy
from verfedgnn.protocol.release_ledger import GRADIENT, NEIGHBOURHOODS, VALIDATION
from verfedgnn.protocol.states import PARTY_STATES, Event, PartyEvent, PartyState
from verfedgnn.protocol.user_alignment import PartyAlignment, check_user_count, describe_reveals
from verfedgnn.runs.forget_record import gather_forgotten, write_party_run
from verfedgnn.runs.prepared_data import prepare
from verfedgnn.runs.run import Run, read_run_config, suspect_files
from verfedgnn.training.gate import make_run
from verfedgnn.training.own_models import liked

MaskMessage = msg.ShareRequest | msg.RoundShares | msg.Survivors


class Realign(Exception):
    """The coordinator asks all parties to align again, because another party has no aligned users."""


def run_party(
    store: PartyStore,
    link: CoordinatorLink,
    read_ratings: Callable[[], Ratings],
    *,
    pad_to: int = 0,
    device: str = "cpu",
    after: Path | None = None,
) -> Run:
    """Align unless `store` holds aligned users, train to the end, and return the finished run.

    `read_ratings` is called only when users are aligned; `pad_to` is that of `align_party`. `after` is the folder of the party's run
    before this one. Other members need not know it.
    """
    if after is not None:
        _compare_with_before(store, after, read_ratings)
    while (stage := store.next_stage) is not None:
        if not store.is_aligned:
            align_party(store, link, read_ratings(), pad_to=pad_to, after=after)
        limits = describe_two_parties(store.identity.agreement)
        if stage.first and limits is not None:
            log_event(limits)
        try:
            PartyService(store, stage, link, device=device).run()
        except Realign:
            log_warning("another party has no aligned users, aligning again")
            store.clear()
    link.transcript.finish()
    link.transport.close()  # the coordinator is not needed to choose the gate
    link.publisher.change(state="choosing the gate")
    run = complete_run(store, device)
    _warn_of_forgotten(store, run)
    link.publisher.change(state="finished")
    return run


def read_verdict(run: Path | None, config: Config, party: str) -> dict[str, str]:
    """Return the verdict on a run, as a party shares it; empty if there is none. Raise `ConfigError` where ratings are protected."""
    if config.gradients.protects_ratings:
        raise ConfigError(
            "this federation protects single ratings, and a verdict is not protected; omit --share-verdict"
        )
    if run is None or not (run / "metrics.json").is_file():
        return {}
    lift = json.loads((run / "metrics.json").read_text("utf-8")).get("lift")
    if lift is None:
        return {}
    word, gain = summarise_verdict(lift, party)
    return {"run": run.resolve().name, "word": word, "gain": gain}


def load_finished(store: PartyStore, device: str = "cpu") -> Run:
    """Return the run of a party whose trainings are over, after choosing its gates if it was stopped before that."""
    log_event("this run has already finished", run=str(store.folder))
    if store.is_finished:
        return Run.load(store.folder, added=False)
    with lock_folder(store.folder):
        return complete_run(store, device)


def complete_run(store: PartyStore, device: str = "cpu") -> Run:
    """Choose the gate of every training, write the run folder and return the run."""
    prepared, _ = store.load(device)
    results = [(stage.continues is None, store.record(stage).read_result(device)) for stage in store.stages]
    judged, final = (
        [
            result
            for is_judged, result in results
            if is_judged is kind and result is not None and result.rounds
        ]
        for kind in (True, False)
    )
    log_event("training alone to choose the gate")
    config = store.stages[0].config
    run = make_run([prepared], config, judged, final, folder=store.folder)
    for verdict in run.metrics.get("lift", {}).get("verdicts", [])[:1]:
        for sentence in verdict["sentences"]:
            log_event(sentence)
    store.remove_results()
    return run


def _compare_with_before(store: PartyStore, after: Path, read_ratings: Callable[[], Ratings]) -> None:
    """Warn if the ratings are not of the kind of the run before this one."""
    aligned = store.is_aligned
    party = store.load()[0].party if aligned else PartyData(store.identity.name, read_ratings())
    for suspicion in suspect_files(after, [party]):
        log_warning(suspicion)


def _warn_of_forgotten(store: PartyStore, run: Run) -> None:
    """Warn of users in a finished run who were forgotten, in another run of the party, after its users were aligned."""
    forgotten = gather_forgotten(store.identity.key_file, store.folder)
    (gone,) = forgotten.find_at(run.parties)
    if gone.any():
        count = format_count(int(gone.sum()), "user")
        log_warning(f"this run has {count} forgotten since the alignment; forget them in {store.folder}, too")


# -- alignment -----------------------------------------------------------------------------------------


def align_party(
    store: PartyStore,
    link: CoordinatorLink,
    ratings: Ratings,
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
    for run in earlier:
        read_run_config(run)  # raises if there is none, and so no list of forgotten users
    forgotten = gather_forgotten(identity.key_file, *earlier, store.folder)
    spelled = spell_users(ratings, identity.agreement.ids)
    (party,), _, gone = forgotten.leave_out([PartyData(identity.name, spelled)])
    ratings = party.ratings
    if gone:
        count = format_count(gone, "forgotten user")
        log_warning(f"left out {count}; remove them from your own data, too")
    config = identity.agreement.sized_config
    check_kind(ratings, config)
    if identity.agreement.alignment == "none":
        check_user_count(ratings.n_users, identity.agreement.min_users)
        ids = sort_ids(ratings.user_ids)
        rows = find_positions(ratings.user_ids, ids)
        alignment = hashlib.sha256("\n".join(ids.tolist()).encode()).hexdigest()  # the same everywhere
    else:
        rows, alignment, users = _align(ratings, identity, link, pad_to)
        ids = np.full(users, "", ratings.user_ids.dtype)  # of users whom this party does not know
        ids[rows[rows >= 0]] = ratings.user_ids[rows >= 0]
    placed = replace(place_users(ratings, rows, ids, config.users), name=identity.name)
    data = PartyData(identity.name, placed)
    (prepared,) = prepare([data], config, torch.device("cpu"), secrets=[store.withholding_secret])
    make_folder(store.folder)
    # first, so that after a kill no run with users is without a list
    write_party_run(store.folder, forgotten, identity.key_file)
    store.save_alignment(prepared, alignment)
    link.transcript.note(ALIGNMENT, name=alignment, users=placed.n_users)
    link.transcript.sign()
    return placed.n_users


def check_kind(ratings: Ratings, config: Config) -> None:
    """Raise `DataError` if a party has likes and its federation trains ratings, or no like for a training of lists."""
    problem = ""
    if config.trains_lists and ratings.likes == len(ratings):
        problem = "likes and no ratings, and this federation trains ratings; agree on lists alone"
        biases = "false"
    elif config.ranks and not ratings.likes:
        problem, biases = "ratings without a like, and this federation trains lists; agree on ratings", "true"
    if problem:
        raise DataError(
            f"{ratings.name} has {problem}, with `verfedgnn federation init --set model.biases={biases}`, or the coordinator writes "
            f"biases = {biases} in its federation.toml and starts again, and each party runs `verfedgnn federation accept`"
        )


def _align(
    ratings: Ratings, identity: MemberIdentity, link: CoordinatorLink, pad_to: int
) -> tuple[NDArray[np.int64], str, int]:
    """Return the row of each user in the federation, the name of the alignment, and the number of rows."""
    rules = identity.agreement.alignment_rules
    party = PartyAlignment(identity.name, ratings.user_ids, rules, identity, pad_to=pad_to)
    about = {"users": ratings.n_users - party.ambiguous, "ambiguous": party.ambiguous or None}
    log_event("aligning users", method=rules.method, rule=rules.users, **about)
    log_event(describe_reveals(rules.method, rules.users))
    link.begin(ALIGNMENT, party.hello)
    while party.rows is None:
        try:
            message = link.receive()
        except ProtocolError as error:
            cause = suspect_spelling(ratings.user_ids) if "common users" in str(error) else ""
            raise ProtocolError(f"{error}. {cause}" if cause else str(error)) from None
        if isinstance(message, msg.AlignStart | msg.Sealed | msg.UserRows):
            with link.refusing():
                link.send(*party.handle(message))
    own = int((party.rows >= 0).sum())
    log_event("users aligned", rows=party.users, own=own, left_out=ratings.n_users - own)
    return party.rows, party.alignment, party.users


# -- one training -------------------------------------------------------------------------------------


class PartyService:
    """One training of a party, from Hello to its stored result."""

    def __init__(
        self, store: PartyStore, stage: Stage, link: CoordinatorLink, *, device: str = "cpu"
    ) -> None:
        self.store = store
        self.stage = stage
        self.link = link
        self.publisher = link.publisher
        self.identity = store.identity
        self.config = stage.config
        self.record = record = store.record(stage, link.transcript.ledgers[stage.name])
        record.begin()
        prepared, alignment = store.load(device)
        judged = None
        if stage.continues is not None:
            judged = store.record(store.stages[stage.continues]).read_result(device)
            prepared = prepared.with_everything(store.stages[0].config)
        self.data = data = prepared.input
        self.takes_part = stage.first or not self.config.ranks or bool(len(liked(data.train, data.scale)))
        """Whether the party has ratings to train on; lists need liked items."""
        self.takes_part &= judged is None or bool(judged.rounds)
        config = self.config if self.takes_part else store.stages[0].config
        agreement = self.identity.agreement
        active = active_count(self.config, len(agreement.parties))
        policy = Policy(
            agreement.digest(),
            alignment,
            self.identity,
            smallest=min(agreement.quorum, active) if self.config.masking else 1,
            place=(self.identity.index, len(agreement.parties)),
            most_rounds=agreement.max_rounds,
            fresh_noise="noise" not in self.config.unprotected,
        )
        self.ledger = open_ledger(record.folder, config)
        """What this party has released in this training."""
        self.ledger.check_age(link.transcript.released[stage.name], str(link.transcript.file))
        self.candidate = Candidate(
            data,
            config,
            record.secret,
            device,
            policy,
            ledger=self.ledger,
            commitments=SurvivorLog(record.folder / "survivors.jsonl"),
            start=None if judged is None or not judged.rounds else judged.public,
        )
        self.progress = self.candidate.progress
        self.party: Party | None = None
        """The party of the present stay; None until it has joined."""
        self.state = PartyState.GREETING
        self.round = record.restore(self.progress, self.ledger)

    def run(self) -> None:
        """Answer the coordinator until the training is over and its result is stored."""
        self.publisher.start_stage()
        about = {"stage": self.stage.name, "party": self.identity.name, "round": self.round}
        about |= {"users": self.data.users, "items": self.data.items, "epsilon_spent": self.ledger.epsilon}
        log_event("party ready", **about)
        self.link.begin(self.stage.name, self._hello, self.candidate)
        while self.state is not PartyState.FINISHED:
            message = self.link.receive(self.status, lambda: self.state is PartyState.GREETING)
            with self.link.refusing():
                self._handle(message)
            self.publisher.update(self.status)

    def _hello(self) -> msg.Message:
        self.state = PARTY_STATES.after(self.state, PartyEvent.SAY_HELLO)
        hello = self.candidate.hello()
        if self.takes_part:
            return hello
        return hello.model_copy(update={"config": self.config.digest(), "ratings": 0})

    def _handle(self, message: msg.Message) -> None:
        """Act on a message."""
        event: Event = type(message)
        if isinstance(message, msg.Waiting) and message.align:
            event = msg.AlignStart
        elif isinstance(message, msg.Finish) and message.round == 0 and not self.stage.first:
            event = PartyEvent.SKIP
        if event is msg.AlignStart and (self.progress.training is not None or not self.stage.first):
            problem = "the coordinator asked to align users again during a training"
            raise ProtocolError(f"{problem}; the training here is kept")
        late = isinstance(message, msg.Welcome) and message.stay != self.candidate.stay
        if late or PARTY_STATES.ignores(self.state, event):
            return
        self.state = PARTY_STATES.after(self.state, event)
        if self.state is PartyState.REALIGNING:
            raise Realign
        if isinstance(message, msg.Welcome):
            if self.takes_part:
                self.party = self.candidate.welcome(message)
                log_event("taking part", stage=self.stage.name, round=message.round, public=message.digest)
        elif isinstance(message, msg.Finish) and event is PartyEvent.SKIP:
            log_event("no lists are trained: a party is missing or has no rating that counts as a like")
            self.record.write_result(0, torch.zeros(1), {}, best_round=0, privacy={})
            self.link.send(msg.Finished(digest=message.digest))
        elif isinstance(message, msg.RoundStart | msg.Finish | MaskMessage):
            if self.party is None:
                raise ProtocolError("the coordinator goes on without parties that can take part")
            if isinstance(message, msg.RoundStart):
                self._answer_round(self.party, message)
            elif isinstance(message, msg.Finish):
                self._finish(self.party, message)
            else:
                self._answer_masks(self.party, message)

    def _answer_round(self, party: Party, message: msg.RoundStart) -> None:
        began = time.monotonic()
        if message.attempt:
            self.record.repeats += 1
            about = {"round": message.round, "attempt": message.attempt}
            log_event("round restarted", **about, parties=len(message.active))
        reply = party.answer_round(message)
        self.round = message.round
        spent = {} if self.ledger.epsilon is None else {"epsilon": self.ledger.epsilon}
        self.link.transcript.note(SPENT, self.stage.name, releases=len(self.ledger.entries), **spent)
        # before sending, so that this party remembers all it has sent
        self.record.write_progress(self.round, self.progress, self.ledger)
        self.link.send(reply)
        self.link.transcript.sign()  # while the others compute
        self.record.seconds += time.monotonic() - began
        if reply.error is not None and reply.count:
            error = mean_error(reply.error, reply.count, ranks=self.config.ranks)
            self.record.add_validation(message.round, error)
            said = {"own_valid_error": error, "epsilon_spent": self.ledger.epsilon}
            log_event("validated", stage=self.stage.name, round=message.round, **said)
        self.publisher.close_round()

    def _answer_masks(self, party: Party, message: MaskMessage) -> None:
        if isinstance(message, msg.Survivors) and message.signatures is None:
            lost = len(self.identity.agreement.parties) - len(message.survivors)
            if lost and self.config.training.participation == 1:
                log_event("sum without some parties", round=message.round, parties=len(message.survivors))
        answer = party.handle(message)
        if answer is not None:
            self.link.send(answer)

    def _finish(self, party: Party, message: msg.Finish) -> None:
        """Store the result and report it."""
        finished = party.finish(message)
        ledger = self.ledger
        privacy = privacy_report(
            party.replica.protection,
            releases=ledger.count(GRADIENT),
            exchanges=ledger.count(NEIGHBOURHOODS),
            exchange=party.exchange,
            validations=ledger.count(VALIDATION),
            randomness=SIMULATED if "noise" in self.config.unprotected else SECRET,
            parties=[self.data],
        )
        privacy["spent"] = ledger.summary()
        figures = {"best_round": message.best_round, "privacy": privacy}
        self.record.write_result(message.round, finished.public, finished.model, **figures)
        self.link.send(finished.reply)
        about = {"stage": self.stage.name, "rounds": message.round, "best_round": message.best_round}
        log_event("training finished", **about, public=finished.reply.digest)

    def status(self) -> dict[str, Any]:
        """Return the present status."""
        link, record = self.link, self.record
        about = link.status()
        errors = [self.config.error_of(entry) for entry in record.history]
        joined = self.state in (PartyState.JOINED, PartyState.FINISHED)
        state = "training" if joined else "joining"
        if link.waits_for:
            waiting = "stalled" if link.waits_for == [COORDINATOR] else "waiting"
            state = waiting if joined else "gathering"
        about["parties"][self.identity.name]["here"] = joined
        return about | {
            "training": self.progress.training,
            "state": state,
            "round": self.round,
            "rounds": None if self.party is None else self.party.replica.rounds,
            "valid_error": errors[-1] if errors else None,
            "best_error": min(errors, default=None),
            "repeats": record.repeats,
            "epsilon_spent": self.ledger.epsilon,
        }

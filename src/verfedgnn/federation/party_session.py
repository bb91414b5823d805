"""One party's way through a federation: align users, run one training after the other, choose the gates, and complete the run.

Nobody waits for the gates: the party has left by then. After an interruption it starts again from the stored results.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from verfedgnn.config import Config
from verfedgnn.core.errors import DataError, ProtocolError
from verfedgnn.core.files import lock_folder
from verfedgnn.data import PartyData, Ratings
from verfedgnn.data.ids import find_positions, sort_ids
from verfedgnn.data.parties import place_users
from verfedgnn.data.ratings import format_count
from verfedgnn.data.splits import suits
from verfedgnn.federation.agreement import describe_two_parties
from verfedgnn.federation.coordinator_link import CoordinatorLink
from verfedgnn.federation.event_log import log_event, log_warning
from verfedgnn.federation.party_service import PartyService, Realign
from verfedgnn.federation.roster import MemberIdentity
from verfedgnn.federation.stores import PartyStore, StageResult
from verfedgnn.federation.transcript import ALIGNMENT
from verfedgnn.privacy.id_matching import Each
from verfedgnn.protocol.messages import AlignStart, Message, Sealed, UserRows
from verfedgnn.protocol.user_alignment import PartyAlignment, check_user_count, describe_reveals
from verfedgnn.runs.forget_record import ForgottenUsers, gather_forgotten
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.prepared_data import Prepared, prepare
from verfedgnn.runs.run import Run, read_history
from verfedgnn.runs.run_before import find_before, read_before, recorded_before, suspect_files, write_before
from verfedgnn.runs.run_folder import FORGOTTEN
from verfedgnn.training.finished import Trained, make_run


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
    checkpoint_every: int = 1,
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
        service = PartyService(store, stage, link, checkpoint_every=checkpoint_every, device=device)
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

"""One party's way through a federation: align users, run one training after the other, and choose the gates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from verfedgnn.core.files import lock_folder
from verfedgnn.core.worker_group import WorkerGroup
from verfedgnn.data import Ratings
from verfedgnn.data.ids import StrArray
from verfedgnn.data.ratings import format_count
from verfedgnn.federation.agreement import Agreement
from verfedgnn.federation.agreement_summary import describe_two_parties
from verfedgnn.federation.coordinator_link import CoordinatorLink
from verfedgnn.federation.event_log import log_event, log_warning
from verfedgnn.federation.party_alignment import align
from verfedgnn.federation.party_run import complete_run
from verfedgnn.federation.party_service import PartyService, Realign
from verfedgnn.federation.party_store import PartyStore
from verfedgnn.federation.status_server import StatusPublisher
from verfedgnn.federation.transcript import ALIGNMENT
from verfedgnn.privacy.id_matching import Each
from verfedgnn.runs.forget_record import ForgottenUsers, gather_forgotten
from verfedgnn.runs.prepared_data import prepare
from verfedgnn.runs.run import Run
from verfedgnn.runs.run_layout import FORGOTTEN
from verfedgnn.runs.start_from import claim_ancestor


def align_party(
    store: PartyStore,
    link: CoordinatorLink,
    ratings: Ratings,
    each: Each = map,
    *,
    known: StrArray | None = None,
    pad_to: int = 0,
    start_from: Path | None = None,
) -> int:
    """Align the users of `ratings` with the other parties, store the result and return the number of users in the federation.

    Users of an earlier alignment, `known` by row, keep their rows. `pad_to` is the number of users to announce at least. Users whom
    the party has forgotten, in `start_from` or another of its runs, are left out.
    """
    identity = store.identity
    earlier = [] if start_from is None else [start_from]
    forgotten = gather_forgotten(identity.key_file, *earlier, store.folder)
    gone = forgotten.find(ratings.user_ids, federated=True)
    if gone.any():
        count = format_count(int(gone.sum()), "forgotten user")
        log_warning(f"left out {count}; remove them from your own data, too")
        ratings = ratings.select_users(~gone)
    data, alignment = align(ratings, identity, link, each, known=known, pad_to=pad_to)
    (prepared,) = prepare([data], identity.agreement.training_config, torch.device("cpu"))
    store.save_alignment(prepared, alignment)
    if forgotten.hashes:
        ForgottenUsers(forgotten.hashes).write(store.folder / FORGOTTEN)
    link.transcript.note(ALIGNMENT, name=alignment, users=data.ratings.n_users)
    link.transcript.sign()
    return data.ratings.n_users


def run_party(
    store: PartyStore,
    link: CoordinatorLink,
    publisher: StatusPublisher,
    read_ratings: Callable[[], Ratings],
    *,
    each: Each = map,
    known: StrArray | None = None,
    pad_to: int = 0,
    checkpoint_every: int = 1,
    device: str = "cpu",
    start_from: Path | None = None,
    workers: Callable[[], WorkerGroup | None] = lambda: None,
    on_start: Callable[[PartyService], None] = lambda service: None,
) -> Run:
    """Align unless `store` holds aligned users, train to the end, and return the finished run.

    `read_ratings` is called only when users are aligned; `known` and `pad_to` are those of `align_party`. `on_start` receives
    the service of each training that is started. `workers` returns the processes that share the party's users; it is called after
    the alignment. `start_from` is the folder of an earlier run of this party: users keep their
    rows, and users and items their parameters.
    """
    if store.is_trained:
        return load_finished(store, device)
    claim_ancestor(store.folder, start_from, store.identity.agreement.training_config)
    if start_from is not None:
        known = PartyStore.read_rows(start_from)
    while (stage := store.next_stage) is not None:
        if not store.is_aligned:
            align_party(store, link, read_ratings(), each, known=known, pad_to=pad_to, start_from=start_from)
        if stage.first:
            _log_limits(store.identity.agreement)
        service = PartyService(
            store,
            stage,
            link,
            publisher,
            checkpoint_every=checkpoint_every,
            device=device,
            start_from=start_from,
            workers=workers(),
        )
        on_start(service)
        try:
            service.run()
        except Realign:
            log_warning("another party has no aligned users, aligning again")
            store.clear()
            link.stage = ALIGNMENT
            link.blocks = None
    link.transcript.finish()
    link.close()  # the coordinator is not needed to choose the gate
    publisher.update(lambda: publisher.status | {"state": "choosing the gate"}, now=True)
    run = complete_run(store, device)
    _warn_of_forgotten(store, run)
    publisher.update(lambda: publisher.status | {"state": "finished"}, now=True)
    return run


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


def _log_limits(agreement: Agreement) -> None:
    limits = describe_two_parties(agreement)
    if limits is not None:
        log_event(limits)

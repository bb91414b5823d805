"""One party's way through a federation: align users, train, and align again where the coordinator asks for it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from verfedgnn.data import Ratings
from verfedgnn.data.ids import StrArray
from verfedgnn.federation.coordinator_link import CoordinatorLink
from verfedgnn.federation.event_log import log_event, log_warning
from verfedgnn.federation.party_alignment import align
from verfedgnn.federation.party_service import PartyService, Realign, choose_gate
from verfedgnn.federation.party_store import PartyStore
from verfedgnn.federation.status_server import StatusPublisher
from verfedgnn.privacy.id_matching import Each
from verfedgnn.runs.prepared_data import prepare
from verfedgnn.runs.run import Run


def align_party(
    store: PartyStore,
    link: CoordinatorLink,
    ratings: Ratings,
    each: Each = map,
    *,
    known: StrArray | None = None,
    pad_to: int = 0,
) -> int:
    """Align the users of `ratings` with the other parties, store the result and return the number of users in the federation.

    Users of an earlier alignment, `known` by row, keep their rows. `pad_to` is the number of users to announce at least.
    """
    identity = store.identity
    data, alignment = align(ratings, identity, link, each, known=known, pad_to=pad_to)
    (prepared,) = prepare([data], identity.agreement.config, torch.device("cpu"))
    store.save_alignment(prepared, alignment)
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
    on_start: Callable[[PartyService], None] = lambda service: None,
) -> Run:
    """Align unless `store` holds aligned users, train to the end, and return the finished run.

    `read_ratings` is called only when users are aligned; `known` and `pad_to` are those of `align_party`. `on_start` receives
    the service of each attempt to train.
    """
    while True:
        if not store.is_aligned:
            align_party(store, link, read_ratings(), each, known=known, pad_to=pad_to)
        service = PartyService(store, link, publisher, checkpoint_every=checkpoint_every, device=device)
        on_start(service)
        try:
            return service.run()
        except Realign:
            log_warning("another party has no aligned users, aligning again")
            store.clear()


def load_finished(store: PartyStore) -> Run:
    """Return the run of a finished party, after choosing its gate if it was stopped before that."""
    log_event("this run has already finished", run=str(store.folder))
    return choose_gate(store.folder) if store.needs_gate else Run.load(store.folder)

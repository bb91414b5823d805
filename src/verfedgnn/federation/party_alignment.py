"""A party's users brought into the order that all parties share."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from verfedgnn.core.errors import DataError, ProtocolError
from verfedgnn.data import PartyData, Ratings
from verfedgnn.data.ids import find_positions, sort_ids
from verfedgnn.federation.coordinator_link import CoordinatorLink
from verfedgnn.federation.event_log import log_event
from verfedgnn.federation.identity import MemberIdentity
from verfedgnn.privacy.id_matching import Each
from verfedgnn.protocol.user_alignment import REVEALS, Guest
from verfedgnn.protocol.wire.alignment_messages import AlignStart, Common, Sealed
from verfedgnn.protocol.wire.messages import Message


def align(
    ratings: Ratings, identity: MemberIdentity, link: CoordinatorLink, each: Each = map
) -> tuple[PartyData, str]:
    """This party's data with the common users only, in the order everybody has, and the name of that order."""
    agreement = identity.agreement
    if agreement.alignment == "none":
        users = sort_ids(ratings.user_ids)
        rows = find_positions(users, ratings.user_ids)
        digest = hashlib.sha256("\n".join(users.tolist()).encode()).hexdigest()[:32]
        return _restricted(ratings, rows, identity.name), digest
    guest = Guest(
        identity.name, ratings.user_ids, agreement.alignment, agreement.fingerprint(), identity, each
    )
    log_event(
        "aligning users", method=agreement.alignment, users=len(guest.ids), ambiguous=guest.ambiguous or None
    )
    log_event(REVEALS[agreement.alignment])
    greeted = False

    def hello() -> Message:
        nonlocal greeted
        greeted = True
        return guest.hello()

    link.greet()
    while guest.rows is None:
        message = link.receive(hello, lambda: not greeted)
        if isinstance(message, AlignStart | Sealed | Common):
            try:
                answers = guest.handle(message)
            except (DataError, ProtocolError) as error:
                link.refuse(error)
                raise
            for answer in answers:
                link.send(answer)
    assert guest.session is not None
    log_event("users aligned", common=len(guest.rows), left_out=len(ratings.user_ids) - len(guest.rows))
    return _restricted(ratings, guest.rows, identity.name), guest.session


def _restricted(ratings: Ratings, rows: NDArray[np.int64], name: str) -> PartyData:
    kept = ratings.select_users(rows)
    dropped = ratings.n_users - kept.n_users
    if dropped:
        kept = kept.with_notes(
            f"kept {kept.n_users:,} of {ratings.n_users:,} users, those that every party has"
        )
    return PartyData(name, replace(kept, name=name))

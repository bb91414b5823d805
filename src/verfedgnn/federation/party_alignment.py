"""A party's alignment over the network: its users get the rows that all parties share."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np

from verfedgnn.core.errors import DataError, ProtocolError
from verfedgnn.data import PartyData, Ratings
from verfedgnn.data.ids import StrArray, find_positions, sort_ids
from verfedgnn.data.parties import note_dropped, place_users
from verfedgnn.federation.coordinator_link import CoordinatorLink
from verfedgnn.federation.event_log import log_event
from verfedgnn.federation.identity import MemberIdentity
from verfedgnn.privacy.id_matching import Each
from verfedgnn.protocol.user_alignment.party_side import PartyAlignment, check_user_count
from verfedgnn.protocol.user_alignment.reveals import describe_reveals
from verfedgnn.protocol.wire.alignment_messages import AlignStart, Sealed, UserRows
from verfedgnn.protocol.wire.messages import Message


def align(
    ratings: Ratings,
    identity: MemberIdentity,
    link: CoordinatorLink,
    each: Each = map,
    *,
    known: StrArray | None = None,
    pad_to: int = 0,
) -> tuple[PartyData, str]:
    """Align this party's users with those of the others.

    Args:
        ratings: The party's own table.
        identity: The party and its federation file.
        link: The connection to the coordinator.
        each: A `map`, perhaps over several processes.
        known: Ids by row from an earlier alignment; these users keep their rows.
        pad_to: Number of users to announce at least, in order to hide how many there are.

    Returns:
        The party's data over the rows of the federation, and the name of the alignment. Rows of users whom this party does
        not know have the id "".
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
        known=known,
        pad_to=pad_to,
        most_users=agreement.max_users,
        fewest_users=agreement.min_users,
        rule=agreement.config.users,
    )
    log_event(
        "aligning users",
        method=agreement.alignment,
        rule=agreement.config.users,
        users=ratings.n_users - party.ambiguous,
        ambiguous=party.ambiguous or None,
    )
    log_event(describe_reveals(agreement.alignment, agreement.config.users))
    _exchange(party, link)
    assert party.rows is not None
    taking_part = int((party.rows >= 0).sum())
    log_event("users aligned", rows=party.users, own=taking_part, left_out=ratings.n_users - taking_part)
    ids = np.full(party.users, "", ratings.user_ids.dtype)
    ids[party.rows[party.rows >= 0]] = ratings.user_ids[party.rows >= 0]
    placed = place_users(ratings, party.rows, ids)
    notes = note_dropped(ratings, placed, party.rows, agreement.config.users)
    return PartyData(identity.name, replace(placed.with_notes(*notes), name=identity.name)), party.alignment


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

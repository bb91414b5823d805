"""The states of a party towards the coordinator, and what may follow what.

    GREETING --Waiting--> QUEUED --Welcome--> JOINED --Finish--> FINISHED
        '---------------Welcome---------------^   '-- ShareRequest, TripShares, RoundStart, Survivors: stays JOINED

After every lost connection a party says hello again and is GREETING. Until it has joined, the coordinator may ask it to align its
users again, or to skip the training.
"""

from __future__ import annotations

from enum import Enum

from verfedgnn.protocol.state_table import StateTable
from verfedgnn.protocol.wire.alignment_messages import AlignStart, Sealed, UserRows
from verfedgnn.protocol.wire.messages import (
    Finish,
    Message,
    RoundStart,
    ShareRequest,
    Survivors,
    TripShares,
    Waiting,
    Welcome,
)


class PartyState(Enum):
    """State of a party."""

    GREETING = "waiting for an answer to its Hello"
    QUEUED = "waiting for other parties"
    REALIGNING = "aligning its users again"
    JOINED = "taking part in a training"
    FINISHED = "finished"


class PartyEvent(Enum):
    """Events other than a received message."""

    SAY_HELLO = "say hello"
    SKIP = "skip a training that does not take place"


OF_LAST_STAY: frozenset[type[Message]] = frozenset(
    {ShareRequest, TripShares, RoundStart, Survivors, Finish, Sealed, UserRows}
)
"""Messages that a party ignores until it has joined again."""

PARTY_STATES = StateTable(
    transitions={
        PartyState.GREETING: {
            PartyEvent.SAY_HELLO: PartyState.GREETING,
            Waiting: PartyState.QUEUED,
            AlignStart: PartyState.REALIGNING,
            PartyEvent.SKIP: PartyState.FINISHED,
            Welcome: PartyState.JOINED,
        },
        PartyState.QUEUED: {
            PartyEvent.SAY_HELLO: PartyState.GREETING,
            Waiting: PartyState.QUEUED,
            AlignStart: PartyState.REALIGNING,
            PartyEvent.SKIP: PartyState.FINISHED,
            Welcome: PartyState.JOINED,
        },
        PartyState.REALIGNING: {},
        PartyState.JOINED: {
            PartyEvent.SAY_HELLO: PartyState.GREETING,
            Waiting: PartyState.JOINED,
            ShareRequest: PartyState.JOINED,
            TripShares: PartyState.JOINED,
            RoundStart: PartyState.JOINED,
            Survivors: PartyState.JOINED,
            PartyEvent.SKIP: PartyState.FINISHED,
            Finish: PartyState.FINISHED,
        },
        PartyState.FINISHED: {},
    },
    remedies={
        PartyState.GREETING: "the coordinator should send Waiting or Welcome first",
        PartyState.QUEUED: "the coordinator should send Welcome first",
        PartyState.REALIGNING: "the coordinator should wait until this party says hello again",
        PartyState.JOINED: "the coordinator should send RoundStart or Finish",
        PartyState.FINISHED: "the training is over; start a new one",
    },
    late={
        PartyState.GREETING: OF_LAST_STAY,
        PartyState.QUEUED: OF_LAST_STAY,
        PartyState.JOINED: frozenset({Welcome, Sealed, UserRows}),
    },
)
"""The party's state machine. A Waiting that asks to align again counts as an AlignStart."""

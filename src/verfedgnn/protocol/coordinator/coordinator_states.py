"""The states of a coordinator, and what may follow what.

    GATHERING --all joined--> IDLE --open--> TRIP --close--> IDLE --finish--> FINISHING

With masks, a trip has more steps. It can be opened again, or abandoned, in each of them:

    IDLE --ask for shares--> SHARING --open--> TRIP --unmask--> UNMASKING --close--> IDLE
                                                '--agree--> AGREEING --unmask--^

    GATHERING --cancel--> CANCELLED

Parties may say hello, or be lost, in every state. Users are aligned while the coordinator is GATHERING.
"""

from __future__ import annotations

from enum import Enum

from verfedgnn.protocol.state_table import Event, StateTable
from verfedgnn.protocol.wire.alignment_messages import Aligned, AlignHello, Pseudonyms, Sealed
from verfedgnn.protocol.wire.messages import (
    Finished,
    Hello,
    ListSignature,
    MaskShares,
    Refused,
    RoundReply,
    Unmask,
)


class CoordinatorState(Enum):
    """State of a coordinator."""

    GATHERING = "waiting for all parties to join"
    IDLE = "training, between two trips"
    SHARING = "training, waiting for mask shares"
    TRIP = "training, waiting for replies"
    AGREEING = "training, waiting for signatures of the survivor list"
    UNMASKING = "training, waiting for shares to unmask a sum"
    FINISHING = "training is over"
    CANCELLED = "the training does not take place"


class CoordinatorAction(Enum):
    """Events other than a received message."""

    START_TRAINING = "start the training"
    ASK_FOR_SHARES = "ask for mask shares"
    OPEN = "open a trip"
    AGREE = "agree on a survivor list"
    UNMASK = "unmask the sum"
    CLOSE = "close the trip"
    ABANDON = "abandon the round"
    FINISH = "finish the training"
    CANCEL = "cancel the training before it starts"


def _stay(state: CoordinatorState) -> dict[Event, CoordinatorState]:
    """Return the transitions of messages that every state takes and that change no state."""
    return dict.fromkeys((Hello, Refused, Sealed, Pseudonyms, Aligned), state)


_OF_TRIPS = (RoundReply, MaskShares, ListSignature, Unmask)
"""Messages of the parties during trips. A late one changes nothing, but brings a slow party back."""


def _trip(state: CoordinatorState, **actions: CoordinatorState) -> dict[Event, CoordinatorState]:
    """Return the transitions of a state of an open trip; `actions` are those besides opening it again and abandoning it."""
    return {
        **_stay(state),
        **dict.fromkeys(_OF_TRIPS, state),
        CoordinatorAction.ASK_FOR_SHARES: CoordinatorState.SHARING,
        CoordinatorAction.OPEN: CoordinatorState.TRIP,
        CoordinatorAction.ABANDON: CoordinatorState.IDLE,
        **{CoordinatorAction[name]: following for name, following in actions.items()},
    }


RESUME = "use the previous --out folder of this party, or start a new training"

COORDINATOR_STATES = StateTable(
    transitions={
        CoordinatorState.GATHERING: {
            **_stay(CoordinatorState.GATHERING),
            AlignHello: CoordinatorState.GATHERING,
            CoordinatorAction.START_TRAINING: CoordinatorState.IDLE,
            CoordinatorAction.CANCEL: CoordinatorState.CANCELLED,
        },
        CoordinatorState.IDLE: {
            **_stay(CoordinatorState.IDLE),
            **dict.fromkeys(_OF_TRIPS, CoordinatorState.IDLE),  # late, or shares that are sent ahead
            CoordinatorAction.ASK_FOR_SHARES: CoordinatorState.SHARING,
            CoordinatorAction.OPEN: CoordinatorState.TRIP,
            CoordinatorAction.FINISH: CoordinatorState.FINISHING,
        },
        CoordinatorState.SHARING: _trip(CoordinatorState.SHARING),
        CoordinatorState.TRIP: _trip(
            CoordinatorState.TRIP,
            AGREE=CoordinatorState.AGREEING,
            UNMASK=CoordinatorState.UNMASKING,
            CLOSE=CoordinatorState.IDLE,
        ),
        CoordinatorState.AGREEING: _trip(CoordinatorState.AGREEING, UNMASK=CoordinatorState.UNMASKING),
        CoordinatorState.UNMASKING: _trip(CoordinatorState.UNMASKING, CLOSE=CoordinatorState.IDLE),
        CoordinatorState.FINISHING: {
            **_stay(CoordinatorState.FINISHING),
            **dict.fromkeys(_OF_TRIPS, CoordinatorState.FINISHING),  # late
            Finished: CoordinatorState.FINISHING,
            CoordinatorAction.FINISH: CoordinatorState.FINISHING,  # once for every party that joins again
        },
        CoordinatorState.CANCELLED: {
            **_stay(CoordinatorState.CANCELLED),
            Finished: CoordinatorState.CANCELLED,
            CoordinatorAction.CANCEL: CoordinatorState.CANCELLED,  # once for every party that joins
        },
    },
    remedies={
        CoordinatorState.GATHERING: "say hello and wait for a Welcome",
        CoordinatorState.IDLE: RESUME,
        CoordinatorState.SHARING: RESUME,
        CoordinatorState.TRIP: RESUME,
        CoordinatorState.AGREEING: RESUME,
        CoordinatorState.UNMASKING: RESUME,
        CoordinatorState.FINISHING: RESUME,
        CoordinatorState.CANCELLED: RESUME,
    },
)
"""The coordinator's state machine."""

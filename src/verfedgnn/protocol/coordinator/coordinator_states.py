"""The states of a coordinator, and what may follow what.

    GATHERING --all joined--> IDLE --open--> TRIP --close--> IDLE --finish--> FINISHING
                                               '-- open: the same trip again, without the parties that were lost

Parties may say hello, or be lost, in every state. Users are aligned while the coordinator is GATHERING.
"""

from __future__ import annotations

from enum import Enum

from verfedgnn.protocol.state_table import Event, StateTable
from verfedgnn.protocol.wire.alignment_messages import Aligned, AlignHello, Pseudonyms, Sealed
from verfedgnn.protocol.wire.messages import Finished, Hello, Refused, RoundReply


class CoordinatorState(Enum):
    """State of a coordinator."""

    GATHERING = "waiting for all parties to join"
    IDLE = "training, between two trips"
    TRIP = "training, waiting for replies"
    FINISHING = "training is over"


class CoordinatorAction(Enum):
    """Events other than a received message."""

    START_TRAINING = "start the training"
    OPEN = "open a trip"
    CLOSE = "close the trip"
    FINISH = "finish the training"


def _stay(state: CoordinatorState) -> dict[Event, CoordinatorState]:
    """Return the transitions of messages that every state takes and that change no state."""
    return dict.fromkeys((Hello, Refused, Sealed, Pseudonyms, Aligned), state)


RESUME = "use the previous --out folder of this party, or start a new training"

COORDINATOR_STATES = StateTable(
    transitions={
        CoordinatorState.GATHERING: {
            **_stay(CoordinatorState.GATHERING),
            AlignHello: CoordinatorState.GATHERING,
            CoordinatorAction.START_TRAINING: CoordinatorState.IDLE,
        },
        CoordinatorState.IDLE: {
            **_stay(CoordinatorState.IDLE),
            RoundReply: CoordinatorState.IDLE,  # late; it brings a slow party back
            CoordinatorAction.OPEN: CoordinatorState.TRIP,
            CoordinatorAction.FINISH: CoordinatorState.FINISHING,
        },
        CoordinatorState.TRIP: {
            **_stay(CoordinatorState.TRIP),
            RoundReply: CoordinatorState.TRIP,
            CoordinatorAction.OPEN: CoordinatorState.TRIP,
            CoordinatorAction.CLOSE: CoordinatorState.IDLE,
        },
        CoordinatorState.FINISHING: {
            **_stay(CoordinatorState.FINISHING),
            RoundReply: CoordinatorState.FINISHING,  # late
            Finished: CoordinatorState.FINISHING,
            CoordinatorAction.FINISH: CoordinatorState.FINISHING,  # once for every party that joins again
        },
    },
    remedies={
        CoordinatorState.GATHERING: "say hello and wait for a Welcome",
        CoordinatorState.IDLE: RESUME,
        CoordinatorState.TRIP: RESUME,
        CoordinatorState.FINISHING: RESUME,
    },
)
"""The coordinator's state machine."""

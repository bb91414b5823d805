"""A state machine as one table: the events that each state allows, and the state that follows.

The tables of the two sides are below. They are the only place that says what may follow what; services and protocol classes ask them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

from verfedgnn.core.errors import ProtocolError
from verfedgnn.protocol import messages as msg

S = TypeVar("S", bound=Enum)
Event = type[msg.Message] | Enum
"""A received message by its class, or something that this side does."""


@dataclass(frozen=True)
class StateTable(Generic[S]):
    """Transitions of one state machine. The value of a state describes it to people."""

    transitions: Mapping[S, Mapping[Event, S]]
    remedies: Mapping[S, str]
    """What to do about an unexpected event, by state."""
    late: Mapping[S, frozenset[type[msg.Message]]] = field(default_factory=dict)
    """Messages that a state ignores, because they answer something from before."""

    def after(self, state: S, event: Event, who: str = "") -> S:
        """Return the state that follows `state` on `event`; raise `ProtocolError` if the event is not expected."""
        if event not in self.transitions[state]:
            raise self.unexpected(state, event, who)
        return self.transitions[state][event]

    def unexpected(self, state: S, event: Event, who: str = "") -> ProtocolError:
        """Return the error about an event that `state` does not expect; `who` is the sender or the recipient."""
        what = f"action {event.value}" if isinstance(event, Enum) else f"{event.__name__} message"
        start = f"{who}: " if who else ""
        return ProtocolError(
            f"{start}unexpected {what} in this state ({state.value}); {self.remedies[state]}"
        )

    def ignores(self, state: S, event: Event) -> bool:
        """Return whether `state` ignores an event as a late message."""
        return event in self.late.get(state, ())


# The states of a party towards the coordinator, and what may follow what.
#
#     GREETING --Waiting--> QUEUED --Welcome--> JOINED --Finish--> FINISHED
#         '---------------Welcome---------------^   '-- ShareRequest, RoundShares, RoundStart, Survivors: stays JOINED
#
# After every lost connection a party says hello again and is GREETING. Until it has joined, the coordinator may ask it to align its
# users again, or to skip the training.


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


_BEFORE_JOINING: dict[Event, PartyState] = {
    PartyEvent.SAY_HELLO: PartyState.GREETING,
    msg.Waiting: PartyState.QUEUED,
    msg.AlignStart: PartyState.REALIGNING,
    PartyEvent.SKIP: PartyState.FINISHED,
    msg.Welcome: PartyState.JOINED,
}
_IN_ROUNDS = (msg.ShareRequest, msg.RoundShares, msg.RoundStart, msg.Survivors)
_OF_LAST_STAY: frozenset[type[msg.Message]] = frozenset({*_IN_ROUNDS, msg.Finish, msg.Sealed, msg.UserRows})
"""Messages that a party ignores until it has joined again."""

PARTY_STATES = StateTable(
    transitions={
        PartyState.GREETING: _BEFORE_JOINING,
        PartyState.QUEUED: _BEFORE_JOINING,
        PartyState.REALIGNING: {},
        PartyState.JOINED: {
            PartyEvent.SAY_HELLO: PartyState.GREETING,
            **dict.fromkeys((msg.Waiting, *_IN_ROUNDS), PartyState.JOINED),
            PartyEvent.SKIP: PartyState.FINISHED,
            msg.Finish: PartyState.FINISHED,
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
        PartyState.GREETING: _OF_LAST_STAY,
        PartyState.QUEUED: _OF_LAST_STAY,
        PartyState.JOINED: frozenset({msg.Welcome, msg.Sealed, msg.UserRows}),
    },
)
"""The party's state machine. A Waiting that asks to align again counts as an AlignStart."""


# The states of a coordinator, and what may follow what.
#
#     GATHERING --all joined--> IDLE --open--> ROUND --close--> IDLE --finish--> FINISHING
#
# With masks, a round has more steps. It can be opened again, or abandoned, in each of them:
#
#     IDLE --ask for shares--> SHARING --open--> ROUND --unmask--> UNMASKING --close--> IDLE
#                                                  '--agree--> AGREEING --unmask--^
#
#     GATHERING --cancel--> CANCELLED
#
# Parties may say hello, or be lost, in every state. Users are aligned while the coordinator is GATHERING.


class CoordinatorState(Enum):
    """State of a coordinator."""

    GATHERING = "waiting for all parties to join"
    IDLE = "training, between two rounds"
    SHARING = "training, waiting for mask shares"
    ROUND = "training, waiting for replies"
    AGREEING = "training, waiting for signatures of the survivor list"
    UNMASKING = "training, waiting for shares to unmask a sum"
    FINISHING = "training is over"
    CANCELLED = "the training does not take place"


class CoordinatorAction(Enum):
    """Events other than a received message."""

    START_TRAINING = "start the training"
    ASK_FOR_SHARES = "ask for mask shares"
    OPEN = "open a round"
    AGREE = "agree on a survivor list"
    UNMASK = "unmask the sum"
    CLOSE = "close the round"
    ABANDON = "abandon the round"
    FINISH = "finish the training"
    CANCEL = "cancel the training before it starts"


_ALWAYS = (msg.About, msg.Hello, msg.Refused, msg.Sealed, msg.Pseudonyms, msg.Aligned)
"""Messages that every state takes and that change no state."""
OF_ROUNDS = (msg.RoundReply, msg.MaskShares, msg.ListSignature, msg.Unmask)
"""Messages of the parties during rounds. A late one changes nothing, but brings a slow party back."""
_OTHERS = {
    CoordinatorState.GATHERING: (msg.AlignHello,),
    CoordinatorState.FINISHING: (*OF_ROUNDS, msg.Finished),
    CoordinatorState.CANCELLED: (msg.Finished,),
}
"""Messages that change no state, in states that do not just take those of rounds."""
_AGAIN: dict[Event, CoordinatorState] = {
    CoordinatorAction.ASK_FOR_SHARES: CoordinatorState.SHARING,
    CoordinatorAction.OPEN: CoordinatorState.ROUND,
    CoordinatorAction.ABANDON: CoordinatorState.IDLE,
}
"""What can be done with every open round."""
_ACTIONS: dict[CoordinatorState, dict[Event, CoordinatorState]] = {
    CoordinatorState.GATHERING: {
        CoordinatorAction.START_TRAINING: CoordinatorState.IDLE,
        CoordinatorAction.CANCEL: CoordinatorState.CANCELLED,
    },
    CoordinatorState.IDLE: {
        CoordinatorAction.ASK_FOR_SHARES: CoordinatorState.SHARING,
        CoordinatorAction.OPEN: CoordinatorState.ROUND,
        CoordinatorAction.FINISH: CoordinatorState.FINISHING,
    },
    CoordinatorState.SHARING: _AGAIN,
    CoordinatorState.ROUND: {
        **_AGAIN,
        CoordinatorAction.AGREE: CoordinatorState.AGREEING,
        CoordinatorAction.UNMASK: CoordinatorState.UNMASKING,
        CoordinatorAction.CLOSE: CoordinatorState.IDLE,
    },
    CoordinatorState.AGREEING: {**_AGAIN, CoordinatorAction.UNMASK: CoordinatorState.UNMASKING},
    CoordinatorState.UNMASKING: {**_AGAIN, CoordinatorAction.CLOSE: CoordinatorState.IDLE},
    # Both say goodbye once for every party that joins again.
    CoordinatorState.FINISHING: {CoordinatorAction.FINISH: CoordinatorState.FINISHING},
    CoordinatorState.CANCELLED: {CoordinatorAction.CANCEL: CoordinatorState.CANCELLED},
}

COORDINATOR_STATES = StateTable(
    transitions={
        state: {**dict.fromkeys((*_ALWAYS, *_OTHERS.get(state, OF_ROUNDS)), state), **actions}
        for state, actions in _ACTIONS.items()
    },
    remedies=dict.fromkeys(
        CoordinatorState, "use the previous --out folder of this party, or start a new training"
    )
    | {CoordinatorState.GATHERING: "say hello and wait for a Welcome"},
)
"""The coordinator's state machine."""

"""A state machine as one table: the events that each state allows, and the state that follows.

The tables of the two sides are `party.party_states` and `coordinator.coordinator_states`. They are the only place that says what may
follow what; services and protocol classes ask them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

from verfedgnn.core.errors import ProtocolError
from verfedgnn.protocol.wire.framing import Message

S = TypeVar("S", bound=Enum)
Event = type[Message] | Enum
"""A received message by its class, or something that this side does."""


@dataclass(frozen=True)
class StateTable(Generic[S]):
    """Transitions of one state machine. The value of a state describes it to people."""

    transitions: Mapping[S, Mapping[Event, S]]
    remedies: Mapping[S, str]
    """What to do about an unexpected event, by state."""
    late: Mapping[S, frozenset[type[Message]]] = field(default_factory=dict)
    """Messages that a state ignores, because they answer something from before."""

    def after(self, state: S, event: Event, who: str = "") -> S:
        """Return the state that follows `state` on `event`; raise `ProtocolError` if the event is not expected."""
        following = self.transitions[state].get(event)
        if following is None:
            raise self.unexpected(state, event, who)
        return following

    def unexpected(self, state: S, event: Event, who: str = "") -> ProtocolError:
        """Return the error about an event that `state` does not expect; `who` is the sender or the recipient."""
        what = f"action {event.value}" if isinstance(event, Enum) else f"{event.__name__} message"
        start = f"{who}: " if who else ""
        return ProtocolError(
            f"{start}unexpected {what} in this state ({state.value}); {self.remedies[state]}"
        )

    def ignores(self, state: S, event: Event) -> bool:
        """Return whether `state` ignores an event as a late message."""
        return event in self.late.get(state, frozenset())

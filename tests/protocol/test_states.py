"""The two state machines: what may follow what, and what an unexpected message is told."""

from __future__ import annotations

import pytest

import verfedgnn as vf
from helpers import config, federation
from verfedgnn.protocol.messages import (
    KINDS,
    AlignHello,
    AlignStart,
    Finish,
    Finished,
    RoundReply,
    RoundStart,
    Waiting,
    Welcome,
)
from verfedgnn.protocol.states import (
    COORDINATOR_STATES,
    PARTY_STATES,
    CoordinatorAction,
    CoordinatorState,
    PartyEvent,
    PartyState,
)


def test_a_party_goes_from_hello_to_the_end() -> None:
    state = PartyState.GREETING
    for event in (PartyEvent.SAY_HELLO, Waiting, Welcome, RoundStart, Waiting, RoundStart):
        state = PARTY_STATES.after(state, event)
    assert state is PartyState.JOINED
    assert PARTY_STATES.after(state, PartyEvent.SAY_HELLO) is PartyState.GREETING
    assert PARTY_STATES.after(state, Finish) is PartyState.FINISHED


def test_every_state_is_listed_and_no_message_is_both_late_and_expected() -> None:
    assert set(PARTY_STATES.transitions) == set(PARTY_STATES.remedies) == set(PartyState)
    assert set(COORDINATOR_STATES.transitions) == set(COORDINATOR_STATES.remedies) == set(CoordinatorState)
    for state in PartyState:
        expected = {kind for kind in KINDS.values() if kind in PARTY_STATES.transitions[state]}
        late = {kind for kind in KINDS.values() if PARTY_STATES.ignores(state, kind)}
        assert not expected & late


def test_users_are_not_aligned_again_during_a_training() -> None:
    assert PARTY_STATES.after(PartyState.QUEUED, AlignStart) is PartyState.REALIGNING
    with pytest.raises(vf.ProtocolError, match="unexpected AlignStart message in this state"):
        PARTY_STATES.after(PartyState.JOINED, AlignStart)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (CoordinatorState.GATHERING, RoundReply),
        (CoordinatorState.GATHERING, Finished),
        (CoordinatorState.IDLE, AlignHello),
        (CoordinatorState.ROUND, Finished),
        (CoordinatorState.ROUND, Welcome),
        (CoordinatorState.FINISHING, AlignHello),
    ],
)
def test_an_unexpected_message_is_told_the_state_and_the_remedy(
    state: CoordinatorState, message: type[RoundReply]
) -> None:
    with pytest.raises(vf.ProtocolError) as caught:
        COORDINATOR_STATES.after(state, message, "film")
    text = str(caught.value)
    assert text.startswith(f"film: unexpected {message.__name__} message in this state ({state.value}); ")
    assert text.endswith(COORDINATOR_STATES.remedies[state])


def test_a_coordinator_closes_only_an_open_round(small_parties: list[vf.PartyData]) -> None:
    runtime = federation(small_parties, config())
    coordinator = runtime.coordinator
    assert coordinator.state is CoordinatorState.IDLE
    coordinator.open()
    with pytest.raises(vf.ProtocolError, match="unexpected action finish the training"):
        coordinator.finish()
    coordinator.open()
    assert coordinator.attempt == 1
    assert COORDINATOR_STATES.after(coordinator.state, CoordinatorAction.CLOSE) is CoordinatorState.IDLE


def test_a_party_answers_rounds_and_the_end_only(small_parties: list[vf.PartyData]) -> None:
    party = next(iter(federation(small_parties, config()).parties.values()))
    with pytest.raises(vf.ProtocolError, match="unexpected Waiting message in this state"):
        party.handle(Waiting(missing=[]))


def test_a_welcome_is_taken_once(small_parties: list[vf.PartyData]) -> None:
    runtime = federation(small_parties, config())
    name, candidate = next(iter(runtime.candidates.items()))
    runtime.coordinator.hello(candidate.hello())
    welcome = runtime.coordinator.welcome(name)
    candidate.welcome(welcome)
    with pytest.raises(vf.ProtocolError, match="without an open Hello"):
        candidate.welcome(welcome)
    with pytest.raises(vf.ProtocolError, match="without an open Hello"):
        candidate.welcome(welcome.model_copy(update={"stay": ""}))

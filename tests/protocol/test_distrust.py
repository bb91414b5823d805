"""What a party refuses, and what a coordinator gains that asks for more than was agreed on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import verfedgnn as vf
from helpers import config, federation
from verfedgnn.core.metrics import prediction_errors
from verfedgnn.privacy.rating_dp import rating_epsilon
from verfedgnn.protocol.messages import Finish, RoundReply, RoundStart, Welcome
from verfedgnn.protocol.party import Party
from verfedgnn.protocol.party_state import LOCAL
from verfedgnn.protocol.release_ledger import GRADIENT, VALIDATION, ReleaseLedger
from verfedgnn.protocol.replica import parameters_digest
from verfedgnn.training.local_runtime import LocalRuntime

FRESH = replace(LOCAL, fresh_noise=True)
"""The policy of a party in a federation, without masks: a test sees what they would hide."""


def private(**values: Any) -> vf.Config:
    return vf.Config.preset("private", **({"epochs": 8, "evaluate_every": 2} | values))


class Attacked:
    """One party of three, and a coordinator that may send it anything."""

    def __init__(self, parties: list[vf.PartyData], chosen: vf.Config) -> None:
        self.runtime: LocalRuntime = federation(parties, chosen, policy=FRESH)
        self.name = parties[0].name
        self.candidate = self.runtime.candidates[self.name]
        self.ledger = self.candidate.ledger = ReleaseLedger(chosen)
        self.party: Party
        self.join()

    @property
    def size(self) -> int:
        """Number of public parameters."""
        return self.party.model.size

    def welcome(self, **changes: Any) -> Welcome:
        """Return the Welcome of a new stay, changed."""
        coordinator = self.runtime.coordinator
        coordinator.hello(self.candidate.hello())
        honest = coordinator.welcome(self.name)
        if not changes:
            return honest
        copy = {name: changes.get(name, values) for name, values in coordinator.replica.full_copy().items()}
        digest = parameters_digest(*(torch.from_numpy(values.copy()) for values in copy.values()))
        return honest.model_copy(update={**copy, "digest": digest, **changes})

    def join(self, **changes: Any) -> None:
        """Start a new stay with a changed Welcome."""
        self.party = self.candidate.welcome(self.welcome(**changes))

    def start(self, round: int, **changes: Any) -> RoundStart:
        """Return the start of a round, with a full copy of parameters that are 0 unless changed."""
        zeros = np.zeros(self.size, np.float32)
        values = {
            "round": round,
            "active": [0, 1, 2],
            "evaluate": round % 2 == 0,
            "best_round": 0,
            "updates_from": 1,
            "update_parties": [],
            "neighbourhood_parties": [],
            "parameters": zeros,
            "accumulator": zeros,
        }
        return RoundStart(**(values | changes))

    def ask(self, round: int, **changes: Any) -> RoundReply:
        """Return the reply to a start of a round."""
        reply = self.party.handle(self.start(round, **changes))
        assert isinstance(reply, RoundReply)
        return reply


# -- parameters out of bounds -----------------------------------------------------------------------------------------------

BAD = {
    "beyond the bound": lambda values: values + 10,
    "not finite": lambda values: values * np.float32(np.nan),
}


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("field", ["parameters", "accumulator"])
def test_parameters_out_of_bounds_are_refused(
    small_parties: list[vf.PartyData], kind: str, field: str
) -> None:
    """Delta assumes user embeddings within `model.bound`; a copy that breaks it is refused before anything is computed."""
    attacked = Attacked(small_parties, private())
    if field == "accumulator" and kind == "beyond the bound":
        bad = -np.ones(attacked.size, np.float32)  # a sum of squares is not negative
    else:
        bad = BAD[kind](np.zeros(attacked.size, np.float32))
    before = attacked.party.progress.private.clone()
    with pytest.raises(vf.ProtocolError, match=r"refused: .*rejoin"):
        attacked.join(**{field: bad})
    attacked = Attacked(small_parties, private())
    with pytest.raises(vf.ProtocolError, match=r"refused: .*rejoin"):
        attacked.ask(3, **{field: bad})
    assert attacked.party.replica.round == 0, "nothing was taken over"
    if field == "parameters":
        with pytest.raises(vf.ProtocolError, match=r"refused: .*rejoin"):
            attacked.party.handle(Finish(round=3, best_round=2, parameters=bad, digest=""))
    for name, value in attacked.party.progress.private.parameters.items():
        assert torch.equal(value, before.parameters[name])


def test_one_row_beyond_the_bound_is_enough_to_refuse(small_parties: list[vf.PartyData]) -> None:
    chosen = private()
    attacked = Attacked(small_parties, chosen)
    bound = chosen.model.bound
    assert bound is not None
    good = np.zeros(attacked.size, np.float32)
    good[: chosen.model.dim] = bound / np.sqrt(chosen.model.dim)  # the norm of the row is the bound
    attacked.ask(3, parameters=good)
    bad = good.copy()
    bad[0] *= 1.01
    with pytest.raises(vf.ProtocolError, match=r"user embeddings .*0\.5"):
        attacked.ask(5, parameters=bad)


def test_without_a_bound_a_million_is_the_limit(small_parties: list[vf.PartyData]) -> None:
    attacked = Attacked(small_parties, config())
    with pytest.raises(vf.ProtocolError, match=r"beyond 1,000,000"):
        attacked.join(parameters=np.full(attacked.size, 2e6, np.float32))


def test_sums_of_signs_are_bounded_by_their_parties(small_parties: list[vf.PartyData]) -> None:
    """A sum of ternary gradients of three parties has no 4 in it."""
    attacked = Attacked(small_parties, config())
    updates = np.full(attacked.size, 4, np.int8)
    changes = {"parameters": None, "accumulator": None, "updates": updates, "update_parties": [[0, 1, 2]]}
    with pytest.raises(vf.ProtocolError, match="more than its 3 parties"):
        attacked.ask(2, evaluate=False, **changes)


# -- noise that two requests must not share -----------------------------------------------------------------------------------


def test_validation_noise_is_not_reused_for_other_parameters(small_parties: list[vf.PartyData]) -> None:
    """With equal noise, the difference of two noised errors of one round would be exact."""
    found = []
    for seed in (1, 2):
        attacked = Attacked(small_parties, private())
        rng = np.random.default_rng(seed)
        parameters = rng.uniform(-0.1, 0.1, attacked.size).astype(np.float32)
        attacked.join(parameters=parameters, round=1)
        noised = attacked.ask(2, parameters=None, accumulator=None)
        model = attacked.party.progress.evaluated[1]
        exact = prediction_errors(model["users"], model["items"], attacked.party.data.valid).square()
        assert noised.error is not None
        found.append((noised.error, float(exact.sum())))
    noise = [noised - exact for noised, exact in found]
    assert abs(noise[0] - noise[1]) > 1, "the difference of two releases is not that of the exact errors"


def test_item_noise_is_not_reused_for_other_parameters(small_parties: list[vf.PartyData]) -> None:
    """The step of item rows in one round under two parameters: its noise must differ."""
    steps = []
    for value in (0.0, 0.001):
        attacked = Attacked(small_parties, private(lr=1.0))
        before = attacked.party.progress.private.parameters["item_bias"].clone()
        attacked.join(parameters=np.full(attacked.size, value, np.float32))
        attacked.ask(1, parameters=None, accumulator=None, evaluate=False)
        steps.append(attacked.party.progress.private.parameters["item_bias"] - before)
    assert float((steps[0] - steps[1]).abs().mean()) > 0.5, "the signs are those of the noise"


# -- the budget ---------------------------------------------------------------------------------------------------------------


def test_a_round_that_is_repeated_is_released_once(small_parties: list[vf.PartyData]) -> None:
    """4,000 repetitions with fresh noise would average it away. All of them get the one release, also with other parameters."""
    attacked = Attacked(small_parties, private())
    rng = np.random.default_rng(0)
    gradients = set()
    errors = set()
    for attempt in range(40):  # 40 stays stand for 4,000: each is a whole round
        parameters = rng.uniform(-0.1, 0.1, attacked.size).astype(np.float32)
        attacked.join(parameters=parameters, round=1)
        reply = attacked.ask(2, attempt=attempt % 3, parameters=None, accumulator=None)
        assert reply.gradient is not None
        gradients.add(reply.gradient.tobytes())
        errors.add((reply.error, reply.count))
    assert len(gradients) == len(errors) == 1
    assert (attacked.ledger.count(GRADIENT), attacked.ledger.count(VALIDATION)) == (1, 1)


def test_4000_requests_for_one_release_get_one_release(small_parties: list[vf.PartyData]) -> None:
    """The ledger alone, 4,000 times: the mean of the answers is as noisy as one of them."""
    chosen = private()
    ledger = ReleaseLedger(chosen)
    ledger.check_training("t", 8)
    rng = np.random.default_rng(1)
    answers = [
        ledger.release(3, [0, 1, 2], {GRADIENT: rng.normal(0, 16.3, 50)})[GRADIENT] for _ in range(4000)
    ]
    assert np.mean(answers, 0).std() > 10
    assert len(ledger.entries) == 1
    assert ledger.epsilon == rating_epsilon(chosen, rounds=1, validations=0)


def test_rounds_and_validations_beyond_the_agreement_are_refused(small_parties: list[vf.PartyData]) -> None:
    attacked = Attacked(small_parties, private(epochs=40))
    with pytest.raises(
        vf.ProtocolError, match="starts round 5000, but 40 rounds were agreed on; start a new"
    ):
        attacked.ask(5000)
    with pytest.raises(vf.ProtocolError, match="round 3 asks for a validation that was not agreed on"):
        attacked.ask(3, evaluate=True)
    assert not attacked.ledger.entries


def test_an_earlier_round_is_refused(small_parties: list[vf.PartyData]) -> None:
    """Also in a new stay, where the party has forgotten the rounds of the last one."""
    attacked = Attacked(small_parties, private())
    attacked.ask(5)
    attacked.join()
    with pytest.raises(vf.ProtocolError, match="asks again for round 3, but this party has released round 5"):
        attacked.ask(3)
    attacked.ask(6)
    assert attacked.ledger.count(GRADIENT) == 2


def test_another_number_of_rounds_is_refused(small_parties: list[vf.PartyData]) -> None:
    """Rounds follow from the number of ratings that the coordinator announces; it cannot change them during a training."""
    attacked = Attacked(small_parties, config())
    attacked.ask(1, parameters=None, accumulator=None, evaluate=False)
    with pytest.raises(vf.ProtocolError, match="changes the number of rounds"):
        attacked.join(ratings=10**9)
    with pytest.raises(vf.ProtocolError, match="has released values in training"):
        attacked.ledger.check_training("another", attacked.party.replica.rounds)


def test_noise_of_other_active_parties_is_its_own(small_parties: list[vf.PartyData]) -> None:
    """Two parties share out more noise each than three. Every set of parties has one release."""
    attacked = Attacked(small_parties, private())
    seen = []
    for active in ([0, 1, 2], [0, 1], [0, 1, 2], [0, 1]):
        attacked.join()
        reply = attacked.ask(1, active=active, parameters=None, accumulator=None)
        assert reply.gradient is not None
        seen.append(reply.gradient.tobytes())
    assert seen[0] == seen[2] != seen[1] == seen[3]
    assert attacked.ledger.count(GRADIENT) == 1

"""What a party refuses, and what a coordinator gains that asks for more than was agreed on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import verfedgnn as vf
from helpers import config, federation
from verfedgnn.core.metrics import squared_errors
from verfedgnn.protocol.party.party import Party
from verfedgnn.protocol.party.policy import LOCAL
from verfedgnn.protocol.round.replica import parameters_digest
from verfedgnn.protocol.wire.messages import Finish, RoundReply, RoundStart, Welcome
from verfedgnn.training.local_runtime import LocalRuntime

FRESH = replace(LOCAL, fresh_noise=True)
"""The policy of a party in a federation, without masks: a test sees what they would hide."""


def private(**values: Any) -> vf.Config:
    return vf.Config.preset("private", **({"epochs": 8, "evaluate_every": 2} | values))


class Attacked:
    """One party of three, and a coordinator that may send it anything."""

    def __init__(self, parties: list[vf.PartyData], chosen: vf.Config) -> None:
        self.runtime: LocalRuntime = federation(parties, chosen, stack=False, policy=FRESH)
        self.name = parties[0].name
        self.candidate = self.runtime.candidates[self.name]
        self.party: Party = self.runtime.parties[self.name]

    @property
    def size(self) -> int:
        """Number of public parameters."""
        return self.party.model.size

    def welcome(self, **changes: Any) -> Welcome:
        """Return the Welcome of a new stay, changed."""
        coordinator = self.runtime.coordinator
        coordinator.hello(self.candidate.hello())
        honest = coordinator.welcome(self.name)
        if "parameters" in changes:
            changes["digest"] = parameters_digest(torch.from_numpy(changes["parameters"]))
        return honest.model_copy(update=changes)

    def join(self, **changes: Any) -> None:
        """Start a new stay with a changed Welcome."""
        self.party = self.candidate.welcome(self.welcome(**changes))

    def start(self, round: int, **changes: Any) -> RoundStart:
        """Return the start of a round, with a full copy of parameters that are 0 unless changed."""
        zeros = np.zeros(self.size, np.float32)
        values = {
            "round": round,
            "trip": 0,
            "active": [0, 1, 2],
            "train": True,
            "exchange": False,
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
            attacked.party.handle(Finish(round=3, best_round=2, parameters=bad))
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
        assert attacked.party.progress.evaluated is not None
        model = attacked.party.progress.evaluated[1]
        exact = squared_errors(model["users"], model["items"], attacked.party.data.valid)
        assert noised.error is not None
        found.append((noised.error, float(exact.sum())))
    noise = [noised - exact for noised, exact in found]
    assert abs(noise[0] - noise[1]) > 1, "the difference of two releases is not that of the exact errors"


def test_item_noise_is_not_reused_for_other_parameters(small_parties: list[vf.PartyData]) -> None:
    """The step of item rows in one round under two parameters: its noise must differ."""
    steps = []
    for value in (0.0, 0.001):
        attacked = Attacked(small_parties, private(lr=1.0, optimizer="sgd"))
        before = attacked.party.progress.private.parameters["item_bias"].clone()
        attacked.join(parameters=np.full(attacked.size, value, np.float32))
        attacked.ask(1, parameters=None, accumulator=None, evaluate=False)
        steps.append(attacked.party.progress.private.parameters["item_bias"] - before)
    assert float((steps[0] - steps[1]).abs().mean()) > 1, "only the noise is that large"

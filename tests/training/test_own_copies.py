"""Public parameters that a party has need not travel: it draws them, or keeps them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import verfedgnn as vf
from verfedgnn.protocol.messages import Finish, Welcome
from verfedgnn.protocol.party import Candidate
from verfedgnn.protocol.replica import parameters_digest
from verfedgnn.runs.prepared_data import prepare
from verfedgnn.training.local_runtime import LocalRuntime, local_federation

SHORT = vf.Config.preset("best", dim=8, epochs=6, evaluate_every=2, gate=False, lists=False)


def joined(parties: list[vf.PartyData]) -> LocalRuntime:
    """Return a federation before its first round."""
    inputs = [each.input for each in prepare(parties, SHORT, torch.device("cpu"))]
    return local_federation(inputs, SHORT)


def greet(runtime: LocalRuntime, candidate: Candidate) -> Welcome:
    """Say hello again and return the answer."""
    runtime.coordinator.hello(candidate.hello())
    return runtime.coordinator.welcome(candidate.name)


def test_a_training_sends_no_full_copy(small_parties: list[vf.PartyData]) -> None:
    run = vf.train(small_parties, SHORT)
    sent = run.ledger.total(kind="Welcome") + run.ledger.total(kind="Finish")
    assert sent < run.public.numel(), "less than a byte for each parameter, at all parties together"


def test_what_a_party_draws_is_what_the_coordinator_has(small_parties: list[vf.PartyData]) -> None:
    runtime = joined(small_parties)
    (candidate, *_) = runtime.candidates.values()
    welcome = greet(runtime, candidate)
    assert welcome.parameters is None
    replica = candidate.welcome(welcome).replica
    assert replica.state_digest() == runtime.coordinator.replica.state_digest()


def test_a_party_refuses_initial_parameters_that_the_seed_does_not_give(
    small_parties: list[vf.PartyData],
) -> None:
    runtime = joined(small_parties)
    (candidate, *_) = runtime.candidates.values()
    runtime.coordinator.replica.parameters[0] += 1
    with pytest.raises(vf.ProtocolError, match="agreed seed"):
        candidate.welcome(greet(runtime, candidate))


def test_who_rejoins_gets_the_result_and_who_kept_it_does_not(small_parties: list[vf.PartyData]) -> None:
    runtime = joined(small_parties)
    while not runtime.coordinator.done:
        runtime.round()
    first, second, third = runtime.parties.values()
    runtime.coordinator.hello(runtime.candidates[first.name].hello())
    messages = runtime.coordinator.finish()
    assert messages[first.name].parameters is not None
    kept = messages[second.name]
    assert kept.parameters is None
    best = runtime.coordinator.public
    assert torch.equal(second.finish(kept).public, best)
    other = Finish(round=kept.round, best_round=kept.best_round, digest="ab" * 32)
    with pytest.raises(vf.ProtocolError, match="not those that the coordinator announced"):
        second.finish(other)
    lie = np.zeros(best.numel(), np.float32)
    with pytest.raises(vf.ProtocolError, match="not those that the coordinator announced"):
        second.finish(messages[first.name].model_copy(update={"parameters": lie}))
    third.replica.best = (0, third.replica.parameters)
    third.replica.round = 0
    with pytest.raises(vf.ProtocolError, match="rejoin to get them"):
        third.finish(kept)
    assert kept.digest == parameters_digest(best)

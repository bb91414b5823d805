"""Public parameters that a party has need not travel: it draws them, keeps them, or reads them from the run it starts from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import verfedgnn as vf
from verfedgnn.protocol.party.candidate import Candidate
from verfedgnn.protocol.round.replica import parameters_digest
from verfedgnn.protocol.wire.messages import Finish, Welcome
from verfedgnn.runs.prepared_data import prepare
from verfedgnn.runs.start_from import StartState, read_start
from verfedgnn.training.local_runtime import LocalRuntime, local_federation

SHORT = vf.Config.preset("best", dim=4, epochs=6, evaluate_every=2, gate=False, lists=False)


@pytest.fixture(scope="module")
def before(small_parties: list[vf.PartyData], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an earlier run."""
    folder = tmp_path_factory.mktemp("before") / "run"
    vf.train(small_parties, SHORT, out=folder)
    return folder


def joined(parties: list[vf.PartyData], start: StartState | None = None) -> LocalRuntime:
    """Return a federation before its first round."""
    inputs = [each.input for each in prepare(parties, SHORT, torch.device("cpu"))]
    return local_federation(inputs, SHORT, start=start)


def greet(runtime: LocalRuntime, candidate: Candidate) -> Welcome:
    """Say hello again and return the answer."""
    runtime.coordinator.hello(candidate.hello())
    return runtime.coordinator.welcome(candidate.name)


def test_a_training_and_one_that_continues_it_send_no_full_copy(
    small_parties: list[vf.PartyData], before: Path
) -> None:
    run = vf.Run.load(before)
    again = vf.train(small_parties, SHORT, start_from=before)
    for ledger in (run.ledger, again.ledger):
        sent = ledger.total(kind="Welcome") + ledger.total(kind="Finish")
        assert sent < run.public.numel(), "less than a byte for each parameter, at all parties together"


def test_what_a_party_draws_or_keeps_is_what_the_coordinator_has(
    small_parties: list[vf.PartyData], before: Path
) -> None:
    for start in (None, read_start(before, small_parties)):
        runtime = joined(small_parties, start)
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


@pytest.mark.parametrize("stale", ["parameters", "accumulator"])
def test_a_stale_copy_of_the_earlier_run_is_refused(
    small_parties: list[vf.PartyData], before: Path, stale: str
) -> None:
    """The attack: the coordinator pretends that a party has what all others start from."""
    start = read_start(before, small_parties)
    assert start is not None
    runtime = joined(small_parties, start)
    (name, candidate), *_ = runtime.candidates.items()
    old = replace(start.public, **{stale: getattr(start.public, stale) + 1})
    candidate.start = replace(start.private[name], public=old)
    honest = greet(runtime, candidate)
    assert honest.parameters is not None, "its hash is another one, so it gets a full copy"
    nothing = dict.fromkeys(("parameters", "accumulator", "average"))
    with pytest.raises(vf.ProtocolError, match="does not start from the run"):
        candidate.welcome(honest.model_copy(update=nothing))
    honest = greet(runtime, candidate)
    if (
        stale == "accumulator"
    ):  # the parameters are those of the run, and the coordinator's sums replace its own
        replica = candidate.welcome(honest).replica
        assert torch.equal(replica.accumulator, runtime.coordinator.replica.accumulator)
        return
    with pytest.raises(vf.ProtocolError, match="does not start from the run"):
        candidate.welcome(honest)


def test_a_forged_recorded_name_does_not_help(small_parties: list[vf.PartyData], before: Path) -> None:
    """A run folder that names the right training and holds other sums is refused."""
    start = read_start(before, small_parties)
    assert start is not None
    runtime = joined(small_parties, start)
    (name, candidate), *_ = runtime.candidates.items()
    sums = start.public.accumulator + 1
    forged = replace(start.public, accumulator=sums, recorded=start.public.digest)
    candidate.start = replace(start.private[name], public=forged)
    welcome = greet(runtime, candidate)
    assert welcome.parameters is None
    with pytest.raises(vf.ProtocolError, match="does not start from the run"):
        candidate.welcome(welcome)


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
    third.replica.best = None
    third.replica.round = 0
    with pytest.raises(vf.ProtocolError, match="rejoin to get them"):
        third.finish(kept)
    assert kept.digest == parameters_digest(best)

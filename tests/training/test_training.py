"""Training on one machine: same seed same bits, partial participation, the ledger, who holds what, lift."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import verfedgnn as vf
from helpers import config, federation, same
from verfedgnn.core.metrics import RatingErrors, measure_errors
from verfedgnn.protocol.coordinator import Coordinator
from verfedgnn.protocol.messages import Message, RoundReply, RoundStart, encode
from verfedgnn.training import local_runtime

pytestmark = pytest.mark.usefixtures("short_own_models")


@pytest.mark.parametrize(("preset", "gnn"), [("paper", "gcn"), ("paper", "gat"), ("best", "gcn")])
def test_same_bits_for_large_rounds_too(preset: str, gnn: str) -> None:
    """Rounds of all ratings, long enough for torch to share sums out to threads."""
    table = vf.read_ratings("synthetic", users=600, items=600, ratings=36_000)
    parties = vf.split_items(table, parties=3)
    chosen = vf.Config.preset(preset, model=gnn, batch=0, epochs=2, lists=False, gate=False)
    first = vf.train(parties, chosen)
    torch.set_num_threads(2)
    try:
        second = vf.train(parties, chosen)
    finally:
        torch.set_num_threads(1)
    assert sum(len(p.ratings) for p in parties) * 6 > 200_000
    same(first, second)


def test_same_bits_for_lists_too(small_parties: list[vf.PartyData]) -> None:
    """With one thread and with two: EASE, the search of the gate and its temperature."""
    chosen = vf.Config.preset("best", epochs=2, dim=8)
    two = small_parties[:2]  # threads that share a busy core wait for each other
    first = vf.train(two, chosen)
    torch.set_num_threads(2)
    try:
        second = vf.train(two, chosen)
    finally:
        torch.set_num_threads(1)
    assert first.lists is not None
    same(first, second)


def test_shared_replica_is_as_good_as_one_each(small_parties: list[vf.PartyData]) -> None:
    """Parties that hold their own replica and projection, as separate processes do, give the same bits."""
    chosen = config(participation=0.67)
    shared, apart = (
        federation(small_parties, chosen),
        federation(small_parties, chosen),
    )
    for name, candidate in apart.candidates.items():
        apart.coordinator.hello(candidate.hello())
        apart.parties[name] = candidate.welcome(apart.coordinator.welcome(name))
    assert len({id(p.replica) for p in apart.parties.values()}) == 3
    for _ in range(12):
        shared.round()
        apart.round()
    assert torch.equal(shared.coordinator.replica.parameters, apart.coordinator.replica.parameters)


def test_a_party_that_sat_out_long_gets_a_full_copy(small_parties: list[vf.PartyData]) -> None:
    chosen = config(participation=0.34, epochs=40, evaluate_every=61)
    runtime = federation(small_parties, chosen)
    for name, candidate in runtime.candidates.items():
        runtime.coordinator.hello(candidate.hello())
        runtime.parties[name] = candidate.welcome(runtime.coordinator.welcome(name))
    copies = 0
    for _ in range(60):
        starts = runtime.coordinator.open()
        copies += sum(start.parameters is not None for start in starts.values())
        for name, start in starts.items():
            reply = runtime.parties[name].handle(start)
            assert reply is not None
            runtime.coordinator.receive(name, reply)
        runtime.coordinator.close()
    assert copies > 0
    # the next evaluation brings everybody up to date, and the coordinator compares hashes
    runtime.round()


def test_a_diverged_replica_is_noticed(small_parties: list[vf.PartyData]) -> None:
    runtime = federation(small_parties, config(evaluate_every=1))
    runtime.round()
    next(iter(runtime.parties.values())).replica.parameters[0] += 1e-6
    with pytest.raises(vf.ProtocolError, match="differ from the coordinator's"):
        runtime.round()


def test_partial_participation_trains(small_parties: list[vf.PartyData]) -> None:
    run = vf.train(small_parties, config(participation=0.5))
    assert run.metrics["test"]["rmse"] < 1.5
    releases = run.metrics["privacy"]["gradients"]["releases"]
    assert releases < run.metrics["rounds"]


def reachable(root: object) -> Iterator[object]:
    """Everything that can be reached from an object through Python references, but not through modules and classes."""
    seen, queue = {id(root)}, [root]
    while queue:
        for thing in gc.get_referents(queue.pop()):
            if (
                id(thing) not in seen
                and not isinstance(thing, type)
                and type(thing).__name__ not in ("module", "function")
            ):
                seen.add(id(thing))
                queue.append(thing)
                yield thing


def addresses(things: Iterator[object]) -> set[int]:
    """Where the data of tensors and arrays lies."""
    found = set()
    for thing in things:
        if isinstance(thing, torch.Tensor) and thing.layout == torch.strided:
            found.add(thing.untyped_storage().data_ptr())
        elif isinstance(thing, np.ndarray):
            found.add(thing.__array_interface__["data"][0])
    return found


def test_nothing_private_is_reachable_from_the_coordinator(small_parties: list[vf.PartyData]) -> None:
    runtime = federation(small_parties, config(evaluate_every=1))
    for _ in range(3):
        runtime.round()
    held = addresses(reachable(runtime.coordinator))
    secrets = {party.setup.secret for party in runtime.parties.values()}
    for party in runtime.parties.values():
        train, graph = party.data.train, party.graph
        private = [
            *party.progress.private.parameters.values(),
            *party.progress.private.accumulators.values(),
            train.user,
            train.item,
            train.rating,
            graph.user_degree,
            graph.item_degree,
        ]
        private += [*graph.by_user, *graph.by_item]
        assert not addresses(iter(private)) & held
        assert not any(thing is party for thing in reachable(runtime.coordinator))
    assert not any(isinstance(thing, int) and thing in secrets for thing in reachable(runtime.coordinator))
    # the search does find what the coordinator holds
    assert runtime.coordinator.replica.parameters.untyped_storage().data_ptr() in held


def test_the_ledger_counts_what_was_encoded(small_parties: list[vf.PartyData]) -> None:
    runtime = federation(small_parties, config())
    sizes = {"up": 0, "down": 0}
    starts = runtime.coordinator.open()
    for name, start in starts.items():
        reply = runtime.parties[name].handle(start)
        assert isinstance(reply, RoundReply)
        sizes["down"] += len(encode(start))
        sizes["up"] += len(encode(reply))
    again = federation(small_parties, config())
    again.round()
    assert again.ledger.total("up", kind="RoundReply") == sizes["up"]
    assert again.ledger.total("down", kind="RoundStart") == sizes["down"]
    model = next(iter(runtime.parties.values())).model
    ternary, floats = -(-model.size // 5), 2 * 24 * 6 * 4
    assert sizes["up"] / 3 == pytest.approx(ternary + floats, abs=400)


def test_a_start_is_encoded_once_for_all_parties(
    small_parties: list[vf.PartyData], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Encoding takes a large part of a round; the replies come between the starts."""
    runtime, encoded = federation(small_parties, config()), []

    def count(message: Message) -> bytes:
        encoded.append(type(message))
        return encode(message)

    monkeypatch.setattr(local_runtime, "encode", count)
    runtime.round()
    assert Counter(encoded) == {RoundStart: 1, RoundReply: len(small_parties)}


def test_messages_hold_no_ratings_degrees_or_items(small_parties: list[vf.PartyData]) -> None:
    """What leaves a party has the sizes of users and projections only: nothing per item, nothing per rating."""
    runtime = federation(small_parties, config(evaluate_every=1))
    runtime.round()
    for start in runtime.coordinator.open().values():
        assert isinstance(start, RoundStart)
    for name, party in runtime.parties.items():
        reply = party.handle(runtime.coordinator.open_parties[name])
        assert reply is not None
        assert reply.gradient is not None
        assert reply.neighbourhoods is not None
        assert reply.gradient.shape == (party.model.size,)
        assert reply.neighbourhoods.shape == (2, 24, 6)
        assert set(np.unique(reply.gradient)) <= {-1, 0, 1}


def test_a_reply_out_of_place_is_refused(small_parties: list[vf.PartyData]) -> None:
    runtime = federation(small_parties, config())
    coordinator = runtime.coordinator
    start = coordinator.open()["party-0"]
    reply = runtime.parties["party-0"].handle(start)
    assert reply is not None
    with pytest.raises(vf.ProtocolError, match="no reply is due"):
        coordinator.receive("stranger", reply)
    with pytest.raises(vf.ProtocolError, match="round 9"):
        coordinator.receive("party-0", reply.model_copy(update={"round": 9}))
    with pytest.raises(vf.ProtocolError, match="what was asked"):
        coordinator.receive("party-0", reply.model_copy(update={"gradient": None}))
    for gradient in (np.zeros(1, np.uint8), np.zeros(2, np.float32)):
        with pytest.raises(vf.ProtocolError, match="a gradient of shape"):
            coordinator.receive("party-0", reply.model_copy(update={"gradient": gradient}))
    with pytest.raises(vf.ProtocolError, match="shape"):
        coordinator.receive(
            "party-0", reply.model_copy(update={"neighbourhoods": np.zeros((1, 1, 1), np.int32)})
        )
    coordinator.receive("party-0", reply)
    with pytest.raises(vf.ProtocolError, match="no reply is due"):
        coordinator.receive("party-0", reply)


def test_joining_needs_the_same_configuration_and_users(small_parties: list[vf.PartyData]) -> None:
    runtime = federation(small_parties, config())
    hello = runtime.candidates["party-0"].hello()
    fresh = Coordinator(config(), ["party-0", "party-1"])
    with pytest.raises(vf.ProtocolError, match="not among"):
        fresh.hello(hello.model_copy(update={"party": "stranger"}))
    with pytest.raises(vf.ProtocolError, match="its configuration differs"):
        fresh.hello(hello.model_copy(update={"config": "0" * 16}))
    fresh.hello(hello)
    with pytest.raises(vf.ProtocolError, match="align the users"):
        fresh.hello(hello.model_copy(update={"party": "party-1", "users": 7}))


def test_early_stopping_keeps_the_best(small_parties: list[vf.PartyData]) -> None:
    run = vf.train(
        small_parties, vf.Config.preset("paper", batch=400, epochs=200, patience=3, lr=0.5, mechanism="none")
    )
    best = min(run.history, key=lambda entry: entry["valid_rmse"])
    assert run.metrics["best_round"] == best["round"] < run.metrics["rounds"] < 200 * 6
    assert run.metrics["valid"]["rmse"] == pytest.approx(best["valid_rmse"], rel=1e-6)
    exact = [
        measure_errors(m.users, m.items, p.valid) for m, p in zip(run.models, run.prepared(), strict=True)
    ]
    assert best["valid_rmse"] < sum(exact, RatingErrors()).rmse  # predictions are clipped to the scale


def test_training_learns_and_lift_is_reported(small_parties: list[vf.PartyData]) -> None:
    run = vf.train(small_parties, vf.Config.preset("best", epochs=40, dim=8, lists=False, final=False))
    assert run.history[-1]["valid_rmse"] < run.history[0]["valid_rmse"]
    lift = vf.lift(run)
    assert lift["overall"]["federated"] == pytest.approx(
        run.metrics["test"]["rmse"], rel=0.05
    )  # of known customers
    assert [row["name"] for row in lift["parties"]] == [p.name for p in small_parties]
    assert all(0.3 < row[key] < 3 for row in lift["parties"] for key in ("simple", "alone", "federated"))


def test_misuse_from_python_is_explained(small_parties: list[vf.PartyData]) -> None:
    with pytest.raises(vf.ConfigError, match="must be a Config"):
        vf.train(small_parties, {"epochs": 1})  # type: ignore[arg-type]
    run = vf.train(small_parties, config(epochs=1))
    with pytest.raises(vf.RunError, match="1 or more"):
        run.recommend(str(small_parties[0].ratings.user_ids[0]), k=0)
    busy = int(np.argmax(np.bincount(small_parties[0].ratings.user)))
    lone = [vf.PartyData(p.name, p.ratings.select_users(np.array([busy]))) for p in small_parties[:1]]
    with pytest.raises(vf.ConfigError, match="hides nothing"):
        vf.train(lone, config(epochs=1), parts=[np.arange(len(lone[0].ratings)).astype(np.int8) % 3])


def test_ratings_around_zero_learn(small_parties: list[vf.PartyData]) -> None:
    shifted = []
    for party in small_parties:
        table = replace(party.ratings, rating=party.ratings.rating - 3, scale=(-2.0, 2.0))
        shifted.append(vf.PartyData(party.name, table))
    run = vf.train(shifted, config(epochs=20))
    assert run.metrics["valid"]["rmse"] < run.history[0]["valid_rmse"] - 0.01


def test_a_party_without_test_ratings_has_no_figure(
    small_parties: list[vf.PartyData], tmp_path: Path
) -> None:
    run = vf.train(small_parties, config(fractions=[0.8, 0.2, 0.0], epochs=1), out=tmp_path / "run")
    assert run.metrics["test"]["rmse"] is None
    assert "NaN" not in (tmp_path / "run" / "metrics.json").read_text()


def test_divergence_names_the_remedy(small_parties: list[vf.PartyData]) -> None:
    with pytest.raises(vf.VerFedGNNError, match=r"diverged.*lower training\.lr"):
        vf.train(small_parties, config(exchange="off", mechanism="none", lr=1e20))


def test_recommend(small_parties: list[vf.PartyData], tmp_path: Path) -> None:
    run = vf.train(small_parties, config(), out=tmp_path / "run")
    loaded = vf.Run.load(tmp_path / "run")
    user = str(small_parties[0].ratings.user_ids[3])
    found = loaded.recommend(user, k=7)
    assert found == run.recommend(user, k=7)
    assert len(found) == 7
    assert [r.score for r in found] == sorted((r.score for r in found), reverse=True)
    rated = {str(p.ratings.item_ids[i]) for p in small_parties for i in p.ratings.item[p.ratings.user == 3]}
    assert not rated & {r.item for r in found}
    assert all(r.title for r in found)
    only = loaded.recommend(user, k=100, party="party-1")
    assert {r.party for r in only} == {"party-1"}
    with pytest.raises(vf.RunError, match="not in training"):
        loaded.recommend("nobody")
    with pytest.raises(vf.RunError, match="there is no party"):
        loaded.recommend(user, party="nobody")

"""Training on one machine: same seed same bits, stop and resume, a kill, partial participation, the ledger, who holds what."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import verfedgnn as vf
from verfedgnn.data import check_parties
from verfedgnn.evaluation import lift as lift_module
from verfedgnn.prepare import prepare
from verfedgnn.protocol.coordinator import Coordinator
from verfedgnn.protocol.messages import RoundReply, RoundStart, encode
from verfedgnn.protocol.party import Party
from verfedgnn.runtime import checkpoint
from verfedgnn.runtime.local import LocalRuntime
from verfedgnn.store import safe_names
from verfedgnn.training import Interrupted, party_secret


def config(**values: Any) -> vf.Config:
    return vf.Config.preset("paper", **({"batch": 400, "epochs": 4} | values))


def same(a: vf.Run, b: vf.Run) -> None:
    """Bit for bit, but for the clock."""
    timeless = [{k: v for k, v in r.metrics.items() if k not in ("seconds", "environment")} for r in (a, b)]
    assert timeless[0] == timeless[1]
    assert torch.equal(a.public, b.public)
    for mine, theirs in zip(a.models, b.models, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(vars(mine).values(), vars(theirs).values(), strict=True))
    assert [(h["round"], h["valid_rmse"], h["bytes"]) for h in a.history] == [
        (h["round"], h["valid_rmse"], h["bytes"]) for h in b.history
    ]
    assert a.ledger.to_dict() == b.ledger.to_dict()


@pytest.mark.parametrize("gnn", ["gcn", "gat", "ggnn"])
def test_same_seed_same_bits(small_parties: list[vf.PartyData], gnn: str) -> None:
    first, second = (vf.train(small_parties, config(model=gnn)) for _ in range(2))
    same(first, second)
    assert not torch.equal(first.public, vf.train(small_parties, config(model=gnn, seed=1)).public)


@pytest.mark.parametrize("gnn", ["gcn", "gat"])
def test_same_bits_for_large_rounds_too(gnn: str) -> None:
    """Rounds of all ratings, long enough for torch to share sums out to threads."""
    parties = vf.split_items(vf.read_ratings("synthetic"), parties=3)
    chosen = vf.Config.preset("best", model=gnn, epochs=6)
    runs = [vf.train(parties, chosen)]
    torch.set_num_threads(2)
    try:
        runs += [vf.train(parties, chosen) for _ in range(3)]
    finally:
        torch.set_num_threads(1)
    assert sum(len(p.ratings) for p in parties) * 6 > 200_000
    for run in runs[1:]:
        same(runs[0], run)


@pytest.mark.parametrize("values", [{}, {"participation": 0.5}, {"model": "gat", "refresh": 1}, {"mechanism": "laplace"}])
def test_stopped_and_resumed_is_as_if_never_stopped(
    small_parties: list[vf.PartyData], tmp_path: Path, values: dict[str, Any]
) -> None:
    chosen = config(checkpoint_every=2, **values)
    whole = vf.train(small_parties, chosen, out=tmp_path / "whole")
    countdown = iter(range(100))
    with pytest.raises(Interrupted, match=r"stopped after round 8 of 24.*--resume"):
        vf.train(small_parties, chosen, out=tmp_path / "cut", stop=lambda: next(countdown) == 7)
    resumed = vf.resume(tmp_path / "cut")
    same(whole, resumed)
    same(vf.Run.load(tmp_path / "whole"), vf.Run.load(tmp_path / "cut"))
    same(vf.resume(tmp_path / "cut"), resumed)


def test_killed_at_any_time_loses_nothing_but_the_rounds_since(small_parties: list[vf.PartyData], tmp_path: Path) -> None:
    """SIGKILL while a checkpoint is written every round, several times over; the end is the same."""
    code = """
import sys, verfedgnn as vf
from verfedgnn.data import synthetic_ratings
parties = vf.split_items(synthetic_ratings(users=120, items=90, ratings=4000, seed=5), parties=3, seed=5)
config = vf.Config.preset("paper", batch=400, epochs=12, checkpoint_every=1)
print("ready", flush=True)
watch = lambda p: print(p.round, flush=True)
vf.train(parties, config, out=sys.argv[1], watch=watch) if sys.argv[2] == "new" else vf.resume(sys.argv[1], watch=watch)
"""
    out = tmp_path / "run"
    mode = "new"
    for pause in (0.13, 0.29):
        process = subprocess.Popen([sys.executable, "-c", code, str(out), mode], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip().isdigit():
                break
        time.sleep(pause)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert (out / "metrics.json").exists() or any((out / "checkpoint").glob("round-*"))
        mode = "resume"
    killed = vf.resume(out)
    whole = vf.train(small_parties, vf.Config.preset("paper", batch=400, epochs=12, checkpoint_every=1))
    same(whole, killed)


def test_stopped_before_the_first_validation(small_parties: list[vf.PartyData], tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        vf.train(small_parties, config(), out=tmp_path / "run", stop=lambda: True)
    same(vf.resume(tmp_path / "run"), vf.train(small_parties, config()))


def test_killed_between_the_last_round_and_the_figures(
    small_parties: list[vf.PartyData], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, values in {"all rounds": {}, "patience": {"patience": 1, "epochs": 50, "lr": 1.0}}.items():
        with monkeypatch.context() as patch:
            patch.setattr(vf.Run, "complete_folder", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                vf.train(small_parties, config(**values), out=tmp_path / name)
        same(vf.resume(tmp_path / name), vf.train(small_parties, config(**values)))


def test_a_full_disk_is_one_line_and_the_run_goes_on_later(
    small_parties: list[vf.PartyData], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    chosen = config(checkpoint_every=2)
    real, calls = checkpoint.write_bytes, iter(range(1000))
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_bytes", lambda path, data: (real if next(calls) < 6 else full)(path, data))
        with pytest.raises(vf.RunError, match=r"No space left on device.*make room"):
            vf.train(small_parties, chosen, out=tmp_path / "run")
    same(vf.resume(tmp_path / "run"), vf.train(small_parties, chosen))


def test_overwrite_waits_until_it_can_write(small_parties: list[vf.PartyData], tmp_path: Path) -> None:
    vf.train(small_parties, config(), out=tmp_path / "run")
    with pytest.raises(vf.ConfigError, match="--device cpu"):
        vf.train(small_parties, config(), out=tmp_path / "run", overwrite=True, device="meta")
    assert vf.Run.load(tmp_path / "run")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "config.toml").write_text('title = "my pages"')
    with pytest.raises(vf.RunError, match="not a run folder"):
        vf.train(small_parties, config(), out=tmp_path / "site", overwrite=True)


def test_an_unfinished_checkpoint_leaves_the_last_good_one(
    small_parties: list[vf.PartyData], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = config(checkpoint_every=3)
    real, calls = checkpoint.write_bytes, iter(range(1000))

    def dies(path: Path, data: bytes) -> None:
        if next(calls) == 7:
            path.write_bytes(data[: len(data) // 2])
            raise KeyboardInterrupt
        real(path, data)

    monkeypatch.setattr(checkpoint, "write_bytes", dies)
    with pytest.raises(KeyboardInterrupt):
        vf.train(small_parties, chosen, out=tmp_path / "run")
    monkeypatch.undo()
    assert [p.name for p in sorted((tmp_path / "run" / "checkpoint").glob("round-*"))] == ["round-00000003"]
    same(vf.resume(tmp_path / "run"), vf.train(small_parties, chosen))


def federation(parties: list[vf.PartyData], chosen: vf.Config, *, stack: bool = True) -> LocalRuntime:
    prepared = prepare(parties, chosen, torch.device("cpu"))
    members = [Party(p.input, chosen, party_secret(0, i)) for i, p in enumerate(prepared)]
    return LocalRuntime(Coordinator(chosen, [p.party.name for p in prepared]), members, stack=stack)


@pytest.mark.parametrize("gnn", ["gcn", "gat", "ggnn"])
def test_stacked_is_one_by_one_up_to_rounding(small_parties: list[vf.PartyData], gnn: str) -> None:
    """Unquantized and with plain steps, so that a difference in rounding stays one: ten rounds, within 1e-5."""
    chosen = config(model=gnn, mechanism="none", optimizer="sgd", lr=0.001)
    stacked, single = federation(small_parties, chosen), federation(small_parties, chosen, stack=False)
    for _ in range(10):
        stacked.round()
        single.round()
    a, b = stacked.coordinator.replica.parameters, single.coordinator.replica.parameters
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
    assert stacked.ledger.messages == single.ledger.messages


def test_shared_replica_is_as_good_as_one_each(small_parties: list[vf.PartyData]) -> None:
    """Parties that hold their own replica and projection, as separate processes do, give the same bits."""
    chosen = config(participation=0.67)
    shared, apart = federation(small_parties, chosen, stack=False), federation(small_parties, chosen, stack=False)
    for name, party in apart.parties.items():
        party.welcome(apart.coordinator.welcome(name))
    assert len({id(p.replica) for p in apart.parties.values()}) == 3
    for _ in range(12):
        shared.round()
        apart.round()
    assert torch.equal(shared.coordinator.replica.parameters, apart.coordinator.replica.parameters)


def test_a_party_that_sat_out_long_gets_a_full_copy(small_parties: list[vf.PartyData]) -> None:
    chosen = config(participation=0.34, epochs=40, evaluate_every=1000)
    runtime = federation(small_parties, chosen, stack=False)
    for name, party in runtime.parties.items():
        party.welcome(runtime.coordinator.welcome(name))
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
    runtime.coordinator.evaluate_every = 1
    runtime.round()


def test_a_diverged_replica_is_noticed(small_parties: list[vf.PartyData]) -> None:
    runtime = federation(small_parties, config(evaluate_every=1), stack=False)
    runtime.round()
    next(iter(runtime.parties.values())).replica.parameters[0] += 1e-6
    with pytest.raises(vf.ProtocolError, match="differ from the coordinator's"):
        runtime.round()


def test_participation_and_block_projection_train(small_parties: list[vf.PartyData]) -> None:
    run = vf.train(small_parties, config(participation=0.5, block=50, reconstruction="scaled"))
    assert run.metrics["test"]["rmse"] < 1.5
    releases = run.metrics["privacy"]["gradients"]["releases"]
    assert releases < run.metrics["rounds"]


def reachable(root: object) -> Iterator[object]:
    """Everything that can be reached from an object through Python references, but not through modules and classes."""
    seen, queue = {id(root)}, [root]
    while queue:
        for thing in gc.get_referents(queue.pop()):
            if id(thing) not in seen and not isinstance(thing, type) and type(thing).__name__ not in ("module", "function"):
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
    secrets = {party.secret for party in runtime.parties.values()}
    for party in runtime.parties.values():
        train, graph = party.data.train, party.graph
        private = [party.items, party.accumulator, train.user, train.item, train.rating, graph.user_degree, graph.item_degree]
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
        assert reply.gradient.shape == (-(-party.model.size // 5),)
        assert reply.neighbourhoods.shape == (2, 24, 6)
        assert set(np.unique(reply.gradient)) <= set(range(243))


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
        coordinator.receive("party-0", reply.model_copy(update={"neighbourhoods": np.zeros((1, 1, 1), np.int32)}))
    coordinator.receive("party-0", reply)
    with pytest.raises(vf.ProtocolError, match="no reply is due"):
        coordinator.receive("party-0", reply)


def test_joining_needs_the_same_configuration_and_users(small_parties: list[vf.PartyData]) -> None:
    runtime = federation(small_parties, config())
    hello = runtime.parties["party-0"].hello()
    fresh = Coordinator(config(), ["party-0", "party-1"])
    with pytest.raises(vf.ProtocolError, match="not among"):
        fresh.hello(hello.model_copy(update={"party": "stranger"}))
    with pytest.raises(vf.ProtocolError, match="its configuration differs"):
        fresh.hello(hello.model_copy(update={"config": "0" * 16}))
    fresh.hello(hello)
    with pytest.raises(vf.ProtocolError, match="align the users"):
        fresh.hello(hello.model_copy(update={"party": "party-1", "users": 7}))


def test_early_stopping_keeps_the_best(small_parties: list[vf.PartyData]) -> None:
    run = vf.train(small_parties, vf.Config.preset("paper", batch=400, epochs=200, patience=3, lr=0.5, mechanism="none"))
    best = min(run.history, key=lambda entry: entry["valid_rmse"])
    assert run.metrics["best_round"] == best["round"] < run.metrics["rounds"] < 200 * 6
    assert run.metrics["valid"]["rmse"] == pytest.approx(best["valid_rmse"], rel=1e-6)


def test_training_learns_and_lift_is_reported(small_parties: list[vf.PartyData]) -> None:
    run = vf.train(small_parties, vf.Config.preset("best", epochs=60))
    assert run.history[-1]["valid_rmse"] < run.history[0]["valid_rmse"]
    lift = vf.lift(run)
    assert lift["overall"]["federated"] == pytest.approx(run.metrics["test"]["rmse"])
    assert [row["name"] for row in lift["parties"]] == [p.name for p in small_parties]
    assert all(0.3 < row[key] < 3 for row in lift["parties"] for key in ("biases", "alone", "federated", "pooled"))


def test_lift_judges_all_on_the_same_ratings(small_parties: list[vf.PartyData], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when parts go by time, which pooling would change: each party's last rating is not the pooled last one."""
    judged: list[int] = []
    real = lift_module.rating_errors
    monkeypatch.setattr(
        lift_module, "rating_errors", lambda users, items, pairs: judged.append(len(pairs)) or real(users, items, pairs)
    )
    run = vf.train(small_parties, config(**{"split.kind": "time", "epochs": 1}))
    vf.lift(run)
    counts = [len(p.test) for p in run.prepared()]
    assert sorted(judged) == sorted(counts * 3)


def test_given_parts_stay_with_the_run(small_parties: list[vf.PartyData], tmp_path: Path) -> None:
    """A split of one's own is used by every later step: resume, evaluate, lift."""
    parts = [np.arange(len(p.ratings)).astype(np.int8) % 3 for p in small_parties]
    whole = vf.train(small_parties, config(), parts=parts)
    with pytest.raises(Interrupted):
        vf.train(small_parties, config(), parts=parts, out=tmp_path / "run", stop=lambda: True)
    run = vf.resume(tmp_path / "run")
    same(whole, run)
    assert vf.Run.load(tmp_path / "run").evaluate()["test"] == pytest.approx(whole.metrics["test"])
    assert vf.lift(run)["overall"]["federated"] == pytest.approx(whole.metrics["test"]["rmse"])
    with pytest.raises(vf.DataError, match="every rating of every party"):
        vf.train(small_parties, config(), parts=parts[:2])


def test_misuse_from_python_is_explained(small_parties: list[vf.PartyData]) -> None:
    with pytest.raises(vf.ConfigError, match="is a Config"):
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


def test_a_party_without_test_ratings_has_no_figure(small_parties: list[vf.PartyData], tmp_path: Path) -> None:
    run = vf.train(small_parties, config(fractions=[0.8, 0.2, 0.0], epochs=1), out=tmp_path / "run")
    assert run.metrics["test"]["rmse"] is None
    assert "NaN" not in (tmp_path / "run" / "metrics.json").read_text()


def test_divergence_names_the_remedy(small_parties: list[vf.PartyData]) -> None:
    with pytest.raises(vf.VerFedGNNError, match=r"diverged.*lower training\.lr"):
        vf.train(small_parties, config(mode="none", mechanism="none", clip="unset", optimizer="sgd", lr=1e6))


def test_a_run_is_saved_only_as_a_new_folder(small_parties: list[vf.PartyData], tmp_path: Path) -> None:
    run = vf.train(small_parties, config(epochs=1))
    run.save(tmp_path / "run")
    same(run, vf.Run.load(tmp_path / "run"))
    with pytest.raises(vf.RunError, match="exists already"):
        run.save(tmp_path / "run")


def test_file_names_of_parties_never_collide() -> None:
    table = vf.read_ratings("synthetic")
    names = ["a-2", "a!", "a", "A", "é", "ü", "x" * 100]
    files = safe_names([vf.PartyData(name, table) for name in names])
    assert len({name.lower() for name in files}) == len(names)
    with pytest.raises(vf.DataError, match="printable"):
        check_parties([vf.PartyData("x" * 101, table)])


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


def test_metrics_file_keeps_its_contract(small_parties: list[vf.PartyData], tmp_path: Path) -> None:
    vf.train(small_parties, config(), out=tmp_path / "run")
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    for path in ("test.rmse", "valid.rmse", "rounds", "seconds", "bytes.up", "bytes.down", "bytes.per_party_per_round"):
        value: Any = metrics
        for key in path.split("."):
            value = value[key]
        assert value > 0
    assert {"gradients", "neighbourhoods"} <= set(metrics["privacy"])
    assert [p["name"] for p in metrics["parties"]] == ["party-0", "party-1", "party-2"]
    assert all(p["test"]["rmse"] > 0 for p in metrics["parties"])
    assert sorted(os.listdir(tmp_path / "run")) == sorted(
        ["checkpoint", "config.toml", "history.jsonl", "ledger.json", "metrics.json", "model", "parties"]
    )

"""A federation that trains ratings, lists, and both again on all ratings: equality with the local runtime, kills, two parties."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_aligned_training import on_one_machine, spelled
from test_federation import PATIENT, Fault, assert_same, assert_same_model, local, trial

import verfedgnn as vf
from helpers import same
from hub import SERVER, Clock, Killed, Trial, agree, wait_until
from verfedgnn.data import TRAIN
from verfedgnn.data.splits import draw_withheld
from verfedgnn.evaluation.verdict import narrow_lift
from verfedgnn.federation.agreement import describe_two_parties, list_stages, summarise_agreement
from verfedgnn.federation.status import exposition, make_tables, page
from verfedgnn.federation.stores import PartyStore
from verfedgnn.protocol.messages import (
    Finished,
    Hello,
    RoundReply,
    RoundStart,
    Waiting,
    decode,
    encode,
    kind_of,
)

SMALL: dict[str, Any] = {
    "epochs": 4,
    "raters": 3,
    "evaluate_every": 2,
    "dim": 6,
    "unprotected": ["noise"],
    "final": False,
}


@pytest.fixture(autouse=True)
def short_final_trainings(monkeypatch: pytest.MonkeyPatch, short_own_models: None) -> None:
    monkeypatch.setattr("verfedgnn.config.tree.FINAL_ROUNDS", {"ratings": 3, "raters": 3, "lists": 2})


def best(**values: Any) -> vf.Config:
    """Return a short version of preset best, which trains ratings and lists."""
    return vf.Config.preset("best").with_values(SMALL | values)


def assert_both_same(federated: Trial, run: vf.Run) -> None:
    """Compare ratings and lists of every party, judged and served, and its verdict, with those of one machine."""
    assert_same(federated, run)
    for index, name in enumerate(federated.parties):
        party = federated.runs[name]
        for mine, theirs in ((party, run), (party.judged, run.judged)):
            assert mine.lists is not None
            assert theirs.lists is not None
            assert torch.equal(mine.lists.public, theirs.lists.public)
            assert_same_model(mine.models[0], theirs.models[index])
            assert_same_model(mine.lists.models[0], theirs.lists.models[index])
        assert party.metrics["lists"]["public"] == run.metrics["lists"]["public"]
        row = party.metrics["parties"][0]
        assert row["gate"] == run.metrics["parties"][index]["gate"]
        assert row["list_gate"] == run.metrics["parties"][index]["list_gate"]
        assert row["test"] == run.metrics["parties"][index]["test"]
        verdict = narrow_lift(run.metrics["lift"], name)
        verdict.pop("twins", None)  # which only one machine can find
        own = dict(party.metrics["lift"])
        assert "A party cannot check that alone" in own.pop("twins")
        assert own == verdict


def in_training(config: vf.Config, kind: type, number: int, then: Callable[[], None]) -> Fault:
    """Return a fault that calls `then` once, at the message `number` of a kind after the Hello to a training."""
    wanted = config.digest()
    state = {"joined": False, "count": 0, "done": False}

    def fault(data: bytes) -> bytes:
        message = decode(data)
        state["joined"] |= isinstance(message, Hello) and message.config == wanted
        if state["joined"] and isinstance(message, kind) and not state["done"]:
            state["count"] += 1
            if state["count"] == number:
                state["done"] = True
                then()
        return data

    return fault


def greets(federated: Trial, wanted: str) -> set[str]:
    """Return who has sent a Hello to the training with this configuration."""
    hellos = ((name, decode(data)) for name, _, data in federated.hub.seen if kind_of(data) is Hello)
    return {name for name, hello in hellos if isinstance(hello, Hello) and hello.config == wanted}


def test_ratings_and_lists_equal_the_local_runtime(tmp_path: Path, small_parties: list[vf.PartyData]) -> None:
    config = best()
    federated = trial(tmp_path, small_parties, config)
    federated.run()
    run = local(small_parties, config)
    assert_both_same(federated, run)
    loaded = vf.Run.load(tmp_path / "run-party-0")
    assert loaded.lists is not None
    assert loaded.metrics["lists"]["public"] == run.metrics["lists"]["public"]
    assert loaded.metrics["lists"]["rounds"] == 3
    assert_same_model(loaded.models[0], run.models[0])
    lists = tmp_path / "run-party-0" / "lists"
    assert {path.name for path in lists.iterdir()} == {
        "checkpoint", "config.toml", "history.jsonl", "ledger.json", "metrics.json", "model",
        "releases.jsonl", "survivors.jsonl",
    }  # fmt: skip
    assert (tmp_path / "run-server" / "lists" / "model" / "_public.safetensors").is_file()


@pytest.mark.parametrize("training", ["lists", "final", "final lists"])
@pytest.mark.parametrize(
    ("kind", "number"),
    [(Hello, 1), (RoundReply, 1), (RoundReply, 2), (Finished, 1)],
    ids=["joining", "first round", "second round", "the end"],
)
def test_a_party_killed_in_a_later_training(
    tmp_path: Path, small_parties: list[vf.PartyData], kind: type, number: int, training: str
) -> None:
    config = best(final=training != "lists")
    federated = trial(tmp_path, small_parties, config)
    (wanted,) = (one.config for one in list_stages(federated.agreement) if one.name == training)
    assert_killed_once(federated, lambda die: in_training(wanted, kind, number, die))
    assert_both_same(federated, local(small_parties, config))


def test_a_party_killed_before_it_reports_the_first_result(
    tmp_path: Path, small_parties: list[vf.PartyData]
) -> None:
    """Its Hello to the second training tells the coordinator that it has the first result."""
    config = best()
    federated = trial(tmp_path, small_parties, config)
    first = list_stages(federated.agreement)[0].config
    assert_killed_once(federated, lambda die: in_training(first, Finished, 1, die))
    assert_both_same(federated, local(small_parties, config))


def assert_killed_once(federated: Trial, make_fault: Callable[[Callable[[], None]], Fault]) -> None:
    """Run a federation with a fault of one party, which calls the function that it gets to kill the party."""
    killed: list[bool] = []

    def die() -> None:
        killed.append(True)
        raise Killed

    federated.run({"party-1": make_fault(die)})
    assert killed


@pytest.mark.parametrize("training", ["lists", "final"])
@pytest.mark.parametrize("start", [1, 5, 9], ids=["before", "first rounds", "the end"])
def test_the_coordinator_killed_between_and_in_later_trainings(
    tmp_path: Path, small_parties: list[vf.PartyData], start: int, training: str
) -> None:
    """Twice: at a message to a party of that training, and twelve messages later."""
    config = best(final=training == "final")
    federated = trial(tmp_path, small_parties, config)
    (wanted,) = (one.config.digest() for one in list_stages(federated.agreement) if one.name == training)
    sent = 0
    killed = []

    def fault(data: bytes) -> bytes:
        nonlocal sent
        sent += sent > 0 or bool(greets(federated, wanted))
        if sent in (start, start + 12):
            killed.append(sent)
            raise Killed
        return data

    federated.run({SERVER: fault})
    assert len(killed) == 2
    assert_both_same(federated, local(small_parties, config))


def test_a_party_ahead_of_the_others_waits(tmp_path: Path, small_parties: list[vf.PartyData]) -> None:
    """A party that misses the end of the first training gets its result while the others wait for it in the second."""
    config = best()
    federated = trial(tmp_path, small_parties, config)
    late = "party-2"
    killed: list[bool] = []

    def fault(data: bytes) -> bytes:
        if isinstance(decode(data), Finished) and not killed:
            killed.append(True)
            raise Killed
        return data

    for name in (SERVER, "party-0", "party-1"):
        federated.start(name)
    federated.start(late, fault, restart=False).join(180)
    result = tmp_path / f"run-{late}" / "checkpoint" / "result"
    shutil.rmtree(result)  # as if it had been killed before it stored the result
    federated.start(late)
    federated.join()
    assert_both_same(federated, local(small_parties, config))
    assert greets(federated, config.for_lists().digest()) == set(federated.parties)
    assert not federated.services[SERVER].offences


@pytest.mark.parametrize("final", [False, True])
def test_two_parties_with_the_default_preset(
    tmp_path: Path, small_parties: list[vf.PartyData], final: bool
) -> None:
    config = best(final=final)
    federated = trial(tmp_path, small_parties[:2], config)
    federated.run()
    run = local(small_parties[:2], config)
    assert federated.runs["party-0"].judged.config == run.judged.config.with_values({"split.kind": "auto"})
    assert_both_same(federated, run)
    assert describe_two_parties(federated.agreement) == (
        "Either of two parties can subtract its own part from a sum and see the other's rounded gradients, with noise; "
        "masks hide these only from the coordinator. Ratings, item ids and item embeddings are never sent."
    )
    assert summarise_agreement(federated.agreement)["trainings"][:2] == ["ratings", "lists"]


def test_lists_with_partial_overlap(tmp_path: Path, small_parties: list[vf.PartyData]) -> None:
    federated = trial(tmp_path, spelled(small_parties, 0.5), best(), alignment="keyed")
    federated.run()
    assert_both_same(federated, on_one_machine(federated))


@pytest.mark.parametrize("final", [False, True])
def test_no_lists_where_a_party_has_nothing_to_rank(
    tmp_path: Path, small_parties: list[vf.PartyData], final: bool
) -> None:
    """One party's ratings are all below the upper quarter of its scale; all parties keep their ratings."""
    table = small_parties[1].ratings
    low = replace(table, rating=np.minimum(table.rating, 3), scale=(1.0, 5.0))
    parties = [small_parties[0], vf.PartyData("party-1", low), small_parties[2]]
    config = best(final=final)
    federated = trial(tmp_path, parties, config)
    federated.run()
    run = local(parties, config)
    assert run.lists is None
    assert_same(federated, run)
    for name in federated.parties:
        assert federated.runs[name].lists is None
        assert not (tmp_path / f"run-{name}" / "lists").exists()
        assert (tmp_path / f"run-{name}" / "final" / "metrics.json").is_file() == final
        assert not (tmp_path / f"run-{name}" / "final" / "lists").exists()
        assert vf.Run.load(tmp_path / f"run-{name}").metrics["public"] == run.metrics["public"]


def test_a_kill_while_the_gate_is_chosen(
    tmp_path: Path, small_parties: list[vf.PartyData], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate is chosen again from the stored results, without the coordinator."""
    config = best()
    original = vf.Run.complete_folder
    killed: list[bool] = []

    def complete(run: vf.Run, folder: Path) -> None:
        if folder.name == "run-party-1" and not killed:
            killed.append(True)
            assert run.lists is not None
            original(run.lists, folder / "lists")  # killed between the two models
            raise Killed
        original(run, folder)

    monkeypatch.setattr(vf.Run, "complete_folder", complete)
    federated = trial(tmp_path, small_parties, config)
    federated.run()
    assert killed
    assert_both_same(federated, local(small_parties, config))
    assert PartyStore(tmp_path / "run-party-1", federated.identities["party-1"]).is_finished


def test_nobody_is_asked_to_align_again_in_the_second_training(
    tmp_path: Path, small_parties: list[vf.PartyData]
) -> None:
    config = best()
    federated = trial(tmp_path, small_parties, config)
    wanted = config.for_lists().digest()
    done: list[bool] = []

    def realign(data: bytes) -> bytes:
        if kind_of(data) is Waiting and not done and greets(federated, wanted):
            done.append(True)
            return encode(Waiting(missing=["somebody"], align=True))
        return data

    for name in (SERVER, *federated.parties):
        federated.start(name, realign if name == SERVER else None)
    wait_until(lambda: bool(federated.errors))
    federated.stopping = True
    federated.join()
    (error,) = next(iter(federated.errors.values()))
    assert "the training here is kept" in str(error)
    for name in federated.parties:
        assert (tmp_path / f"run-{name}" / "federation.txt").is_file()


def test_a_partys_secret_differs_between_trainings(tmp_path: Path, small_parties: list[vf.PartyData]) -> None:
    folder = tmp_path / "keys"
    folder.mkdir()
    _, identities = agree(folder, ["party-0", "party-1", "party-2"], best(unprotected=[]))
    store = PartyStore(tmp_path, identities["party-0"])
    (tmp_path / "secret").write_bytes(bytes(range(32)))
    ratings, lists = (store.record(stage).secret for stage in store.stages)
    assert ratings == bytes(range(32))
    assert lists != ratings


def test_status_page_metrics_and_tables_name_the_stage(
    tmp_path: Path, small_parties: list[vf.PartyData]
) -> None:
    config = best()
    federated = trial(tmp_path, small_parties, config)
    assert [stage.name for stage in list_stages(federated.agreement)] == ["ratings", "lists"]
    seen: set[str] = set()

    def watch(data: bytes) -> bytes:
        if isinstance(decode(data), RoundStart):
            seen.add(federated.services[SERVER].status()["stage"])
        return data

    federated.run({SERVER: watch})
    assert seen == {"ratings", "lists"}
    status = federated.services[SERVER].publisher.status
    assert (status["stage"], status["state"]) == ("lists", "finished")
    assert re.search(r"training of +lists", page(make_tables(status)))
    assert 'stage="lists"' in exposition(status)
    assert all(party["up"] and party["down"] for party in status["parties"].values())


# -- the trainings on all ratings ------------------------------------------------------------------------------------------


def test_judged_and_served_models_equal_those_of_one_machine(
    tmp_path: Path, small_parties: list[vf.PartyData]
) -> None:
    """Four trainings; the verdict of each party is that of its row on one machine, in every figure and word."""
    config = best(final=True)
    federated = trial(tmp_path, small_parties, config)
    assert [stage.name for stage in list_stages(federated.agreement)] == [
        "ratings", "lists", "final", "final lists",
    ]  # fmt: skip
    federated.run()
    run = local(small_parties, config)
    assert_both_same(federated, run)
    assert not torch.equal(run.public, run.judged.public)
    for name in federated.parties:
        party = federated.runs[name]
        assert (party.judged.parts[0] != TRAIN).any()
        assert (party.parts[0] == TRAIN).all()
        cost = party.metrics["final"]
        assert (cost["rounds"], cost["lists"]["rounds"]) == (3, 2)
        assert cost["public"] == run.metrics["final"]["public"]
        assert cost["bytes"]["up"] > 0
        loaded = vf.Run.load(tmp_path / f"run-{name}")
        same(loaded, party)
    for place in ("final", "final/lists"):
        assert (tmp_path / "run-server" / place / "model" / "_public.safetensors").is_file()
        assert not list((tmp_path / "run-party-0" / place).rglob("result"))


def test_a_party_killed_before_it_chooses_finds_all_four_results(
    tmp_path: Path, small_parties: list[vf.PartyData], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the folder of the served models is written and before that of the judged ones."""
    config = best(final=True)
    original = vf.Run.complete_folder
    killed: list[bool] = []

    def complete(run: vf.Run, folder: Path) -> None:
        if folder.name == "run-party-1" and run.final_of is None and not killed:
            killed.append(True)
            assert (folder / "final" / "metrics.json").is_file()
            raise Killed
        original(run, folder)

    monkeypatch.setattr(vf.Run, "complete_folder", complete)
    federated = trial(tmp_path, small_parties, config)
    federated.run()
    assert killed
    assert_both_same(federated, local(small_parties, config))


def test_the_users_whom_a_party_withholds_follow_from_its_key(
    tmp_path: Path, small_parties: list[vf.PartyData]
) -> None:
    """Nobody else can tell whose ratings are new in a training on all ratings."""
    _, identities = agree(tmp_path, ["party-0", "party-1"], best(unprotected=[]))
    secrets = [PartyStore(tmp_path / "run", identity).withholding_secret for identity in identities.values()]
    assert len(set(secrets)) == 3
    again = PartyStore(tmp_path / "another", identities["party-0"]).withholding_secret
    assert again == PartyStore(tmp_path / "run", identities["party-0"]).withholding_secret
    table = small_parties[0].ratings
    drawn = [draw_withheld(table, secret) for secret in secrets]
    assert not np.array_equal(drawn[0], drawn[1])


def test_a_party_stays_away_from_a_training_on_all_ratings(
    tmp_path: Path, small_parties: list[vf.PartyData], clock: Clock
) -> None:
    """It has no validated model before its last round, so the judged models are served; no later training begins."""
    config = best(final=True)
    federated = trial(tmp_path, small_parties, config, timeouts=PATIENT)

    def die() -> None:
        raise Killed

    for name in (SERVER, "party-0", "party-2"):
        federated.start(name)
    fault = in_training(config.for_final(), RoundReply, 2, die)
    federated.start("party-1", fault, restart=False).join(180)
    stage = federated.services[SERVER].stages[2]
    wait_until(lambda: stage.lacks_since is not None)
    clock.ahead += PATIENT.absent + 1
    wait_until(lambda: stage.record.ended is not None)
    federated.start("party-1")
    federated.join()
    assert not federated.errors
    judged = local(small_parties, config).judged
    for index, name in enumerate(federated.parties):
        run = federated.runs[name]
        assert run.final_of is None
        assert "final" not in run.metrics
        assert torch.equal(run.public, judged.public)
        assert_same_model(run.models[0], judged.models[index])
        assert not (tmp_path / f"run-{name}" / "final").exists()
        vf.Run.load(tmp_path / f"run-{name}")


def test_likes_without_ratings_train_lists_alone_if_the_members_agree(
    tmp_path: Path, small_parties: list[vf.PartyData]
) -> None:
    likes = [
        vf.PartyData(p.name, replace(p.ratings, rating=np.full_like(p.ratings.rating, 5)))
        for p in small_parties
    ]
    refused = trial(tmp_path / "ratings", likes, best())
    refused.start("party-0").join(180)
    assert "agree on lists alone, with `verfedgnn federation init --set model.biases=false`" in str(
        refused.errors["party-0"][0]
    )
    config = best(**{"model.biases": False, "raters": 0})
    federated = trial(tmp_path / "lists", likes, config)
    federated.run()
    assert_same(federated, local(likes, config))
    assert [stage.name for stage in list_stages(federated.agreement)] == ["lists"]
    status = {"stage": "lists", "valid_error": 0.75}
    assert re.search(r"training of +lists", page(make_tables(status)))
    assert re.search(r"validation +NDCG@20 0.25", page(make_tables(status)))
    metrics = federated.runs["party-0"].metrics
    assert metrics["test"]["rmse"] is None
    assert metrics["test"]["hitrate@20"] > 0
    assert metrics["lift"].keys() & {"lists", "parties", "overall"} == {"lists"}

"""A party whose users are divided among worker processes: the same result, the same messages, and a kill loses nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_federation import Fault, killed_at

import verfedgnn as vf
from hub import SERVER, Killed, Trial
from verfedgnn.core.worker_group import LostWorkerError
from verfedgnn.data import synthetic_ratings
from verfedgnn.gnn.model import Model
from verfedgnn.protocol.round.user_blocks import UserBlocks
from verfedgnn.protocol.round.user_shards import check_party, check_users
from verfedgnn.protocol.wire.framing import kind_of
from verfedgnn.protocol.wire.messages import RoundReply, decode
from verfedgnn.runs.checkpoint_slots import CheckpointSlots
from verfedgnn.runs.run_layout import LAST_RELEASE
from verfedgnn.upkeep.forget import forget_users
from worker_processes import more_workers

pytestmark = pytest.mark.usefixtures("warm")
UNPROTECTED = {"masking": False, "exchange.mode": "exact", "gradients.mechanism": "none"}


@pytest.fixture(scope="module")
def parties() -> list[vf.PartyData]:
    """Three parties with more common users than two workers need for two blocks."""
    return vf.split_items(synthetic_ratings(users=1100, items=60, ratings=9000, seed=3), parties=3, seed=3)


def settings(**values: Any) -> vf.Config:
    """Return preset best, short and with repeatable noise."""
    chosen = {
        "epochs": 4,
        "evaluate_every": 2,
        "dim": 4,
        "raters": 4,
        "reads": 2,
        "lists": False,
        "gate": False,
    }
    return vf.Config.preset("best", **(chosen | {"unprotected": ["noise", "sums", "clip"]} | values))


def trial(folder: Path, parties: list[vf.PartyData], config: vf.Config) -> Trial:
    return Trial(folder, parties, config, alignment="none", min_parties=3)


def train(
    folder: Path,
    parties: list[vf.PartyData],
    config: vf.Config,
    monkeypatch: pytest.MonkeyPatch,
    fault: Fault | None = None,
) -> Trial:
    """Train with two workers at the first party."""
    federated = trial(folder, parties, config)
    name = parties[0].name
    with more_workers(federated, name, monkeypatch):
        federated.run({} if fault is None else {name: fault})
    assert not federated.errors
    return federated


def sizes(federated: Trial, name: str) -> Counter[tuple[str, int]]:
    """Count the messages that a party sent and received, by kind and size."""
    found = [data for sender, to, data in federated.hub.seen if name in (sender, to)]
    return Counter((getattr(kind_of(data), "__name__", "?"), len(data)) for data in found)


@pytest.mark.parametrize(
    "config",
    [
        settings(**UNPROTECTED),
        settings(**UNPROTECTED, raters=0, user_blocks=2),
        vf.Config.preset(
            "paper",
            batch=0,
            epochs=4,
            evaluate_every=2,
            generator=True,
            unprotected=["noise", "sums", "clip"],
            **UNPROTECTED,
        ),
    ],
    ids=["all", "blocks", "generator"],
)
def test_two_workers_are_one_party(
    tmp_path: Path,
    parties: list[vf.PartyData],
    monkeypatch: pytest.MonkeyPatch,
    config: vf.Config,
) -> None:
    """Without protection, the result is that of one process but for the order of additions; messages have the same bytes."""
    alone = trial(tmp_path / "alone", parties, config)
    alone.run()
    shared = train(tmp_path / "shared", parties, config, monkeypatch)
    name = parties[0].name
    torch.testing.assert_close(shared.public(name), alone.public(name), rtol=0, atol=1e-4)
    ours, theirs = (each.runs[name].models[0].arrays() for each in (shared, alone))
    for key, values in theirs.items():
        torch.testing.assert_close(ours[key], values, rtol=1e-4, atol=1e-3, msg=key)
    rounds = ("RoundStart", "RoundReply", "Welcome", "Finish")
    mine, other = (
        Counter({key: count for key, count in sizes(each, name).items() if key[0] in rounds})
        for each in (shared, alone)
    )
    assert sum(size * count for (_, size), count in mine.items()) == pytest.approx(
        sum(size * count for (_, size), count in other.items()), rel=1e-4
    ), "JSON numbers may differ by a digit"


def test_masked_workers_survive_a_kill(
    tmp_path: Path, parties: list[vf.PartyData], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The masks of two workers cancel against those of one process, and a killed first worker resumes to the same bits."""
    config = settings(from_means=True)
    undisturbed = train(tmp_path / "undisturbed", parties, config, monkeypatch)
    assert undisturbed.services[SERVER].record.abandoned == 0
    killed = train(tmp_path / "killed", parties, config, monkeypatch, killed_at(5))
    for name in killed.parties:
        assert torch.equal(killed.public(name), undisturbed.public(name))
        for key, values in undisturbed.runs[name].models[0].arrays().items():
            assert torch.equal(killed.runs[name].models[0].arrays()[key], values), key


def test_a_round_that_one_worker_cannot_repeat_is_abandoned(
    tmp_path: Path, parties: list[vf.PartyData], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut takes what the second worker has released; the first speaks for it."""
    last = tmp_path / f"run-{parties[0].name}" / "checkpoint" / "worker-1" / "last-release"
    left = [True]

    def cut_power(data: bytes) -> bytes:
        if left and isinstance(message := decode(data), RoundReply) and message.round == 4:
            left.clear()
            for file in last.iterdir():
                file.write_bytes(b"")
            raise Killed
        return data

    federated = train(tmp_path, parties, settings(), monkeypatch, cut_power)
    assert federated.services[SERVER].record.abandoned == 1


def test_users_of_all_workers_are_forgotten(
    tmp_path: Path, parties: list[vf.PartyData], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoints of the first worker lose their rows; those of the others are deleted."""
    name = parties[0].name
    federated = train(tmp_path, parties, settings(), monkeypatch)
    folder = federated.folder / f"run-{name}"
    rated = np.unique(federated.runs[name].parties[0].ratings.user)
    first, last = int(rated[0]), int(rated[-1])
    before = CheckpointSlots(folder / "checkpoint" / "models").read()
    assert before is not None
    kept = before.state.arrays["best.users"]
    assert not list(folder.rglob(LAST_RELEASE)), "no worker keeps what it released last"
    forget_users(folder, federated.runs[name].parties[0].ratings.user_ids[[first, last]].tolist())
    after = CheckpointSlots(folder / "checkpoint" / "models").read()
    assert after is not None
    changed = np.flatnonzero((after.state.arrays["best.users"] != kept).any(1))
    assert len(kept) < 1100
    assert changed.tolist() == [first]
    assert not list((folder / "checkpoint").glob("worker-*"))


def private(**values: Any) -> vf.Config:
    """Return preset private, short and with repeatable noise."""
    chosen = {"epochs": 6, "evaluate_every": 3, "gate": False, "unprotected": ["noise", "sums"]}
    return vf.Config.preset("private", **chosen | values)


def test_private_workers_are_one_party(
    tmp_path: Path, parties: list[vf.PartyData], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With hardly any noise, two workers find the errors and the items of one process."""
    config = private(noise_multiplier=1e-4)
    alone = trial(tmp_path / "alone", parties, config)
    alone.run()
    shared = train(tmp_path / "shared", parties, config, monkeypatch)
    for name in shared.parties:
        ours, theirs = (each.runs[name] for each in (shared, alone))
        errors = [[entry["valid_rmse"] for entry in run.history] for run in (ours, theirs)]
        assert errors[0] == pytest.approx(errors[1], abs=1e-3)
        for key, value in theirs.models[0].arrays().items():
            torch.testing.assert_close(ours.models[0].arrays()[key], value, rtol=0, atol=0.02, msg=key)


def test_private_workers_hold_the_same_noised_items(
    tmp_path: Path, parties: list[vf.PartyData], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The noise on item rows is drawn once; that on users' rows differs between workers. A kill loses nothing."""
    config = private()
    undisturbed = train(tmp_path / "undisturbed", parties, config, monkeypatch)
    killed = train(tmp_path / "killed", parties, config, monkeypatch, killed_at(5))
    name = parties[0].name
    assert torch.equal(killed.public(name), undisturbed.public(name))
    folder = killed.folder / f"run-{name}" / "checkpoint"
    first, second = (CheckpointSlots(folder / place).read() for place in ("party", "worker-1/party"))
    assert first is not None
    assert second is not None
    items = [key for key in first.state.arrays if "items" in key or "item_bias" in key]
    assert items
    for key in items:
        assert np.array_equal(first.state.arrays[key], second.state.arrays[key]), key


def test_a_lost_worker_ends_the_party(
    tmp_path: Path, parties: list[vf.PartyData], monkeypatch: pytest.MonkeyPatch
) -> None:
    federated = trial(tmp_path, parties, settings(evaluate_every=1, epochs=300, patience=0))
    name = parties[0].name
    with more_workers(federated, name, monkeypatch) as process:
        for each in (SERVER, *federated.parties):
            federated.start(each, stop_at(4, process.kill) if each == name else None)
        federated.threads[1].join(180)
        federated.stopping = True
    federated.join()
    (error,) = federated.errors[name]
    assert isinstance(error, LostWorkerError)
    assert "run the same command again" in str(error)


def stop_at(send: int, action: Callable[[], None]) -> Fault:
    """Return a fault that calls `action` before a message is sent."""
    count = iter(range(1, 1_000_000))

    def fault(data: bytes) -> bytes:
        if next(count) == send:
            action()
        return data

    return fault


@pytest.mark.parametrize(
    ("preset", "values", "named"),
    [
        ("paper", {"batch": 400}, "training.batch"),
        ("paper", {}, "exchange.mode = projected"),
        ("best", {"residual": True}, "model.residual"),
        ("solved", {}, "model.form = solved"),
    ],
)
def test_trainings_that_cannot_be_divided_are_refused(
    preset: str, values: dict[str, Any], named: str
) -> None:
    with pytest.raises(vf.ConfigError, match=named):
        check_party(vf.Config.preset(preset, **values))


def test_too_few_users_are_refused() -> None:
    config = settings()
    with pytest.raises(vf.ConfigError, match="too few for 3 workers"):
        check_users(UserBlocks(config, Model(config.model, 600)), 3)
    config = settings(raters=0, user_blocks=2)
    with pytest.raises(vf.ConfigError, match="500 users of a block are too few for 2 workers"):
        check_users(UserBlocks(config, Model(config.model, 1000)), 2)

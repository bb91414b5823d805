"""A coordinator whose users are divided among worker processes: the same bits and bytes as with one, and a kill loses nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from test_federation import Fault, killed_at
from test_party_workers import UNPROTECTED, settings, stop_at

import verfedgnn as vf
from hub import SERVER, Killed, Trial
from verfedgnn.core.worker_group import LostWorkerError
from verfedgnn.data import synthetic_ratings
from verfedgnn.protocol.wire.framing import kind_of
from verfedgnn.protocol.wire.messages import Finish, RoundStart
from verfedgnn.runs.run import read_public
from worker_processes import more_workers

pytestmark = pytest.mark.usefixtures("warm")


@pytest.fixture(scope="module")
def parties() -> list[vf.PartyData]:
    """Three parties with as many common users as three workers need, and two workers for each of two blocks."""
    return vf.split_items(synthetic_ratings(users=1100, items=60, ratings=8000, seed=3), parties=3, seed=3)


def chosen(preset: str = "best", **values: Any) -> vf.Config:
    """Return a short training with repeatable noise."""
    if preset == "best":
        return settings(**values)
    fields = (
        {"gate": False, "unprotected": ["noise", "sums"]}
        if preset == "private"
        else {"unprotected": ["noise"]}
    )
    return vf.Config.preset(preset, **fields | values)


def trial(folder: Path, parties: list[vf.PartyData], config: vf.Config) -> Trial:
    return Trial(folder, parties, config, alignment="none", min_parties=3)


def train(
    folder: Path,
    parties: list[vf.PartyData],
    config: vf.Config,
    monkeypatch: pytest.MonkeyPatch,
    faults: dict[str, Fault] | None = None,
    workers: int = 2,
    before: Trial | None = None,
) -> Trial:
    """Train with several workers at the coordinator, from an earlier training if there is one."""
    federated = trial(folder, parties, config)
    if before is not None:
        federated.start_from = before.folder / f"run-{SERVER}"
        federated.align_options = {
            name: {"start_from": before.folder / f"run-{name}"} for name in federated.parties
        }
    if workers == 1:
        federated.run(faults)
    else:
        with more_workers(federated, SERVER, monkeypatch, workers):
            federated.run(faults)
    assert not federated.errors
    return federated


def sent(federated: Trial) -> list[bytes]:
    """Return the messages of the coordinator that hold rows of users and no random numbers, in some order."""
    kinds = (RoundStart, Finish)
    return sorted(
        data for sender, _, data in federated.hub.seen if sender == SERVER and kind_of(data) in kinds
    )


def assert_same(left: Trial, right: Trial) -> None:
    """Assert that two trainings ended with the same bits at all members."""
    for name in left.parties:
        assert torch.equal(left.public(name), right.public(name))
    ours, theirs = (read_public(each.folder / f"run-{SERVER}") for each in (left, right))
    assert ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize(
    ("values", "workers"),
    [
        ({"from_means": True}, 3),
        (UNPROTECTED, 2),
        ({"preset": "paper", "epochs": 2, "batch": 1500, "masking": True}, 2),
        ({"preset": "private", "epochs": 2}, 2),
    ],
    ids=["masked", "unprotected", "projected", "private"],
)
def test_workers_are_one_coordinator(
    tmp_path: Path,
    parties: list[vf.PartyData],
    monkeypatch: pytest.MonkeyPatch,
    values: dict[str, Any],
    workers: int,
) -> None:
    config = chosen(**values)
    alone = train(tmp_path / "alone", parties, config, monkeypatch, workers=1)
    shared = train(tmp_path / "shared", parties, config, monkeypatch, workers=workers)
    assert_same(shared, alone)
    assert sent(shared) == sent(alone)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, parties: list[vf.PartyData]) -> Trial:
    """A training of twelve rounds by one process."""
    federated = trial(tmp_path_factory.mktemp("undisturbed"), parties, settings(epochs=12, evaluate_every=3))
    federated.run()
    return federated


def test_kills_lose_nothing(
    tmp_path: Path, parties: list[vf.PartyData], undisturbed: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator is killed in the middle of a round, and a party comes back with a full copy of the parameters."""
    faults = {SERVER: killed_at(37), parties[1].name: killed_at(11)}
    killed = train(tmp_path / "killed", parties, settings(epochs=12, evaluate_every=3), monkeypatch, faults)
    assert_same(killed, undisturbed)


def test_a_training_continues_one_with_workers(
    tmp_path: Path, parties: list[vf.PartyData], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings(epochs=2)
    ends = []
    for workers in (1, 2):
        folder = tmp_path / str(workers)
        first = train(folder / "first", parties, config, monkeypatch, workers=workers)
        ends.append(train(folder / "second", parties, config, monkeypatch, workers=workers, before=first))
    assert_same(*ends)


def test_an_interrupted_checkpoint_of_one_worker_is_replaced_by_the_one_before(
    tmp_path: Path, parties: list[vf.PartyData], undisturbed: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    federated = trial(tmp_path / "cut", parties, settings(epochs=12, evaluate_every=3))

    count = iter(range(1, 1_000_000))

    def cut(data: bytes) -> bytes:
        if next(count) == 40:
            files = (federated.folder / f"run-{SERVER}" / "checkpoint" / "worker-1").iterdir()
            newest = max(files, key=lambda path: path.stat().st_mtime_ns)
            os.truncate(newest, newest.stat().st_size // 2)
            raise Killed
        return data

    with more_workers(federated, SERVER, monkeypatch):
        federated.run({SERVER: cut})
    assert not federated.errors
    assert_same(federated, undisturbed)


def test_a_lost_worker_ends_the_coordinator_and_another_number_is_refused(
    tmp_path: Path, parties: list[vf.PartyData], monkeypatch: pytest.MonkeyPatch
) -> None:
    federated = trial(tmp_path, parties, settings(epochs=300, patience=0))
    with more_workers(federated, SERVER, monkeypatch) as process:
        for name in (SERVER, *federated.parties):
            federated.start(name, stop_at(30, process.kill) if name == SERVER else None)
        federated.threads[0].join(180)
        (error,) = federated.errors[SERVER]
        assert isinstance(error, LostWorkerError)
        assert "run the same command again" in str(error)
    federated.start(SERVER).join(180)
    federated.stopping = True
    federated.join()
    assert "resume it with --workers 2" in str(federated.errors[SERVER][1])

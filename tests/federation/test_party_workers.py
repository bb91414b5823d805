"""A party whose users are divided among worker processes: the same result, the same messages, and a kill loses nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from test_federation import Fault, killed_at

import verfedgnn as vf
from hub import SERVER, Trial
from verfedgnn.core.worker_group import LostWorkerError
from verfedgnn.data import synthetic_ratings
from verfedgnn.protocol.wire.framing import kind_of
from worker_processes import more_workers

pytestmark = pytest.mark.usefixtures("warm")
UNPROTECTED = {"masking": False, "exchange.mode": "exact", "gradients.mechanism": "none"}


@pytest.fixture(scope="module")
def parties() -> list[vf.PartyData]:
    """Three parties with more common users than two workers need."""
    return vf.split_items(synthetic_ratings(users=600, items=60, ratings=5000, seed=3), parties=3, seed=3)


def settings(**values: Any) -> vf.Config:
    """Return preset best, short and with repeatable noise."""
    chosen = {"epochs": 6, "evaluate_every": 3, "dim": 4, "raters": 4, "lists": False, "gate": False}
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


def test_two_workers_are_one_party(
    tmp_path: Path, parties: list[vf.PartyData], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without protection, the result is that of one process but for the order of additions; messages have the same bytes."""
    config = settings(**UNPROTECTED)
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
    config = settings()
    undisturbed = train(tmp_path / "undisturbed", parties, config, monkeypatch)
    killed = train(tmp_path / "killed", parties, config, monkeypatch, killed_at(8))
    for name in killed.parties:
        assert torch.equal(killed.public(name), undisturbed.public(name))
        for key, values in undisturbed.runs[name].models[0].arrays().items():
            assert torch.equal(killed.runs[name].models[0].arrays()[key], values), key


def test_a_lost_worker_ends_the_party(
    tmp_path: Path, parties: list[vf.PartyData], monkeypatch: pytest.MonkeyPatch
) -> None:
    federated = trial(tmp_path, parties, settings(evaluate_every=1, epochs=300, patience=0))
    name = parties[0].name
    with more_workers(federated, name, monkeypatch) as process:
        for each in (SERVER, *federated.parties):
            federated.start(each, stop_at(4, process.kill) if each == name else None)
        federated.threads[1].join(60)
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
        ("best", {"raters": 0, "user_blocks": 2}, "training.user_blocks"),
        ("private", {}, "gradients.mechanism = skellam"),
    ],
)
def test_trainings_that_cannot_be_divided_are_refused(
    preset: str, values: dict[str, Any], named: str
) -> None:
    from verfedgnn.protocol.round.user_shards import check_shards

    with pytest.raises(vf.ConfigError, match=named):
        check_shards(vf.Config.preset(preset, **values), 10_000, 2)
    with pytest.raises(vf.ConfigError, match="too few for 3 workers"):
        check_shards(settings(), 600, 3)

"""A party computes only for users it has ratings of, where they are few: what it sends is what it would send otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import verfedgnn as vf
from helpers import config, federation
from verfedgnn.data import synthetic_ratings
from verfedgnn.protocol.party.party import Party
from verfedgnn.protocol.party.policy import LOCAL, Policy
from verfedgnn.protocol.round import user_subset
from verfedgnn.protocol.round.user_blocks import computes_single_blocks
from verfedgnn.training.local_runtime import LocalRuntime


@pytest.fixture(scope="module")
def sparse_parties() -> list[vf.PartyData]:
    """Four of ten parties, each with training ratings of less than half of the users."""
    return vf.split_items(synthetic_ratings(users=300, items=90, ratings=500), parties=10)[2:6]


def messages(**values: Any) -> vf.Config:
    raters = 3 if values.keys().isdisjoint(("user_blocks", "training.objective")) else 0
    return vf.Config.preset("best").with_values(
        {"dim": 4, "raters": raters, "gate": False, "epochs": 9, "evaluate_every": 4, **values}
    )


def few(party: Party) -> bool:
    blocks = party.replica.blocks
    block = blocks.blocks[0] if computes_single_blocks(party.config) else blocks.all_users
    return party.subset(block, True).rows is not None


def rounds(runtime: LocalRuntime, count: int = 5) -> LocalRuntime:
    for _ in range(count):
        runtime.round()
    return runtime


PLAIN: dict[str, Any] = {
    "epochs": 9,
    "mechanism": "none",
    "optimizer": "sgd",
    "lr": 0.001,
    "evaluate_every": 3,
}
UNMASKED: dict[str, Any] = {**PLAIN, "masking": False, "exchange.mode": "projected", "exchange.block": 20}


@pytest.mark.parametrize(
    "chosen",
    [
        *(config(model=gnn, **PLAIN) for gnn in ("gcn", "gat", "ggnn")),
        config(block=20, reconstruction="scaled", **PLAIN),
        config(block=20, residual=True, **PLAIN),
        config(estimators=False, **PLAIN, **{"exchange.mode": "exact", "unprotected": ["degrees"]}),
        *(messages(gnn=gnn, **UNMASKED) for gnn in ("gcn", "gat", "ggnn")),
        messages(residual=True, **UNMASKED),
        messages(**UNMASKED, **{"training.objective": "ranking"}),
    ],
    ids=lambda chosen: f"{chosen.model.form}-{chosen.model.gnn}-{chosen.training.user_blocks}",
)
def test_computing_few_users_is_computing_all(
    sparse_parties: list[vf.PartyData], chosen: vf.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unquantized and with plain steps, so that a difference in rounding stays one."""
    some = rounds(federation(sparse_parties, chosen, stack=False))
    monkeypatch.setattr(user_subset, "FEW", 0.0)
    everybody = rounds(federation(sparse_parties, chosen, stack=False))
    assert all(few(party) for party in some.parties.values())
    assert not any(few(party) for party in everybody.parties.values())
    torch.testing.assert_close(
        some.coordinator.replica.parameters, everybody.coordinator.replica.parameters, atol=1e-5, rtol=1e-4
    )
    for mine, theirs in zip(some.parties.values(), everybody.parties.values(), strict=True):
        for name, value in mine.progress.private.parameters.items():
            torch.testing.assert_close(value, theirs.progress.private.parameters[name], atol=1e-5, rtol=1e-4)
        for part, sent in mine.progress.exchange.sent.items():
            np.testing.assert_allclose(sent.values, theirs.progress.exchange.sent[part].values, atol=20)
        assert mine.progress.evaluated is not None
        assert theirs.progress.evaluated is not None
        assert len(mine.progress.evaluated[1]["users"]) == 300
        torch.testing.assert_close(
            mine.progress.evaluated[1]["users"], theirs.progress.evaluated[1]["users"], atol=1e-4, rtol=1e-4
        )


@pytest.mark.parametrize("chosen", [config(block=20), messages()], ids=["propagation", "messages"])
def test_only_users_with_ratings_have_a_gradient(
    sparse_parties: list[vf.PartyData], chosen: vf.Config
) -> None:
    runtime = federation(
        sparse_parties, chosen.with_values({"masking": False, "exchange.mode": "projected"}), stack=False
    )
    for name, start in runtime.coordinator.open().items():
        party = runtime.parties[name]
        gradient = party.handle(start).gradient
        assert gradient.shape == (party.model.size,)
        moved = np.flatnonzero(party.model.views(torch.from_numpy(gradient))["users"].any(1))
        assert set(moved) <= set(party.data.train.user.tolist())
        assert len(moved)


def test_masks_cancel(sparse_parties: list[vf.PartyData]) -> None:
    bare, masked = (
        rounds(federation(sparse_parties, messages(), stack=False, policy=t)) for t in (LOCAL, Policy())
    )
    assert all(few(party) for party in masked.parties.values())
    assert torch.equal(bare.coordinator.replica.parameters, masked.coordinator.replica.parameters)


def test_a_part_without_anybodys_ratings(sparse_parties: list[vf.PartyData]) -> None:
    """Nobody to compute for: as if there were no choice."""
    runtime = rounds(federation(sparse_parties, messages(user_blocks=30), stack=False), 30)
    counts = [
        len(s.rows)
        for p in runtime.parties.values()
        for s in p.present_ratings.subsets.values()
        if s.rows is not None
    ]
    assert min(counts) == 1
    assert len(counts) < 4 * 30


def test_a_round_about_nobody_a_party_has_ratings_of() -> None:
    """Propagation goes over all of a party's users; its gradient is of those whose turn it is, here of none."""
    parties = vf.split_items(synthetic_ratings(users=300, items=90, ratings=120), parties=10)[2:6]
    runtime = rounds(federation(parties, config(block=5, user_blocks=20), stack=False), 20)
    turns = [
        len(p.subset(p.replica.blocks.all_users, True).within(block)[1].rows)
        for p in runtime.parties.values()
        for block in p.replica.blocks.blocks
    ]
    assert min(turns) == 0
    assert bool(runtime.coordinator.replica.parameters.isfinite().all())


def test_noise_is_on_everybody_and_a_generator_learns_from_everybody(
    sparse_parties: list[vf.PartyData],
) -> None:
    noised = federation(sparse_parties, config(mechanism="laplace", epsilon=1.0))
    imagined = federation(sparse_parties, config(generator=True))
    assert not any(few(party) for runtime in (noised, imagined) for party in runtime.parties.values())


@pytest.mark.parametrize(
    "chosen",
    [
        config(epochs=9),
        config(block=20, user_blocks=5),
        messages(),
        messages(gnn="ggnn", user_blocks=3),
    ],
)
def test_a_reply_is_no_larger_than_the_coordinator_unpacks(
    sparse_parties: list[vf.PartyData], chosen: vf.Config
) -> None:
    runtime = rounds(federation(sparse_parties, chosen), 6)
    sizes = [
        array.nbytes
        for reply in runtime.coordinator.replies.values()
        for array in (reply.gradient, reply.neighbourhoods)
        if array is not None
    ]
    assert sizes
    assert max(sizes) <= runtime.coordinator.largest_array <= 8 * 4 * runtime.coordinator.model.size


@pytest.mark.parametrize(
    "chosen",
    [
        config(participation=0.4),
        config(block=20, user_blocks=5, participation=0.4),
        messages(),
        messages(gnn="ggnn", user_blocks=3),
    ],
)
def test_what_a_party_is_told_is_no_larger_than_it_unpacks(
    sparse_parties: list[vf.PartyData], chosen: vf.Config
) -> None:
    runtime = federation(sparse_parties, chosen.with_values({"training.epochs": 24}))
    told = []
    for _ in range(24):
        starts = runtime.coordinator.open()
        told += [
            array.nbytes
            for start in starts.values()
            for array in (start.updates, start.neighbourhoods)
            if array is not None
        ]
        for name, reply in runtime._replies(dict(starts)).items():
            runtime.coordinator.receive(name, reply)
        runtime.coordinator.close()
    assert len(told) > 20
    for candidate in runtime.candidates.values():
        assert max(told) <= candidate.largest_array <= 8 * 4 * candidate.setup.model.size

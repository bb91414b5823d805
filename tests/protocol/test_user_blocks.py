"""A round about some of the users: whose turn it is, what is left alone, what is sent, and that all of it resumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import verfedgnn as vf
from helpers import config as paper
from helpers import federation, same
from verfedgnn.core.errors import Interrupted
from verfedgnn.core.graph import build_graph, restrict_graph
from verfedgnn.gnn.model import Model
from verfedgnn.privacy.projection import Projection
from verfedgnn.protocol.party.policy import Policy
from verfedgnn.protocol.round.replica import Replica
from verfedgnn.protocol.round.user_blocks import UserBlocks
from verfedgnn.training.train import resume


def best(**values: Any) -> vf.Config:
    return vf.Config.preset("best").with_values(
        {"dim": 4, "raters": 0, "gate": False, "lists": False, "epochs": 6, "evaluate_every": 4, **values}
    )


def make_blocks(config: vf.Config, users: int) -> UserBlocks:
    return UserBlocks(config, Model(config.model, users))


@given(st.integers(1, 7), st.integers(7, 60), st.integers(1, 40), st.integers(0, 9))
def test_every_block_has_its_turn_once_a_pass(count: int, users: int, round: int, seed: int) -> None:
    turns = make_blocks(best(user_blocks=count, seed=seed), users)
    rows = np.concatenate([np.arange(p.users.start, p.users.stop) for p in turns.blocks])
    np.testing.assert_array_equal(rows, np.arange(users))
    start = (round - 1) // count * count
    assert sorted(turns.in_round(r).index for r in range(start + 1, start + count + 1)) == list(range(count))
    before = turns.previous_turn(round)
    if before > 0:
        assert turns.in_round(before) is turns.in_round(round)
        assert all(turns.in_round(r) is not turns.in_round(round) for r in range(before + 1, round))
    else:
        assert round <= count


def test_a_digest_hashes_the_block_of_the_round_and_covers_all_of_them() -> None:
    """It equals that of a full copy, and a change of any number in any block, weight or average is in it."""
    config = best(user_blocks=4, masking=True)
    model = Model(config.model, 21)
    replica = Replica.initial(config, model, [3, 4, 5], 100, 1.0, torch.device("cpu"))
    digests = [replica.digest()]
    for round in range(1, 10):
        block = replica.blocks.in_round(round)
        kept = dict(replica._block_hashes)
        replica.apply(torch.ones(block.model.size, dtype=torch.int32), [0, 1, 2], round)
        digests.append(replica.digest())
        changed = {index for index, found in replica._block_hashes.items() if found != kept[index]}
        assert changed == {block.index}
        copy = Replica.initial(config, model, [3, 4, 5], 100, 1.0, torch.device("cpu"))
        copy.load(replica.arrays(), round)
        assert copy.digest() == digests[-1]
    assert len(set(digests)) == len(digests)
    arrays = replica.arrays()
    for name in ("parameters", "average"):
        for place in range(model.size):
            other = {key: values.copy() for key, values in arrays.items()}
            other[name][place] += 1
            copy.load(other, 9)
            assert copy.digest() != digests[-1]


def test_blocks_of_users_are_whole_blocks_of_the_projection() -> None:
    config = paper(user_blocks=3, **{"exchange.block": 10})
    turns = make_blocks(config, 75)
    projection = Projection(75, ratio=5, block=10, reconstruction="scaled")
    x = torch.randn(75, 2, generator=torch.Generator().manual_seed(1))
    y = projection.project(x)
    for block in turns.blocks:
        alone = projection.part(block.users, block.rows)
        torch.testing.assert_close(alone.project(x[block.users]), y[block.rows])
        torch.testing.assert_close(alone.reconstruct(y[block.rows]), projection.reconstruct(y)[block.users])
    with pytest.raises(vf.ConfigError, match=r"more than the 1 block\(s\) that the projection makes"):
        _ = make_blocks(paper(user_blocks=3), 75).blocks


@given(st.integers(0, 999))
def test_the_graph_of_some_users_has_their_edges(seed: int) -> None:
    rng = np.random.default_rng(seed)
    table = rng.random((9, 5)) < 0.4
    graph = build_graph(*np.nonzero(table), users=9, items=5, ratio=2.0)
    block = restrict_graph(graph, slice(3, 7))
    items = torch.from_numpy(rng.normal(size=(1, 5, 2)).astype(np.float32))
    torch.testing.assert_close(block.sum_items(items), graph.sum_items(items)[:, 3:7])
    torch.testing.assert_close(block.user_degree, graph.user_degree[:, 3:7])
    torch.testing.assert_close(block.item_degree, graph.item_degree)


@pytest.mark.parametrize(
    "settings", [best(user_blocks=4), paper(user_blocks=3, batch=300, **{"exchange.block": 20})]
)
def test_a_round_moves_its_users_and_nobody_else(
    small_parties: list[vf.PartyData], settings: vf.Config
) -> None:
    runtime = federation(small_parties, settings)
    replica = runtime.coordinator.replica
    for _ in range(9):
        before = replica.parameters.clone()
        runtime.round()
        block = replica.blocks.in_round(replica.round)
        now, then = (replica.model.views(flat)["users"] for flat in (replica.parameters, before))
        moved = (now != then).any(1)
        assert moved[block.users].any()
        moved[block.users] = False
        assert not moved.any()
    for party in runtime.parties.values():
        assert set(party.progress.exchange.sent) == {p.index for p in replica.blocks.blocks}


def test_messages_of_a_part_are_that_much_smaller(small_parties: list[vf.PartyData]) -> None:
    sizes = []
    for count in (1, 4):
        runtime = federation(small_parties, best(user_blocks=count, dim=32, **{"exchange.every": 1}))
        runtime.ledger.bytes.clear()
        for _ in range(4):
            runtime.round()
        sizes.append(runtime.ledger.total("up", kind="RoundReply"))
    assert sizes[1] < 0.35 * sizes[0]


@pytest.mark.parametrize("stack", [True, False])
@pytest.mark.parametrize("settings", [best(user_blocks=4), best(user_blocks=2, residual=True, gnn="ggnn")])
def test_masks_cancel_and_parties_by_themselves_agree(
    small_parties: list[vf.PartyData], settings: vf.Config, stack: bool
) -> None:
    """Masked and bare, the public parameters are the same to the bit; stacked and one by one, to rounding."""
    bare, masked = federation(small_parties, settings), federation(small_parties, settings, policy=Policy())
    bare.stack = masked.stack = stack
    for _ in range(10):
        bare.round()
        masked.round()
    assert torch.equal(bare.coordinator.replica.parameters, masked.coordinator.replica.parameters)


@pytest.mark.parametrize(
    "settings", [best(user_blocks=3), paper(user_blocks=3, batch=300, epochs=3, **{"exchange.block": 20})]
)
def test_a_stopped_training_goes_on_to_the_bit(
    small_parties: list[vf.PartyData], settings: vf.Config, tmp_path: Path
) -> None:
    whole = vf.train(small_parties, settings)
    rounds = 0

    def stop() -> bool:
        nonlocal rounds
        rounds += 1
        return rounds == 8

    with pytest.raises(Interrupted):
        vf.train(small_parties, settings, out=tmp_path / "run", stop=stop)
    same(whole, resume(tmp_path / "run"))


def test_parts_learn_what_all_users_together_learn(small_parties: list[vf.PartyData]) -> None:
    """As many passes over all users: about the same validation error, for a fraction of the bytes of a round."""
    together, by_turns = (
        vf.train(small_parties, best(epochs=60, user_blocks=count, evaluate_every=4)).metrics["valid"]["rmse"]
        for count in (1, 3)
    )
    assert by_turns < together + 0.02


def test_protection_of_single_ratings_needs_everybody_in_every_round() -> None:
    with pytest.raises(vf.ConfigError, match="user_blocks = 1"):
        vf.Config.preset("private", user_blocks=2)

"""How workers divide a party's users: every message is cut and joined without loss, and hashes and masks do not change."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import verfedgnn as vf
from verfedgnn.core.worker_group import WorkerGroup
from verfedgnn.gnn.model import Model
from verfedgnn.privacy.masking import GRADIENT, NEIGHBOURHOOD, MaskStream, add_masks
from verfedgnn.protocol.round.user_blocks import UserBlocks
from verfedgnn.protocol.round.user_groups import hash_users
from verfedgnn.protocol.round.user_shards import UserShard, updated_rounds
from verfedgnn.protocol.wire.messages import Finish, RoundReply, RoundStart

CONFIG = vf.Config.preset("best", model="ggnn", dim=3, raters=2)
STREAMS = [MaskStream(bytes([n]) * 32, n % 2 == 0) for n in range(3)]


class Others(WorkerGroup):
    """Workers whose hashes are known."""

    def __init__(self, size: int, hashes: list[bytes] | None = None) -> None:
        super().__init__(0, size)
        self.hashes = hashes or []

    def gather(self, data: bytes) -> list[bytes]:
        return self.hashes


def divide(users: int, workers: int, config: vf.Config = CONFIG) -> tuple[Model, list[UserShard]]:
    blocks = UserBlocks(config, Model(config.model, users))
    return blocks.model, [UserShard(blocks, Others(workers), rank) for rank in range(workers)]


def numbers(size: int) -> NDArray[np.int8]:
    return np.random.default_rng(size).integers(-100, 100, size, np.int8)


@given(st.integers(600, 3000), st.integers(1, 2))
def test_parts_cover_all_users_once(users: int, workers: int) -> None:
    model, shards = divide(users, workers)
    rows = np.concatenate([np.arange(users)[shard.users] for shard in shards])
    assert rows.tolist() == list(range(users))
    flat = numbers(model.size)
    found = [shard.take(finish(flat)).parameters for shard in shards]
    taken = [part for part in found if part is not None]
    assert [len(part) for part in taken] == [shard.model.size for shard in shards]
    assert np.array_equal(shards[0].join_flat(taken), flat)


def finish(flat: NDArray[np.int8]) -> Finish:
    return Finish(round=1, best_round=1, parameters=flat.astype(np.float32), digest="")


def test_a_round_is_cut_and_joined() -> None:
    users = 700
    model, shards = divide(users, 2)
    updates = numbers(2 * model.size)
    starts = np.arange(users, dtype=np.int16)
    shared = numbers(2 * users * 3).reshape(2, users, 3).astype(np.int16)
    start = RoundStart(
        round=3,
        trip=0,
        active=[0, 1],
        train=True,
        exchange=True,
        evaluate=False,
        best_round=0,
        updates_from=1,
        update_parties=[[0], [], [1]],
        updates=updates,
        starts=starts,
        start_rounds=[1],
        neighbourhood_parties=[0, 1],
        neighbourhoods=shared,
    )
    parts = [shard.take(start) for shard in shards]
    replies = [
        RoundReply(
            round=3,
            trip=0,
            gradient=None if part.updates is None else part.updates[: shard.model.size],
            neighbourhoods=part.neighbourhoods,
            error=1.5,
            count=2,
        )
        for shard, part in zip(shards, parts, strict=True)
    ]
    joined = shards[0].join_replies(replies)
    assert np.array_equal(joined.gradient, updates[: model.size])
    assert np.array_equal(joined.neighbourhoods, shared)
    assert (joined.error, joined.count) == (3.0, 4)
    assert np.array_equal(np.concatenate([part.starts for part in parts]), starts)


@given(st.integers(1100, 3000), st.integers(1, 2), st.integers(1, 3))
def test_messages_about_blocks_are_cut_and_joined(users: int, workers: int, count: int) -> None:
    """Updates of several rounds have other users each; every worker holds a range of every block."""
    config = vf.Config.preset("best", dim=3, raters=0, user_blocks=count, from_means=True)
    model, shards = divide(users, workers, config)
    blocks = shards[0].all_blocks
    rounds = [count + 1, count + 3]
    sizes = [blocks.in_round(round).model.size for round in rounds]
    starts = np.arange(sum(blocks.in_round(round).model.users for round in rounds), dtype=np.int16)
    message = RoundStart(
        round=2,
        trip=0,
        active=[0, 1],
        train=True,
        exchange=True,
        evaluate=False,
        best_round=0,
        updates_from=count + 1,
        update_parties=[[0], [], [1]],
        updates=numbers(sum(sizes)),
        starts=starts,
        start_rounds=rounds,
        neighbourhood_parties=[0, 1],
        neighbourhoods=numbers(blocks.in_round(2).model.users)[None, :, None].astype(np.int16),
    )
    parts = [shard.take(message) for shard in shards]
    first = shards[0]
    assert updated_rounds(message) == rounds
    assert np.array_equal(first.join_updates([part.updates for part in parts], rounds), message.updates)
    assert np.array_equal(first.join_starts([part.starts for part in parts], rounds), starts)
    for shard, part in zip(shards, parts, strict=True):
        assert len(part.updates) == sum(shard.blocks.in_round(round).model.size for round in rounds)
    flat = numbers(model.size)
    assert np.array_equal(first.join_flat([shard.flat.take(flat) for shard in shards]), flat)
    rows = numbers(users * 2).reshape(users, 2)
    assert np.array_equal(first.join_rows([rows[shard.users] for shard in shards]), rows)


@pytest.mark.parametrize("kind", [np.int8, np.int16, np.int32])
def test_masks_of_parts_are_parts_of_masks(kind: type) -> None:
    users = 700
    model, shards = divide(users, 2)
    flat = numbers(model.size).astype(kind)
    whole = add_masks(flat, STREAMS, GRADIENT)
    parts = [
        add_masks(shard.flat.take(flat), STREAMS, GRADIENT, shard.places(GRADIENT, 1, ())) for shard in shards
    ]
    assert np.array_equal(shards[0].join_flat(parts), whole)
    rows = numbers(users * 7).reshape(1, users, 7).astype(kind)
    masked = [
        add_masks(part, STREAMS, NEIGHBOURHOOD, shard.places(NEIGHBOURHOOD, 1, part.shape))
        for shard in shards
        for part in [rows[:, shard.users]]
    ]
    assert np.array_equal(np.concatenate(masked, 1), add_masks(rows, STREAMS, NEIGHBOURHOOD))


@given(st.integers(600, 3000), st.integers(2, 4))
def test_hashes_do_not_depend_on_workers(users: int, workers: int) -> None:
    _, shards = divide(users, workers)
    rows = torch.arange(2 * users).view(users, 2).numpy()
    parts: list[bytes] = []

    class Noting(Others):
        def gather(self, data: bytes) -> list[bytes]:
            parts.append(data)
            return [data]

    for shard in shards:
        hash_users([rows[shard.users]], Noting(workers))
    assert hash_users([rows[shards[0].users]], Others(workers, parts)) == hash_users([rows])

"""The quality of lists against a count by brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from verfedgnn.core import metrics
from verfedgnn.core.metrics import list_quality, rank_each, sample_users
from verfedgnn.core.pairs import Pairs


def pairs(rows: list[tuple[int, int]]) -> Pairs:
    index = torch.tensor(rows, dtype=torch.int32).reshape(-1, 2)
    return Pairs(index[:, 0], index[:, 1], torch.full((len(rows),), 5.0))


def brute_force(scores: list[float], seen: set[int], wanted: set[int], k: int) -> tuple[float, float, float]:
    """Return recall, NDCG and hit of one user."""
    shown = sorted((item for item in range(len(scores)) if item not in seen), key=lambda item: -scores[item])
    places = [place for place, item in enumerate(shown[:k]) if item in wanted]
    gain = sum(1 / math.log2(place + 2) for place in places)
    ideal = sum(1 / math.log2(place + 2) for place in range(min(k, len(wanted))))
    return len(places) / min(k, len(wanted)), gain / ideal, float(bool(places))


@given(seed=st.integers(0, 10_000), k=st.integers(1, 12), chunk=st.sampled_from((1, 25, 1 << 23)))
def test_every_user_is_judged_as_by_brute_force(seed: int, k: int, chunk: int) -> None:
    rng = np.random.default_rng(seed)
    users = 8
    items = 10
    scores = torch.from_numpy(rng.permutation(users * items).reshape(users, items).astype(np.float32))
    kind = rng.choice(4, (users, items), p=[0.5, 0.15, 0.15, 0.2])  # 1, 2: seen in two tables; 3: wanted
    seen = [pairs(np.argwhere(kind == part).tolist()) for part in (1, 2)]
    wanted = pairs(np.argwhere(kind == 3).tolist())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "CHUNK_SCORES", chunk)
        found = rank_each(lambda rows: scores[rows].clone(), users, items, seen, wanted, k)
    judged = [user for user in range(users) if (kind[user] == 3).any()]
    assert found.users.tolist() == judged
    for row, user in enumerate(judged):
        hidden = set(np.flatnonzero((kind[user] == 1) | (kind[user] == 2)).tolist())
        expected = brute_force(
            scores[user].tolist(), hidden, set(np.flatnonzero(kind[user] == 3).tolist()), k
        )
        got = (float(found.recall[row]), float(found.ndcg[row]), float(found.hit[row]))
        assert got == pytest.approx(expected)


def test_a_list_that_is_longer_than_the_catalogue_has_the_whole_catalogue() -> None:
    found = list_quality(torch.tensor([[1.0, 3.0, 2.0]]), torch.tensor([0]), torch.tensor([0]), 20)
    assert found[:, 0].tolist() == pytest.approx([1.0, 0.5, 1.0])


def test_nobody_with_something_to_find_gives_no_users() -> None:
    found = rank_each(lambda rows: torch.zeros(len(rows), 3), 4, 3, [pairs([(0, 1)])], pairs([]))
    assert len(found.users) == len(found.recall) == len(found.ndcg) == len(found.hit) == 0


def test_a_choice_looks_at_every_nth_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MOST_SCORES", 100)
    users = torch.arange(0, 20, 2)
    assert sample_users(users, 5).tolist() == users.tolist()
    assert sample_users(users, 25).tolist() == [0, 6, 12, 18]

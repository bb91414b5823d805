"""Figures of merit against hand-counted cases."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from helpers import means_errors
from verfedgnn.core import metrics
from verfedgnn.core.metrics import RatingErrors, Score, measure_errors, measure_ranking
from verfedgnn.core.pairs import Pairs
from verfedgnn.data import TEST, TRAIN, split_by_rating, synthetic_ratings


def pairs(*rows: tuple[int, int, float]) -> Pairs:
    user, item, rating = zip(*rows, strict=True) if rows else ((), (), ())
    return Pairs(
        torch.tensor(user, dtype=torch.int32), torch.tensor(item, dtype=torch.int32), torch.tensor(rating)
    )


def products(users: torch.Tensor, items: torch.Tensor) -> Score:
    return lambda rows: users[rows] @ items.T


def test_errors_by_hand() -> None:
    users, items = torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [1.0]])
    errors = measure_errors(users, items, pairs((0, 0, 5.0), (1, 1, 1.0)))
    assert errors == RatingErrors(5.0, 3.0, 2)
    assert errors.rmse == pytest.approx(math.sqrt(2.5))
    assert errors.mae == 1.5
    assert (errors + RatingErrors(1.0, 1.0, 1)).rmse == pytest.approx(math.sqrt(2))


def test_ranking_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores of five items 5 > 4 > 3 > 2 > 1; item 0 is already seen by user 0."""
    users, items = torch.tensor([[1.0], [1.0], [1.0]]), torch.tensor([[5.0], [4.0], [3.0], [2.0], [1.0]])
    seen, wanted = pairs((0, 0, 5.0)), pairs((0, 2, 5.0), (0, 4, 5.0), (1, 3, 5.0))
    for chunk in (1 << 23, 5):  # all users at once, and one at a time
        monkeypatch.setattr(metrics, "CHUNK_SCORES", chunk)
        found = measure_ranking(products(users, items), 3, 5, [seen], wanted, k=2)
        # user 0 is shown items 1, 2: finds item 2 in second place, of two wanted; user 1 is shown 0, 1: nothing
        assert found.users == 2
        assert found.recall == pytest.approx(1 / 2)
        assert found.ndcg == pytest.approx((1 / math.log2(3)) / (1 + 1 / math.log2(3)))
        assert found.hits == 1
        assert found.means(2)["hitrate@2"] == 0.5


def test_a_perfect_ranking_scores_one() -> None:
    rng = np.random.default_rng(0)
    items = torch.from_numpy(rng.normal(size=(50, 4)).astype(np.float32))
    users = torch.from_numpy(rng.normal(size=(20, 4)).astype(np.float32))
    best = (users @ items.T).topk(3).indices
    wanted = pairs(*[(u, int(i), 5.0) for u in range(20) for i in best[u]])
    seen = pairs((0, int((users[0] @ items.T).argmin()), 1.0))
    found = measure_ranking(products(users, items), 20, 50, [seen], wanted, k=5)
    assert found.means(5) == pytest.approx({"recall@5": 1.0, "ndcg@5": 1.0, "hitrate@5": 1.0})


def test_served_predictions_are_clipped_to_the_scale() -> None:
    users, items = torch.tensor([[1.0], [1.0]]), torch.tensor([[7.0], [0.0]])
    rated = pairs((0, 0, 5.0), (1, 1, 2.0))
    assert measure_errors(users, items, rated).squared == 8.0
    assert measure_errors(users, items, rated, (1.0, 5.0)) == RatingErrors(1.0, 1.0, 2)


def test_means_beat_the_mean() -> None:
    table = synthetic_ratings(users=200, items=100, ratings=6000, seed=0)
    parts = split_by_rating(table, seed=0)
    spread = table.rating[parts == TEST] - table.rating[parts == TRAIN].mean()
    rmse = means_errors(table, parts).rmse
    assert rmse is not None
    assert 0.83 < rmse / math.sqrt(np.square(spread).mean()) < 0.87

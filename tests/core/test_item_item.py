"""EASE against its closed form in NumPy, and its two ways to score."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from verfedgnn.core import item_item
from verfedgnn.core.item_item import ItemScores, fit_item_scores, fit_residuals
from verfedgnn.core.pairs import Choices, Pairs, PartyInput


def pairs(rated: NDArray[np.bool_]) -> Pairs:
    user, item = (torch.from_numpy(index.astype(np.int32)) for index in np.nonzero(rated))
    return Pairs(user, item, torch.full((len(user),), 4.0))


def closed_form(rated: NDArray[np.bool_], damping: float) -> NDArray[np.float64]:
    x = rated.astype(np.float64)
    inverse = np.linalg.inv(x.T @ x + damping * np.eye(x.shape[1]))
    return np.asarray(np.eye(x.shape[1]) - inverse / np.diag(inverse))


def party(train: Pairs, users: int = 9, items: int = 7) -> PartyInput:
    return PartyInput("shop", users, items, (1.0, 5.0), train, train)


def fit(rated: Pairs, users: int, items: int, damping: float) -> ItemScores:
    return fit_item_scores(party(rated, users, items), [damping], lambda scores: 0.0, Choices())


def random_table(seed: int, users: int = 9, items: int = 7) -> NDArray[np.bool_]:
    rated = np.random.default_rng(seed).random((users, items)) < 0.4
    rated[0] = True  # every item has a rating
    rated[1] = False
    return rated


def test_three_items_by_hand() -> None:
    """Items 0 and 1 go together and item 2 is alone: X^T X = [[2, 2, 0], [2, 2, 0], [0, 0, 1]], lambda = 1.

    Its inverse has 3/5 and -2/5 in the first block, so B_01 = B_10 = 2/3, and item 2 says nothing about the others.
    """
    rated = np.array([[1, 1, 0], [1, 1, 0], [0, 0, 1]], bool)
    scores = fit(pairs(rated), 3, 3, 1.0)
    expected = torch.tensor([[0, 2 / 3, 0], [2 / 3, 0, 0], [0, 0, 0]])
    torch.testing.assert_close(scores.weights, expected)
    torch.testing.assert_close(
        scores.score(torch.tensor([0, 2])), torch.tensor([[2 / 3, 2 / 3, 0], [0, 0, 0]])
    )


@given(seed=st.integers(0, 1000), damping=st.sampled_from((0.5, 10.0, 200.0)))
def test_scores_are_those_of_the_closed_form(seed: int, damping: float) -> None:
    rated = random_table(seed)
    scores = fit(pairs(rated), 9, 7, damping)
    weights = closed_form(rated, damping)
    np.testing.assert_allclose(scores.weights.numpy(), weights, atol=1e-5)
    rows = np.array([3, 0, 3, 1, 8])
    np.testing.assert_allclose(scores.score(torch.from_numpy(rows)).numpy(), rated[rows] @ weights, atol=1e-5)
    assert not scores.score(torch.tensor([1])).any()  # a user without ratings


def test_only_the_items_with_most_ratings_take_part(monkeypatch: pytest.MonkeyPatch) -> None:
    rated = random_table(2)
    rated[2:, 4] = False
    rated[2:, 5] = False
    monkeypatch.setattr(item_item, "MOST_ITEMS", 5)
    scores = fit(pairs(rated), 9, 7, 10.0)
    assert scores.kept.tolist() == [0, 1, 2, 3, 6]
    found = scores.score(torch.arange(9)).numpy()
    assert not found[:, [4, 5]].any()
    kept = rated[:, [0, 1, 2, 3, 6]]
    np.testing.assert_allclose(found[:, [0, 1, 2, 3, 6]], kept @ closed_form(kept, 10.0), atol=1e-5)


def test_an_item_without_ratings_scores_nothing() -> None:
    rated = random_table(4)
    rated[:, 3] = False
    scores = fit(pairs(rated), 9, 7, 10.0)
    assert scores.kept.tolist() == [0, 1, 2, 4, 5, 6]
    assert not scores.score(torch.arange(9))[:, 3].any()


def test_a_pair_that_occurs_twice_counts_once() -> None:
    once = pairs(random_table(5))
    twice = Pairs(*(torch.cat([column, column[:4]]) for column in (once.user, once.item, once.rating)))
    a, b = (fit(each, 9, 7, 10.0) for each in (once, twice))
    torch.testing.assert_close(a.score(torch.arange(9)), b.score(torch.arange(9)))


def test_scaled_scores_are_multiples() -> None:
    scores = fit(pairs(random_table(6)), 9, 7, 10.0)
    rows = torch.arange(9)
    torch.testing.assert_close(scores.scaled(2.5).score(rows), 2.5 * scores.score(rows), rtol=2e-3, atol=2e-3)


def test_lambda_is_chosen_by_its_error() -> None:
    rated = random_table(7)
    target = torch.from_numpy(closed_form(rated, 50.0)).float()
    choices = Choices()
    dampings = [1.0, 50.0, 500.0]

    def error(scores: ItemScores) -> float:
        return float((scores.weights - target).norm())

    found = fit_item_scores(party(pairs(rated)), dampings, error, choices)
    torch.testing.assert_close(found.weights, target, atol=1e-5, rtol=1e-4)
    again = fit_item_scores(party(pairs(rated)), dampings, lambda scores: 0.0, choices.repeat())
    assert torch.equal(again.weights, found.weights), "a training on all ratings has nothing to choose by"


def test_residuals_as_vectors_are_the_product_of_the_closed_form() -> None:
    """With as many columns as items, users times items is X B for X = what means leave of the ratings."""
    rated = random_table(8)
    left = np.where(rated, np.random.default_rng(8).normal(size=rated.shape), 0.0)
    user, item = np.nonzero(rated)
    rows = (torch.from_numpy(part.astype(np.int32)) for part in (user, item))
    train = Pairs(*rows, torch.from_numpy(left[user, item].astype(np.float32)))
    users, items = fit_residuals(party(train), [3.0], lambda vectors: 0.0, Choices())
    inverse = np.linalg.inv(left.T @ left + 3.0 * np.eye(7))
    wanted = left @ (np.eye(7) - inverse / np.diag(inverse))
    np.testing.assert_allclose((users @ items.T).numpy(), wanted, atol=1e-4)

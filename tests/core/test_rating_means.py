"""User and item means: by hand, and what parties tell each other about a user's mean."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from verfedgnn.core import rating_means
from verfedgnn.core.pairs import Choices, Pairs, PartyInput
from verfedgnn.core.rating_means import Floats, Means, fit_means

SCALE = (1.0, 5.0)


def pairs(*rows: tuple[int, int, float]) -> Pairs:
    user, item, rating = zip(*rows, strict=True)
    return Pairs(torch.tensor(user), torch.tensor(item), torch.tensor(rating, dtype=torch.float32))


def table(seed: int, count: int, users: int = 12, items: int = 9) -> Pairs:
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(users * items)[:count]
    rating = rng.integers(1, 6, count)
    rows = zip((chosen // items).tolist(), (chosen % items).tolist(), rating.tolist(), strict=True)
    return pairs(*((user, item, float(value)) for user, item, value in rows))


def fitted(seed: int) -> tuple[Means, PartyInput]:
    every = table(seed, 80)
    data = PartyInput("shop", 12, 9, SCALE, every.take(slice(60)), every.take(slice(60, None)))
    return fit_means(data), data


@pytest.fixture
def one_damping(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ITEM_DAMPINGS", "USER_DAMPINGS", "PRIOR_WEIGHTS"):
        monkeypatch.setattr(rating_means, name, (1.0,))


@pytest.mark.usefixtures("one_damping")
def test_means_by_hand() -> None:
    """Three ratings with mean 11/3: b_x = (1/3 - 5/3)/3, b_y = (4/3)/2, and the rest by user."""
    train = pairs((0, 0, 4.0), (0, 1, 5.0), (1, 0, 2.0))
    means = fit_means(PartyInput("shop", 3, 2, SCALE, train, pairs((1, 1, 3.0))))
    assert means.mean == pytest.approx(11 / 3)
    assert means.item_offset == pytest.approx([-4 / 9, 2 / 3])
    assert means.residual_sum == pytest.approx([7 / 9 + 2 / 3, -11 / 9, 0])
    assert means.count.tolist() == [2, 1, 0]
    assert means.user_offset == pytest.approx([13 / 27, -11 / 18, 0])
    error = (11 / 3 + 2 / 3 - 11 / 18 - 3) ** 2
    assert means.squared_error(means.user_offset, pairs((1, 1, 3.0)), SCALE) == pytest.approx(error)


@pytest.mark.usefixtures("one_damping")
def test_federated_means_by_hand() -> None:
    """User 1 has one rating here, 0.5 star above; elsewhere 24 ratings, together 2 stars above."""
    means = Means(3.0, np.zeros(1), np.array([0.0, 0.5]), np.array([0.0, 1.0]), 1.0)
    others = np.array([[24.0, 2.0], [24.0, 2.0]])
    elsewhere = 2 / (24 + 1)
    valid = pairs((0, 0, 3.0))
    found = means.federated_offset(others, PartyInput("shop", 2, 1, SCALE, valid, valid), Choices())
    assert found == pytest.approx([elsewhere, (0.5 + elsewhere) / 2])


def test_dampings_are_those_with_the_smallest_validation_error() -> None:
    for seed in range(5):
        means, data = fitted(seed)
        least = means.squared_error(means.user_offset, data.valid, SCALE)
        for damping in rating_means.USER_DAMPINGS:
            offset = means.residual_sum / (means.count + damping)
            assert least <= means.squared_error(offset, data.valid, SCALE)


@given(seed=st.integers(0, 1000))
def test_others_who_know_nothing_change_nothing(seed: int) -> None:
    means, data = fitted(seed)
    found = means.federated_offset(np.zeros((12, 2)), data, Choices())
    np.testing.assert_array_equal(found, means.user_offset)


@given(seed=st.integers(0, 1000))
def test_strengths_of_federated_means_are_those_with_the_smallest_validation_error(seed: int) -> None:
    means, data = fitted(seed)
    other = fitted(seed + 1)[0]
    others = np.stack([other.count, other.residual_sum], 1)
    found = means.federated_offset(others, data, Choices())
    least = means.squared_error(found, data.valid, SCALE)
    for damping in rating_means.USER_DAMPINGS:
        for prior in rating_means.PRIOR_WEIGHTS:
            elsewhere = others[:, 1] / (others[:, 0] + prior)
            offset = (means.residual_sum + damping * elsewhere) / (means.count + damping)
            assert least <= means.squared_error(offset, data.valid, SCALE)


@given(seed=st.integers(0, 1000), mean=st.floats(-2, 2), count=st.integers(0, 200))
def test_a_federated_offset_lies_between_own_and_other_means(seed: int, mean: float, count: int) -> None:
    means, data = fitted(seed)
    found = means.federated_offset(np.tile([count, mean * count], (12, 1)), data, Choices())
    own = means.residual_sum / np.maximum(means.count, 1)
    bounds: list[Floats] = [np.minimum(0, mean) + 0 * own, np.maximum(0, mean) + 0 * own]
    known = means.count > 0
    low = np.where(known, np.minimum(own, bounds[0]), bounds[0])
    high = np.where(known, np.maximum(own, bounds[1]), bounds[1])
    assert (found >= low - 1e-9).all()
    assert (found <= high + 1e-9).all()

"""User and item means: by hand, and what parties tell each other about a user's mean."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from verfedgnn.core import rating_means
from verfedgnn.core.pairs import Pairs
from verfedgnn.core.rating_means import SHARED_DAMPING, Floats, Means, fit_means

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


def fitted(seed: int, **sizes: int) -> tuple[Means, Pairs]:
    every = table(seed, 80, **sizes)
    valid = every.take(slice(60, None))
    return fit_means(every.take(slice(60)), valid, 12, 9, SCALE), valid


@pytest.fixture
def one_damping(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ITEM_DAMPINGS", "USER_DAMPINGS", "PRIOR_WEIGHTS"):
        monkeypatch.setattr(rating_means, name, (1.0,))


@pytest.mark.usefixtures("one_damping")
def test_means_by_hand() -> None:
    """Three ratings with mean 11/3: b_x = (1/3 - 5/3)/3, b_y = (4/3)/2, and the rest by user."""
    train = pairs((0, 0, 4.0), (0, 1, 5.0), (1, 0, 2.0))
    means = fit_means(train, pairs((1, 1, 3.0)), 3, 2, SCALE)
    assert means.mean == pytest.approx(11 / 3)
    assert means.item_offset == pytest.approx([-4 / 9, 2 / 3])
    assert means.residual_sum == pytest.approx([7 / 9 + 2 / 3, -11 / 9, 0])
    assert means.count.tolist() == [2, 1, 0]
    assert means.user_offset == pytest.approx([13 / 27, -11 / 18, 0])
    error = (11 / 3 + 2 / 3 - 11 / 18 - 3) ** 2
    assert means.squared_error(means.user_offset, pairs((1, 1, 3.0)), SCALE) == pytest.approx(error)


@pytest.mark.usefixtures("one_damping")
def test_federated_means_by_hand() -> None:
    """User 1 has one rating here, 0.5 star above; elsewhere 2 and 24 ratings, 1 star above on average."""
    means = Means(3.0, np.zeros(1), np.array([0.0, 0.5]), np.array([0.0, 1.0]), 1.0)
    others = np.array([[2.0, 24.0], [2.0, 24.0]])
    others[:, 0] /= others[:, 1] + SHARED_DAMPING  # residuals of 2 in 24 ratings
    others[:, 1] /= others[:, 1] + SHARED_DAMPING
    elsewhere = (2 / 32) / (24 / 32 + 1)
    found = means.federated_offset(others, 1.0, pairs((0, 0, 3.0)), SCALE)
    assert found == pytest.approx([elsewhere, (0.5 + elsewhere) / 2])


def test_dampings_are_those_with_the_smallest_validation_error() -> None:
    for seed in range(5):
        means, valid = fitted(seed)
        least = means.squared_error(means.user_offset, valid, SCALE)
        for damping in rating_means.USER_DAMPINGS:
            offset = means.residual_sum / (means.count + damping)
            assert least <= means.squared_error(offset, valid, SCALE)


@given(seed=st.integers(0, 1000))
def test_others_who_know_nothing_change_nothing(seed: int) -> None:
    means, valid = fitted(seed)
    found = means.federated_offset(np.zeros((12, 2)), 1.0, valid, SCALE)
    np.testing.assert_array_equal(found, means.user_offset)


@given(seed=st.integers(0, 1000))
def test_strengths_of_federated_means_are_those_with_the_smallest_validation_error(seed: int) -> None:
    means, valid = fitted(seed)
    others = fitted(seed + 1)[0].share(1.0)
    found = means.federated_offset(others, 1.0, valid, SCALE)
    least = means.squared_error(found, valid, SCALE)
    for damping in rating_means.USER_DAMPINGS:
        for prior in rating_means.PRIOR_WEIGHTS:
            elsewhere = others[:, 0] / (others[:, 1] + prior)
            offset = (means.residual_sum + damping * elsewhere) / (means.count + damping)
            assert least <= means.squared_error(offset, valid, SCALE)


@given(seed=st.integers(0, 1000), parties=st.integers(2, 6))
def test_shares_of_parties_add_up_to_their_weighted_mean(seed: int, parties: int) -> None:
    """S / W is the mean of the parties' mean residuals, weighted by n / (n + kappa)."""
    every = [fitted(seed + p)[0] for p in range(parties)]
    total = sum((means.share(1.0) for means in every), np.zeros((12, 2)))
    weights = np.stack([means.count / (means.count + SHARED_DAMPING) for means in every])
    mean = np.stack([means.residual_sum / np.maximum(means.count, 1) for means in every])
    known = weights.sum(0) > 0
    expected = (weights * mean).sum(0)[known] / weights.sum(0)[known]
    np.testing.assert_allclose(total[known, 0] / total[known, 1], expected, rtol=1e-9, atol=1e-12)
    assert not total[~known].any()


@given(seed=st.integers(0, 1000), mean=st.floats(-2, 2), count=st.integers(0, 200))
def test_a_federated_offset_lies_between_own_and_other_means(seed: int, mean: float, count: int) -> None:
    means, valid = fitted(seed)
    weight = count / (count + SHARED_DAMPING)
    found = means.federated_offset(np.tile([mean * weight, weight], (12, 1)), 1.0, valid, SCALE)
    own = means.residual_sum / np.maximum(means.count, 1)
    bounds: list[Floats] = [np.minimum(0, mean) + 0 * own, np.maximum(0, mean) + 0 * own]
    known = means.count > 0
    low = np.where(known, np.minimum(own, bounds[0]), bounds[0])
    high = np.where(known, np.maximum(own, bounds[1]), bounds[1])
    assert (found >= low - 1e-9).all()
    assert (found <= high + 1e-9).all()


def test_shares_do_not_depend_on_the_width_of_the_scale() -> None:
    every = table(3, 80)
    wide = Pairs(every.user, every.item, every.rating * 10)
    narrow = fit_means(every.take(slice(60)), every.take(slice(60, None)), 12, 9, SCALE)
    broad = fit_means(wide.take(slice(60)), wide.take(slice(60, None)), 12, 9, (10.0, 50.0))
    np.testing.assert_allclose(broad.share(10.0), narrow.share(1.0), rtol=1e-6)


@given(total=st.floats(-1e6, 1e6), count=st.integers(0, 1000), unit=st.floats(0.1, 100))
def test_a_share_stays_within_the_bounds_that_the_privacy_report_assumes(
    total: float, count: int, unit: float
) -> None:
    means = Means(0.0, np.zeros(1), np.array([total]), np.array([float(count)]), 1.0)
    (share,) = means.share(unit)
    assert abs(share[0]) <= rating_means.LARGEST_MEAN
    assert 0 <= share[1] < 1


def test_noise_that_makes_a_weight_negative_does_not_explode() -> None:
    """With W below -c, S / (W + c) would change its sign or divide by 0."""
    means, valid = fitted(0)
    for weight in (-0.1, -0.3, -1.0, -3.0, -50.0):
        found = means.federated_offset(np.tile([0.2, weight], (12, 1)), 1.0, valid, SCALE)
        known_nothing = means.federated_offset(np.tile([0.2, 0.0], (12, 1)), 1.0, valid, SCALE)
        np.testing.assert_array_equal(found, known_nothing)

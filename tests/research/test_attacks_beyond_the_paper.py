"""Attacks on many releases, and the measures of how well a score tells two kinds apart."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from verfedgnn.core.errors import DataError
from verfedgnn.core.key_stream import KeyStream
from verfedgnn.core.random_streams import simulated_secret
from verfedgnn.privacy.protections import quantize_ternary
from verfedgnn_research.attacks import separation
from verfedgnn_research.attacks.coordinator_attack import ReleaseAverage


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def release_error(x: Tensor, r: float, releases: int) -> float:
    """Return the expected squared error of the mean of ternary releases of x: sum_i (r |x_i| - x_i^2) / T."""
    return float((r * x.double().abs() - x.double().square()).sum()) / releases


def best_advantage(score: Tensor, truth: Tensor) -> float:
    """Return max TPR - FPR over all thresholds, chosen and judged on the same scores: a little too high."""
    gaps = [
        float((score[truth] >= t).double().mean() - (score[~truth] >= t).double().mean())
        for t in score.unique()
    ]
    return max(0.0, *gaps)


@pytest.mark.parametrize("releases", [16, 64, 256])
def test_the_mean_of_ternary_releases_has_an_error_of_one_over_the_root_of_their_number(
    releases: int,
) -> None:
    """2,000 coordinates: the squared error is known to about 5 %, margin 20 %."""
    x = (torch.rand(2000, generator=generator()) - 0.5).view(500, 4)
    average = ReleaseAverage()
    for seed in range(releases):
        average.add(3 * quantize_ternary(x, 3.0, KeyStream(simulated_secret(seed, 0))).float())
    squared = float((average.mean - x.double()).square().sum())
    assert squared == pytest.approx(release_error(x, 3.0, releases), rel=0.2)
    assert average.activity.mean().item() == pytest.approx(x.abs().sum(1).mean().item(), rel=0.1)


def test_zero_stays_zero_so_a_release_that_is_not_is_proof() -> None:
    x = torch.zeros(4, 3)
    x[1] = 0.5
    average = ReleaseAverage()
    for seed in range(60):
        average.add(quantize_ternary(x, 3.0, KeyStream(simulated_secret(seed, 0))).float())
    assert average.proven.tolist() == [False, True, False, False]  # (5/6)^180 for none


# -- separation ------------------------------------------------------------------------------------------------------------


def test_auc_by_hand() -> None:
    score = torch.tensor([3.0, 1.0, 2.0, 1.0])
    truth = torch.tensor([True, True, False, False])
    area, error = separation.auc(score, truth)
    assert area == pytest.approx((1 + 1 + 0 + 0.5) / 4)
    assert error > 0
    assert separation.ranks(torch.tensor([5.0, 1.0, 5.0, 7.0])).tolist() == [2.5, 1, 2.5, 4]
    assert separation.rank_correlation(
        torch.tensor([1.0, 2, 3]), torch.tensor([10.0, 20, 900])
    ) == pytest.approx(1)
    assert separation.rank_correlation(torch.tensor([1.0, 1, 1]), torch.tensor([1.0, 2, 3])) == 0
    assert best_advantage(score, truth) == pytest.approx(0.5)
    assert best_advantage(torch.ones(4), truth) == 0
    with pytest.raises(DataError, match="empty"):
        separation.auc(score, torch.ones(4, dtype=torch.bool))


def test_auc_within_columns_by_hand() -> None:
    score = torch.tensor([[9.0, 1.0], [8.0, 0.0], [7.0, 2.0]])
    yes = torch.tensor([[True, True], [True, False], [False, False]])
    assert separation.auc_within(score, yes, ~yes) == pytest.approx((2 + 1) / 4)
    assert separation.auc_within(score, yes, torch.zeros_like(yes)) is None


def test_the_standard_error_is_that_of_repeated_draws() -> None:
    """300 draws of 60 and 90 normal scores one apart: the deviation of AUC is known to about 4 %, margin 20 %."""
    areas = []
    errors = []
    truth = torch.arange(150) < 60
    for seed in range(300):
        area, error = separation.auc(normal(150, seed=seed) + truth.double(), truth)
        areas.append(area)
        errors.append(error)
    assert float(np.mean(areas)) == pytest.approx(0.5 * (1 + math.erf(0.5)), abs=0.01)
    assert float(np.mean(errors)) == pytest.approx(float(np.std(areas)), rel=0.2)


def test_an_advantage_of_nothing_is_nothing() -> None:
    """Chosen and judged on the same 400 scores it is about 0.09; on two halves it is 0 in the mean."""
    truth = torch.arange(400) < 200
    found = [separation.separate(normal(400, seed=seed), truth, generator(seed)) for seed in range(60)]
    assert abs(float(np.mean([each.advantage for each in found]))) < 0.03
    assert float(np.mean([best_advantage(normal(400, seed=seed), truth) for seed in range(60)])) > 0.05
    certain = separation.separate(truth.double(), truth, generator())
    assert (certain.auc, certain.advantage, certain.advantage_error) == (1, 1, 0)
    assert certain.to_dict()["positives"] == 200

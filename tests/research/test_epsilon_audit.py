"""The audit that bounds epsilon from below: its arithmetic, the true claim, and noise that is too small."""

from __future__ import annotations

import math

import numpy as np
import pytest

import verfedgnn as vf
from verfedgnn.privacy.rating_dp import fit_budget
from verfedgnn_research.attacks.epsilon_audit import (
    CHANNELS,
    PLANTED,
    audit_epsilon,
    claimed_epsilon,
    lower_bound,
    planted_parties,
)


def short(budget: float) -> vf.Config:
    """Preset private with two rounds, one validation and a budget."""
    config = vf.Config.preset("private").with_values({"training.epochs": 2, "training.evaluate_every": 2})
    return fit_budget(config, wanted=budget)


def test_bounds_of_known_outcomes() -> None:
    """Of 1,000 trainings each way: all told apart, none told apart, and rates whose interval is in tables."""
    perfect, _ = lower_bound(1000, 0, 1000, 0.0, 0.05)
    assert perfect == pytest.approx(math.log(0.025 ** (1 / 1000) / (1 - 0.025 ** (1 / 1000))))
    assert lower_bound(500, 500, 1000, 1e-6, 0.05) == (0.0, 0.0)
    some, gaussian = lower_bound(500, 100, 1000, 0.0, 0.05)
    assert some == pytest.approx(math.log(0.4685 / 0.1203), abs=2e-3)
    assert gaussian > some
    assert lower_bound(0, 1000, 1000, 1e-6, 0.05) == (0.0, 0.0)


@pytest.mark.parametrize("part", [0, 1])
def test_the_worlds_differ_in_the_planted_rating_only(part: int) -> None:
    (without, parts), (planted, more) = planted_parties(None), planted_parties(part)
    assert len(planted[0].ratings) == len(without[0].ratings) + 1
    assert (planted[0].ratings.user[-1], planted[0].ratings.item[-1]) == PLANTED
    assert more[0][-1] == part
    assert np.array_equal(more[0][:-1], parts[0])
    for a, b in zip(without, planted, strict=True):
        assert np.array_equal(a.ratings.item_ids, b.ratings.item_ids)
        assert np.array_equal(a.ratings.user_ids, b.ratings.user_ids)
        assert np.array_equal(a.ratings.rating, b.ratings.rating[: len(a.ratings)])


def test_the_claim_holds_and_too_little_noise_is_caught() -> None:
    """A bound is wrong with probability 0.001; the claim of the weaker noise is that of the stronger one."""
    config = short(0.3)
    claim = claimed_epsilon(config)
    bounds = audit_epsilon(config, trials=40, error=0.001)
    assert [bound.channel for bound in bounds] == [*CHANNELS, *CHANNELS]
    assert all(bound.epsilon <= claim for bound in bounds)
    weaker = config.with_values({"gradients.noise_multiplier": 0.02})
    caught = {(b.planted, b.channel): b.epsilon for b in audit_epsilon(weaker, trials=40, error=0.001)}
    assert caught["training", "sums of gradients"] > claim
    assert caught["validation", "validation errors"] > claim
    assert caught["training", "all channels"] > claim

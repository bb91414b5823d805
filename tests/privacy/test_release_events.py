"""Accountants against closed forms and the figures that dp-accounting's own tests hold."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import verfedgnn as vf
from verfedgnn.config.sections import SkellamGradients
from verfedgnn.core.pairs import Pairs, PartyInput
from verfedgnn.privacy.accounting import privacy_report
from verfedgnn.privacy.protections import protection_of
from verfedgnn.privacy.release_events import (
    ORDERS,
    Release,
    ReleaseEvent,
    compose_epsilon,
    compose_total_variation,
    laplace,
    skellam,
    ternary,
)

PAIRS = Pairs(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 0]), torch.tensor([1.0, 2.0, 5.0]))
PARTY = PartyInput("p", 9, 2, (1.0, 5.0), PAIRS, PAIRS)
EXCHANGE = SimpleNamespace(users=9, rows=1, protected=True)
REST: dict[str, Any] = {"exchange": EXCHANGE, "randomness": "", "parties": [PARTY]}


def gaussian(noise: float) -> ReleaseEvent:
    """The event of Gaussian noise of `noise` times the l2 sensitivity, whose exact curve is known."""
    return ReleaseEvent("GaussianDpEvent", {"noise_multiplier": noise})


def normal_delta(mu: float, at: float) -> float:
    """The exact delta of the Gaussian mechanism with l2 / sigma = mu (Balle and Wang 2018, Theorem 8)."""

    def below(x: float) -> float:
        return 0.5 * math.erfc(-x / math.sqrt(2))

    return below(mu / 2 - at / mu) - math.exp(at) * below(-mu / 2 - at / mu)


@given(st.floats(2, 50), st.integers(1, 400), st.sampled_from([1e-5, 1e-6, 1e-8]))
def test_composed_gaussian_noise_is_above_the_exact_curve_and_near_it(
    noise: float, count: int, delta: float
) -> None:
    """k releases of noise z are one of noise z / sqrt(k); Renyi bounds lose little against the exact delta."""
    found = compose_epsilon([Release("x", count, gaussian(noise))], delta)
    mu = math.sqrt(count) / noise
    assert normal_delta(mu, found) <= delta * (1 + 1e-6)
    if 0.1 < mu < 4:
        assert normal_delta(mu, 0.8 * found) > delta


@given(st.floats(0.05, 2.0), st.integers(1, 300))
def test_composed_laplace_noise_is_never_above_the_sum(each: float, count: int) -> None:
    found = compose_epsilon([Release("x", count, laplace(each))], 1e-6)
    assert 0 < found <= each * count * (1 + 1e-9) + math.log(1e6) / (ORDERS[-1] - 1)


def test_figures_of_dp_accountings_own_examples() -> None:
    """Its test of the Gaussian mechanism: noise 1 at orders 2 to 1024 is alpha / 2; ten releases of a Laplace mechanism of 1."""
    alpha = np.array(ORDERS, float)
    tail = np.log1p(-1 / alpha) - (math.log(1e-6) + np.log(alpha)) / (alpha - 1)
    assert compose_epsilon([Release("x", 1, gaussian(1.0))], 1e-6) == pytest.approx(np.min(alpha / 2 + tail))
    each = 1 + np.log1p((alpha - 1) * np.expm1(1 - 2 * alpha) / (2 * alpha - 1)) / (
        alpha - 1
    )  # Mironov 2017, Proposition 6
    assert compose_epsilon([Release("x", 10, laplace(1.0))], 1e-6) == pytest.approx(np.min(10 * each + tail))


def skellam_divergence(alpha: int, variance: float, shift: int) -> float:
    """D_alpha of Sk(variance) shifted, summed over all integers that matter."""
    from scipy.special import ive

    reach = shift + int(40 * math.sqrt(variance)) + 40
    places = np.arange(-reach, reach + 1)
    p, q = (np.maximum(ive(np.abs(places - s), variance), 1e-300) for s in (shift, 0))
    inside = (p > 1e-250) & (q > 1e-250)
    terms = alpha * np.log(p[inside]) - (alpha - 1) * np.log(q[inside])
    largest = terms.max()
    return float((largest + np.log(np.exp(terms - largest).sum())) / (alpha - 1))


@pytest.mark.parametrize("variance", [4.0, 30.0, 400.0])
@pytest.mark.parametrize("shift", [1, 3])
@pytest.mark.parametrize("alpha", [2, 5, 16])
def test_skellam_bound_holds_for_the_distribution_itself(variance: float, shift: int, alpha: int) -> None:
    """Of one integer that moves by `shift`: the true Renyi divergence is below rho alpha + xi, and not far below."""
    parameters = dict(skellam(variance, shift, shift).parameters)
    true = skellam_divergence(alpha, variance, shift)
    assert true <= parameters["rho"] * alpha + parameters["xi"]
    assert true > 0.8 * alpha * shift**2 / (2 * variance + 2 * alpha * shift)


@given(st.lists(st.tuples(st.floats(1.0, 100.0), st.integers(0, 50)), max_size=4))
def test_total_variation_composes_to_what_two_coins_have(parts: list[tuple[float, int]]) -> None:
    """The worst case shows its input outright with probability delta: after k of them, with 1 - prod (1 - delta)."""
    expected = 1 - math.prod((1 - 1 / r) ** count for r, count in parts)
    assert compose_total_variation(Release("x", count, ternary(r)) for r, count in parts) == pytest.approx(
        expected, abs=1e-12
    )


def test_a_report_lists_every_release_and_epsilon_is_that_of_its_events() -> None:
    config = vf.Config.preset("private")
    report = privacy_report(protection_of(config), releases=40, exchanges=0, validations=4, **REST)
    what = {each["what"]: each for each in report["events"]}
    assert set(what) == {"user gradients", "item gradients", "validation errors", "validation counts"}
    assert what["user gradients"]["count"] == 40
    # Noise of z sensitivities has rho = 1 / 2z^2; rounding to integers adds an eighth.
    assert isinstance(config.gradients, SkellamGradients)
    exact = 1 / (2 * config.gradients.noise_multiplier**2)
    assert exact < what["user gradients"]["rho"] < 1.15 * exact
    assert report["gradients"]["composed"]["epsilon"] == pytest.approx(4.0, rel=2e-3)
    paper = privacy_report(
        protection_of(vf.Config.preset("paper")), releases=800, exchanges=160, validations=80, **REST
    )
    assert [(each["what"], each["event"]) for each in paper["events"]] == [
        ("gradients", "total variation"),
        ("neighbourhoods", None),
        ("validation errors", None),
    ]
    best = privacy_report(
        protection_of(vf.Config.preset("best")), releases=32, exchanges=0, validations=32, **REST
    )
    assert [(each["what"], each["event"]) for each in best["events"]] == [
        ("gradients", None),
        ("validation errors", None),
    ]


def test_laplace_composes_better_than_it_adds_up() -> None:
    config = vf.Config.preset("paper", mechanism="laplace", **{"gradients.epsilon": 0.1})
    few, many = (
        privacy_report(protection_of(config), releases=r, exchanges=1, validations=1, **REST)["gradients"]
        for r in (2, 3000)
    )
    assert few["composed"] == {"epsilon": pytest.approx(0.2), "delta": 0.0}
    assert many["composed"]["delta"] == 1e-6
    assert many["composed"]["epsilon"] < 0.2 * 300

"""Gradient mechanisms and the participation estimator."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from verfedgnn import Config, ConfigError
from verfedgnn.core.key_stream import KeyStream, NoiseKey
from verfedgnn.core.random_streams import simulated_secret
from verfedgnn.privacy.accounting import privacy_report
from verfedgnn.privacy.projection import IdentityProjection, Projection
from verfedgnn.privacy.protections import add_laplace, protection_of, quantize_ternary
from verfedgnn.protocol.coordinator import Coordinator
from verfedgnn.protocol.replica import participation_scale

SIGMAS = 5.0
"""Statistical tests fail beyond five standard errors: less than once in a million by chance; see test_projection.py."""


def key(seed: int = 0) -> NoiseKey:
    return NoiseKey(simulated_secret(seed, 0))


def stream(seed: int = 0) -> KeyStream:
    return KeyStream(simulated_secret(seed, 0))


class Grid(KeyStream):
    """All of 2,000 evenly spaced words in place of random ones."""

    def __init__(self) -> None:
        pass

    def words(self, shape: tuple[int, ...], kind: str = "<u8") -> Any:
        assert (shape, kind) == ((2000,), "<i4")
        return (((np.arange(2000) + 0.5) / 2000 - 0.5) * 2.0**32).astype(kind)


def test_ternary_follows_its_distribution_and_is_unbiased() -> None:
    x = torch.tensor([0.5, -0.5, 0.1, 0.0, -0.3, 3.0])
    draws = quantize_ternary(x.expand(200_000, 6), 3.0, stream()).double()
    assert set(draws.unique().tolist()) == {-1.0, 0.0, 1.0}
    assert (draws * x.sign() >= 0).all(), "a sign is never reversed"
    p = x.abs().double() / 3
    standard_error = (p * (1 - p) / len(draws)).sqrt()
    assert ((draws.mean(0) * 3 - x).abs() <= SIGMAS * 3 * standard_error + 1e-12).all()


def released(x: float, r: float) -> dict[int, float]:
    """The distribution of one coordinate's release, read off the mechanism itself over an even grid of uniform draws."""
    draws = quantize_ternary(torch.full((2000,), x), r, Grid())
    return {sign: float((draws == sign).double().mean()) for sign in (-1, 0, 1)}


vectors = st.lists(st.floats(-0.5, 0.5), min_size=3, max_size=3)


@given(x=vectors, y=vectors, r=st.floats(0.5, 10))
def test_total_variation_of_a_release(x: list[float], y: list[float], r: float) -> None:
    """TV(Q(x), Q(y)) <= |x - y|_1 / r, up to the grid."""
    assert variation(x, y, r) <= sum(abs(a - b) for a, b in zip(x, y, strict=True)) / r + 3 * 2 / 2000


def variation(x: list[float], y: list[float], r: float) -> float:
    """Return the total variation of two releases, from the chances of all outcomes."""
    outcomes = list(itertools.product((-1, 0, 1), repeat=len(x)))
    sides = [[released(v, r) for v in side] for side in (x, y)]
    chance = [
        [math.prod(d[o] for d, o in zip(side, outcome, strict=True)) for outcome in outcomes]
        for side in sides
    ]
    assert sum(chance[0]) == pytest.approx(1)
    return sum(abs(a - b) for a, b in zip(*chance, strict=True)) / 2


def test_remark_5_4_does_not_hold_for_the_largest_coordinate() -> None:
    """Neighbours at l-infinity distance 1 have a total variation of 1 - (1 - 1/(2r))^d, which is more than 1/r."""
    found = {d: variation([0.5] * d, [-0.5] * d, 3.0) for d in (1, 2, 4)}
    assert found == pytest.approx({d: 1 - (5 / 6) ** d for d in found}, abs=0.002)
    assert found[1] < found[2] < 1 / 3 < 0.51 < found[4] < 0.52


def test_laplace_noise_has_its_scale() -> None:
    noise = add_laplace(torch.zeros(200_000), 0.5, stream()).double()
    assert abs(noise.mean()) < SIGMAS * noise.std() / math.sqrt(len(noise))
    magnitude = noise.abs()
    assert abs(magnitude.mean() - 2.0) < SIGMAS * magnitude.std() / math.sqrt(len(noise))


@given(s=st.floats(0.01, 100), values=st.lists(st.floats(-50, 50), min_size=4, max_size=4))
def test_rescaling_is_public_and_undone(s: float, values: list[float]) -> None:
    """Without noise, what a protected gradient is worth is the gradient clipped at clip/s: the guarantee does not depend on s."""
    protection = protection_of(Config.preset("paper", mechanism="none", rescale=s))
    gradient = torch.tensor(values)
    out = torch.from_numpy(protection.protect(gradient, key())) * protection.worth(1.0)
    torch.testing.assert_close(out, gradient.clamp(-0.5 / s, 0.5 / s), atol=1e-4, rtol=1e-4)


def test_protected_ternary_recovers_the_mean() -> None:
    protection = protection_of(Config.preset("paper"))
    gradient = torch.tensor([1.0, -4.0, 0.3, 0.8])
    draws = torch.stack([torch.from_numpy(protection.protect(gradient, key(i))) for i in range(5_000)])
    mean = draws.sum(0, dtype=torch.int32) * protection.worth(1.0) / len(draws)
    error = draws.double().std(0) / math.sqrt(len(draws)) * 3 / 0.1
    assert ((mean - gradient).abs() < SIGMAS * error).all()


def test_conditions_of_the_guarantee_are_asked_for_by_name() -> None:
    with pytest.raises(ConfigError, match=r"clip = 0.7.*unprotected"):
        Config.preset("paper", **{"gradients.clip": 0.7})
    assert Config.preset("paper", unprotected=["clip"], **{"gradients.clip": 0.7}).gradients.clip == 0.7
    with pytest.raises(ConfigError, match="not a probability"):
        Config.preset("paper", r=0.3)
    with pytest.raises(ConfigError, match=r"gradients.clip must be set for gradients.mechanism = ternary"):
        Config.preset("paper", **{"gradients.clip": None})


PROJECTED = Projection(9, ratio=9.0)
REST: dict[str, Any] = {"parties": [], "validations": 2, "randomness": ""}


def test_report_composes() -> None:
    ternary_report = privacy_report(
        protection_of(Config.preset("paper", r=50)), releases=10, exchanges=10, exchange=PROJECTED, **REST
    )["gradients"]
    assert ternary_report["per_round"] == {"epsilon": 0.0, "delta": 0.02}
    assert ternary_report["composed"]["delta"] == pytest.approx(1 - 0.98**10)
    many = privacy_report(
        protection_of(Config.preset("paper")), releases=6000, exchanges=6000, exchange=PROJECTED, **REST
    )["gradients"]
    assert many["composed"]["delta"] == 1.0
    assert "no guarantee over the whole run" in many["guarantee"]
    noisy = privacy_report(
        protection_of(Config.preset("paper", mechanism="laplace")),
        releases=4,
        exchanges=4,
        exchange=PROJECTED,
        validations=2,
        randomness="",
        parties=[],
    )
    assert noisy["gradients"]["composed"] == {"epsilon": 4.0, "delta": 0.0}
    bare = privacy_report(
        protection_of(Config.preset("paper", exchange=0, unprotected="projection")),
        releases=4,
        exchanges=4,
        exchange=IdentityProjection(9),
        validations=2,
        randomness="",
        parties=[],
    )
    assert bare["neighbourhoods"]["guarantee"].startswith("none")


def test_participation_estimator_is_unbiased_over_all_subsets() -> None:
    """With parties of equal size, the mean of the estimate over all subsets is the whole sum, for any contributions."""
    contributions, items = [3.0, -1.0, 4.0, 1.5, 9.0], [7] * 5
    for size in range(1, 6):
        subsets = list(itertools.combinations(range(5), size))
        estimates = [participation_scale(items, s) * sum(contributions[i] for i in s) for s in subsets]
        assert np.mean(estimates) == pytest.approx(sum(contributions))


def test_estimate_of_the_others_is_unbiased_where_somebody_else_is_active() -> None:
    """A party's estimate of the others' sum, over all draws that hold another party; alone active, it knows nothing: 0."""
    contributions, items = [3.0, -1.0, 4.0, 1.5], [7] * 4
    for size in range(1, 5):
        draws = [s for s in itertools.combinations(range(4), size) if set(s) - {0}]
        estimates = [
            participation_scale(items, s, without=0) * sum(contributions[i] for i in s if i) for s in draws
        ]
        assert np.mean(estimates) == pytest.approx(sum(contributions[1:]))


def test_drawn_parties_are_uniform() -> None:
    """Each of 10 parties takes part in a fraction 0.3 of 20,000 rounds; the estimator is then unbiased as drawn."""
    coordinator = Coordinator(Config.preset("paper", participation=0.3), [str(i) for i in range(10)])
    rounds = 20_000
    counts = np.zeros(10)
    for round in range(1, rounds + 1):
        active = coordinator.draw_active(round, range(10))
        assert len(active) == 3
        counts[active] += 1
    assert (np.abs(counts / rounds - 0.3) < SIGMAS * math.sqrt(0.3 * 0.7 / rounds)).all()


def test_participation_scale_without_oneself() -> None:
    items = [10, 20, 30]
    assert participation_scale(items, [0, 1, 2]) == 1
    assert participation_scale(items, [1]) == 3
    assert participation_scale(items, [0, 1], without=0) == 50 / 20
    assert participation_scale(items, [0], without=0) == 0

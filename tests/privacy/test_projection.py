"""Random projection: Theorem 2, Theorem 1's condition, and that Phi is its seed's and nothing else's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from verfedgnn import Config, ConfigError
from verfedgnn.privacy.projection import Projection

# Each statistical test below compares a mean of independent draws with its expected value and fails beyond five standard
# errors: by chance less than once in a million runs with fresh seeds. The seeds are fixed, so a failure is a defect.
SIGMAS = 5.0


def errors(users: int, ratio: float, trials: int = 1500) -> np.ndarray:
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(users, 1)).astype(np.float32))
    found = []
    for seed in range(trials):
        phi = Projection(users, ratio=ratio, seed=seed)
        found.append(float((phi.reconstruct(phi.project(x)) - x).square().sum() / x.square().sum()))
    return np.array(found)


def assert_mean(values: np.ndarray, expected: float) -> None:
    standard_error = values.std(ddof=1) / math.sqrt(len(values))
    assert abs(values.mean() - expected) < SIGMAS * standard_error
    assert standard_error < 0.05 * expected, "too few trials to tell"


def test_theorem_2_mean_error() -> None:
    """E |Phi^T Phi x - x|^2 = (m + 1)/q |x|^2."""
    assert_mean(errors(60, 5), 61 / 12)


@given(users=st.integers(1, 50), ratio=st.floats(1, 20), seed=st.integers(0, 99))
def test_project_and_reconstruct_are_adjoint(users: int, ratio: float, seed: int) -> None:
    phi = Projection(users, ratio=ratio, seed=seed)
    assert phi.rows == max(1, int(users / ratio))
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.normal(size=(users, 3)).astype(np.float32))
    y = torch.from_numpy(rng.normal(size=(phi.rows, 3)).astype(np.float32))
    assert float((phi.project(x) * y).sum()) == pytest.approx(float((x * phi.reconstruct(y)).sum()), abs=1e-3)


def test_drawn_anew_or_kept_phi_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verfedgnn.privacy.projection.TILE_VALUES", 64)
    x = torch.from_numpy(np.random.default_rng(1).normal(size=(100, 4)).astype(np.float32))
    kept = Projection(100, ratio=5, seed=7)
    monkeypatch.setattr("verfedgnn.privacy.projection.CACHE_VALUES", 0)
    drawn = Projection(100, ratio=5, seed=7)
    torch.testing.assert_close(kept.project(x), drawn.project(x), atol=1e-5, rtol=1e-5)
    y = kept.project(x)
    torch.testing.assert_close(kept.reconstruct(y), drawn.reconstruct(y), atol=1e-5, rtol=1e-5)
    assert not drawn._cache, "Phi must not be held whole"
    assert not torch.equal(kept.project(x), Projection(100, ratio=5, seed=8).project(x))


def test_a_phi_too_large_to_draw_is_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match=r"1,987,929 users .* preset.*best"):
        Projection(1_987_929, ratio=5)


def test_theorem_1_condition() -> None:
    assert Projection(100, ratio=5).protected
    assert Projection(99, ratio=2).protected  # q = 49, 98 <= 100
    assert not Projection(100, ratio=1).protected
    assert not Projection(1, ratio=5).protected, "one user: Phi is a known number"
    with pytest.raises(ConfigError, match=r"2q > N \+ 1.*unprotected=.projection"):
        Config.preset("paper", exchange=1)
    assert Config.preset("paper", exchange=1, unprotected=["projection"]).exchange == 1


def test_no_value_can_be_solved_for() -> None:
    """Theorem 1 on small cases: for every user there is a vector in Phi's kernel that changes that user's value."""
    for seed in range(20):
        phi = Projection(9, ratio=9 / 5, seed=seed).project(torch.eye(9)).double().numpy()
        assert phi.shape[0] == 5
        kernel = np.linalg.svd(phi)[2][5:]
        assert (np.abs(kernel).max(0) > 1e-6).all()

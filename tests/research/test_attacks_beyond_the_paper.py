"""Attacks the paper does not try: cases solved by hand, their mathematics, small federations whose messages are read."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from projection_theory import (
    averaged,
    averaged_error,
    best_advantage,
    expected_errors,
    informed,
    known_rows,
    measured_errors,
    read_off,
    relative_error,
    release_error,
    sent_neighbourhoods,
    share_error,
    solved,
    sparse_rows,
)
from torch import Tensor

import verfedgnn as vf
from helpers import config, federation
from verfedgnn.core.errors import ConfigError, DataError, ProtocolError
from verfedgnn.core.key_stream import KeyStream
from verfedgnn.core.pairs import Pairs
from verfedgnn.core.random_streams import simulated_secret
from verfedgnn.privacy.gradient_protection import quantize_ternary
from verfedgnn.privacy.projection import Projection
from verfedgnn.research.attacks import noisy_sums as noisy
from verfedgnn.research.attacks import separation
from verfedgnn.research.attacks.adversaries import plant
from verfedgnn.research.attacks.attack_scores import score
from verfedgnn.research.attacks.collusion import Exposure, honest_sum
from verfedgnn.research.attacks.coordinator_attack import attack_gradients
from verfedgnn.research.attacks.count_sketch import CountSketch, expected_share
from verfedgnn.research.attacks.curious_coordinator import read_trip, strength
from verfedgnn.research.attacks.many_releases import ReleaseAverage
from verfedgnn.research.attacks.membership_inference import membership, squared_errors
from verfedgnn.research.attacks.projection_inverse import dense_projection, least_norm
from verfedgnn.research.attacks.recording import TOGETHER, RecordedFederation, record_federation
from verfedgnn.research.attacks.round_stacking import stack_rounds, unmix, unmix_sums, users_of_items
from verfedgnn.research.attacks.sparse_recovery import equal_size, largest, nnls, omp, polish
from verfedgnn.research.attacks.sum_attacks import attack_sums
from verfedgnn.runs.prepared_data import split_ratings


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def best(**values: object) -> vf.Config:
    return vf.Config.preset("best", **({"epochs": 200, "gate": False, "dim": 16} | values))


# -- sparse recovery -------------------------------------------------------------------------------------------------------


def test_nnls_by_hand() -> None:
    atoms = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    x = torch.tensor([[2.0, 0.0], [-1.0, 3.0], [-1.0, -1.0], [1.0, 1.0], [0.0, 0.0]])
    found = nnls(x, atoms)
    assert torch.allclose(found.weights[0], torch.tensor([2.0, 0.0, 0.0]).double())
    assert torch.allclose(
        found.weights[1], torch.tensor([0.0, 3.0, 0.0]).double()
    )  # the first coordinate cannot be reached
    assert not found.weights[2].any()
    assert torch.allclose(found.weights[3] @ atoms.double(), x[3].double())
    assert torch.allclose(
        found.residual, torch.tensor([0.0, 1.0, math.sqrt(2), 0.0, 0.0]).double(), atol=1e-12
    )


@settings(max_examples=30)
@given(st.integers(1, 6), st.integers(1, 12), st.integers(0, 2**31))
def test_nnls_meets_the_conditions_of_an_optimum(dim: int, count: int, seed: int) -> None:
    """Weights and slopes have the right signs, and where a weight is not 0 the slope is (Karush, Kuhn and Tucker)."""
    atoms = normal(count, dim, seed=seed)
    x = normal(5, dim, seed=seed + 1)
    found = nnls(x, atoms)
    slope = (x - found.weights @ atoms) @ atoms.T
    assert (found.weights >= 0).all()
    assert float(slope.max()) < 1e-6
    assert float((slope * found.weights).abs().max()) < 1e-6
    assert int((found.weights > 0).sum(1).max()) <= dim


def test_pursuit_finds_the_items_exactly_where_atoms_are_orthogonal() -> None:
    atoms = torch.linalg.qr(normal(20, 20))[0] * torch.linspace(0.5, 2, 20).unsqueeze(1).double()
    truth = torch.rand(50, 20, generator=generator(1)) < 0.4
    x = truth.double() @ atoms / truth.sum(1, keepdim=True).clamp(min=1).sqrt()
    for method in (omp, nnls):
        weights = method(x, atoms).weights
        assert torch.equal(weights > 1e-9, truth)
        assert torch.equal(largest(weights, equal_size(weights))[truth.any(1)], truth[truth.any(1)])


def test_pursuit_stops_at_the_noise() -> None:
    atoms = normal(60, 24)
    x = atoms[:10] + 0.01 * normal(10, 24, seed=1)
    assert (omp(x, atoms, noise=0.015).weights > 0).sum(1).tolist() == [1] * 10
    assert int((omp(x, atoms).weights > 0).sum(1).min()) > 10
    assert int((omp(x, atoms, most=3).weights > 0).sum(1).max()) <= 3


def test_sizes_by_hand() -> None:
    weights = torch.tensor(
        [[0.7, 0.7, 0.05, 0.0], [1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.5, 0.5], [1.0, 0.3, 0.3, 0.3]]
    )
    assert equal_size(weights).tolist() == [2, 1, 4, 1]
    assert largest(weights, torch.tensor([1, 3, 2, 2])).int().tolist() == [
        [1, 0, 0, 0],
        [1, 0, 0, 0],
        [1, 1, 0, 0],
        [1, 1, 0, 0],
    ]


def test_exchanges_find_the_best_set_of_few_items() -> None:
    """From a single item: most of the sets of up to three, and never one that a single exchange would improve."""
    atoms = normal(8, 6)
    sets = [set(s) for size in (1, 2, 3) for s in itertools.combinations(range(8), size)]
    truth = torch.zeros(len(sets), 8, dtype=torch.bool)
    for row, members in enumerate(sets):
        truth[row, list(members)] = True
    x = truth.double() @ atoms / truth.sum(1, keepdim=True).sqrt()
    start = largest(x @ atoms.T, torch.ones(len(sets), dtype=torch.long))
    start[~start.any(1), 0] = True
    found = polish(x, atoms, start)
    assert (
        float(((found.weights > 0) == truth).all(1).double().mean()) > 0.75
    )  # a local optimum is not always the best
    for row, target, distance in zip(found.weights > 0, x, found.residual, strict=True):
        inside = torch.nonzero(row).squeeze(1).tolist()
        outside = torch.nonzero(~row).squeeze(1).tolist()
        for gone, come in itertools.product([None, *inside], [None, *outside]):
            others = [v for v in inside if v != gone] + ([] if come is None else [come])
            if others:
                assert (
                    float((target - atoms[others].sum(0) / math.sqrt(len(others))).norm())
                    >= float(distance) - 1e-9
                )
    again = polish(x, atoms, truth)
    assert torch.equal(again.weights > 0, truth)
    assert float(again.residual.max()) < 1e-12


def test_recovery_in_32_columns_and_in_6() -> None:
    """What D allows: with 32 columns sets of five of a hundred items, with 6 not even half of them."""
    truth = torch.zeros(60, 100, dtype=torch.bool)
    for seed, row in enumerate(truth):
        row[torch.randperm(100, generator=generator(seed))[:5]] = True
    shares = []
    for dim in (32, 6):
        atoms = normal(100, dim)
        x = truth.double() @ atoms / math.sqrt(5)
        weights = omp(x, atoms, left=1e-6).weights
        found = polish(x, atoms, largest(weights, equal_size(weights))).weights > 0
        shares.append(float((found == truth).all(1).double().mean()))
    assert shares[0] > 0.9
    assert shares[1] < 0.5


def test_a_polish_prefers_fewer_items_where_there_is_noise() -> None:
    atoms = normal(100, 12)
    x = atoms[:20] + 0.7 * normal(20, 12, seed=3)
    start = torch.eye(100, dtype=torch.bool)[:20]
    priced, free = (
        (polish(x, atoms, start, noise=noise).weights > 0).sum(1).double().mean() for noise in (0.7, 0.0)
    )
    assert float(priced) < float(free)


# -- ridge -----------------------------------------------------------------------------------------------------------------


def test_the_inverse_is_least_squares_with_enough_rows_and_least_norm_with_fewer() -> None:
    phi = normal(30, 12)
    x = normal(12, 3, seed=1)
    assert torch.allclose(least_norm(phi @ x, phi).double(), x, atol=1e-5)
    noisy = phi @ x + normal(30, 3, seed=2)
    expected = torch.linalg.solve(phi.T @ phi, phi.T @ noisy)
    assert torch.allclose(least_norm(noisy, phi).double(), expected, atol=1e-5)
    few = phi[:5]
    least = least_norm(few @ x, few).double()
    assert torch.allclose(few @ least, few @ x, atol=1e-5)
    assert torch.allclose(least, few.T @ torch.linalg.solve(few @ few.T, few @ x), atol=1e-5)


@pytest.mark.parametrize("ratio", [2.0, 5.0, 10.0])
def test_errors_of_the_three_inverses_are_as_expected(ratio: float) -> None:
    """Over 12 projections and 8 columns; the adjoint's error has a relative deviation of about 2 %, margin 10 %."""
    x = normal(300, 8).float()
    found = [measured_errors(x, Projection(300, ratio=ratio, seed=seed)) for seed in range(12)]
    expected = expected_errors(300, int(300 / ratio))
    for measured, wanted in zip(zip(*found, strict=True), expected, strict=True):
        assert float(np.mean(measured)) == pytest.approx(wanted, rel=0.1)
    assert expected.minimum_norm < expected.scaled < expected.adjoint


def test_public_features_explain_a_part_of_what_is_projected() -> None:
    features = normal(300, 4)
    plan = normal(4, 6, seed=1)
    phi = dense_projection(Projection(300, ratio=5)).double()
    pure = features @ plan
    assert relative_error(informed(phi @ pure, phi, features), pure) < 1e-8
    mixed = pure + normal(300, 6, seed=2)
    plain = least_norm(phi @ mixed, phi)
    told = informed(phi @ mixed, phi, features)
    assert relative_error(told, mixed) < 0.6 * relative_error(plain, mixed)


def test_few_users_with_something_are_solved_for() -> None:
    """N = 200, q = 40: theorem 1's condition holds, and a matrix with 40 known or 12 unknown rows is found all the same."""
    projection = Projection(200, ratio=5)
    assert projection.protected
    phi = dense_projection(projection).double()
    rows = torch.randperm(200, generator=generator())
    for count, solve in (
        (40, lambda y, s: known_rows(y, phi, s)),
        (12, lambda y, s: sparse_rows(y, phi)),
    ):
        x = torch.zeros(200, 6, dtype=torch.float64)
        x[rows[:count]] = normal(count, 6, seed=count)
        found = solve(phi @ x, rows[:count])
        assert relative_error(found, x) < 1e-6
    x = normal(200, 6)
    assert relative_error(known_rows(phi @ x, phi, torch.arange(200)), x) == pytest.approx(0.8, abs=0.1)


# -- rounds ----------------------------------------------------------------------------------------------------------------


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


def test_averaging_helps_with_a_fresh_projection_and_never_with_a_fixed_one() -> None:
    x = normal(200, 10).float()
    fixed = []
    fresh = []
    for count in (1, 4, 16):
        one = [Projection(200, ratio=5)] * count
        many = [Projection(200, ratio=5, seed=seed) for seed in range(count)]
        fixed.append(relative_error(averaged([x] * count, one), x))
        fresh.append(relative_error(averaged([x] * count, many), x))
        assert fresh[-1] == pytest.approx(averaged_error(200, 40, count, fresh=True), rel=0.15)
        assert fixed[-1] == pytest.approx(averaged_error(200, 40, count, fresh=False), rel=0.15)
    assert fixed[0] == pytest.approx(fixed[2], rel=1e-4)
    seeds = [Projection(200, ratio=5, seed=seed) for seed in range(5)]  # T q = N: solved
    assert (
        relative_error(solved([p.project(x) for p in seeds], [dense_projection(p) for p in seeds]), x) < 1e-4
    )
    again = [seeds[0]] * 5
    stuck = relative_error(solved([p.project(x) for p in again], [dense_projection(p) for p in again]), x)
    assert stuck == pytest.approx(0.8, abs=0.1)


# -- stacking --------------------------------------------------------------------------------------------------------------


def graph_of(users: int, items: int, share: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Who has what (N, M), and the same divided by the root of how much (f = 1/sqrt c)."""
    truth = torch.rand(users, items, generator=generator(seed)) < share
    return truth, truth.double() / truth.sum(1, keepdim=True).clamp(min=1).sqrt()


def test_stacked_exchanges_solve_for_any_number_of_items() -> None:
    truth, b = graph_of(50, 40, 0.5)
    atoms = [normal(40, 6, seed=t) for t in range(8)]
    some = truth.any(1)
    one, all_of_them = (
        unmix(stack_rounds([b @ a for a in atoms[:t]]), stack_rounds(atoms[:t])) for t in (1, 8)
    )
    assert torch.equal(largest(all_of_them, equal_size(all_of_them))[some], truth[some])
    assert not torch.equal(largest(one, equal_size(one))[some], truth[some])


def test_what_other_parties_add_is_weighed_down() -> None:
    """40 items of the target and 200 of others, whose atoms share a strong direction that changes over time."""
    truth, b = graph_of(400, 40, 0.1)
    _, others = graph_of(400, 200, 0.1, seed=1)
    rows = []
    atoms = []
    for t in range(20):
        common = 2 * normal(1, 8, seed=100 + t)
        mine = normal(40, 8, seed=t) + common
        theirs = normal(200, 8, seed=50 + t) + common
        rows.append(b @ mine + others @ theirs)
        atoms.append(mine)
    x = stack_rounds(rows)
    a = stack_rounds(atoms)
    some = truth.any(1)
    plain = unmix(x, a, 1.0)
    weighed = unmix_sums(x, a, x)
    wrong = [int((largest(w, equal_size(w)) != truth)[some].sum()) for w in (plain, weighed)]
    assert wrong[1] < 0.5 * wrong[0]


def test_projected_exchanges_with_known_atoms_show_who_has_the_rarer_items() -> None:
    truth, b = graph_of(200, 30, 0.02)
    phi = dense_projection(Projection(200, ratio=5)).double()
    atoms = [normal(30, 6, seed=t) for t in range(6)]
    claims = users_of_items([phi @ b @ a for a in atoms], atoms, phi)
    assert not (claims & ~truth).any()
    rare = (truth.sum(0) <= 5) & truth.any(0)
    assert int(rare.sum()) > 10
    assert torch.equal(claims[:, rare], truth[:, rare])


# -- noise -----------------------------------------------------------------------------------------------------------------


def moving(items: int, seed: int) -> Tensor:
    """Atoms of 40 exchanges (M, 40, 6) that move from one place to another."""
    time = torch.linspace(0, 1, 40).double().view(1, -1, 1)
    return normal(items, 1, 6, seed=seed) + time * normal(items, 1, 6, seed=seed + 1)


def test_modes_hold_slow_atoms_and_little_noise() -> None:
    modes = noisy.time_modes(moving(30, 1), 2)
    atoms = moving(20, 3)
    assert torch.allclose(modes.T @ modes, torch.eye(2).double(), atol=1e-9)
    assert float(noisy.in_modes(atoms, modes).square().sum()) == pytest.approx(float(atoms.square().sum()))
    noise = normal(500, 40, 6, seed=5)
    assert float(noisy.in_modes(noise, modes).square().mean()) == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize("copies", [1, 4])
def test_atoms_of_fakes_are_wrong_by_as_much_as_expected(copies: int) -> None:
    """Two modes of 6 columns with 300 items: the error is known to about 3 %, margin 15 %."""
    scale = torch.tensor([2.0, 0.5]).double().repeat_interleave(6)
    own = normal(300, 12) * scale
    true = normal(300, 12, seed=1) * scale
    items = torch.arange(300).repeat(copies)
    atoms, wrong = noisy.smoothed(true[items] + 1.5 * normal(len(items), 12, seed=2), items, own, 6, 1.5**2)
    for mode in (slice(6), slice(6, 12)):
        error = float((atoms - true)[:, mode].square().mean())
        assert error == pytest.approx(float(wrong[mode].mean()), rel=0.15)
        assert error < min(1.5**2 / copies, float(true[:, mode].square().mean()))


def test_odds_are_exact_for_one_item() -> None:
    """A row of 0.3 and noise of 0.5, an atom of 1: log(pi / (1 - pi)) + (0.3 - 1/2) / 0.25, weights being 1."""
    odds = noisy.log_odds(
        torch.tensor([[0.3]]),
        torch.ones(1, 1).double(),
        torch.full((1, 1), 0.25).double(),
        torch.tensor([0.2]),
    )
    assert float(odds) == pytest.approx(math.log(0.25) - 0.8, abs=1e-4)


def test_claims_by_the_expected_f1() -> None:
    p = torch.tensor([[0.9, 0.1, 0.8], [0.2, 0.2, 0.2], [0.01, 0.0, 0.99]])
    assert noisy.likeliest(p.logit()).tolist() == [
        [True, False, True],
        [True, True, True],
        [False, False, True],
    ]


def test_who_expects_the_noise_reads_rows_that_others_cannot() -> None:
    """30 items, 40 exchanges, noise as large as atoms: stacked rows of fakes solve for little, smoothed ones for most."""
    truth, b = graph_of(300, 30, 0.1)
    atoms = moving(30, 11)
    own = moving(30, 21)
    noise = 1.0
    rows = torch.einsum("nm,mtd->ntd", b, atoms) + noise * normal(300, 40, 6, seed=31)
    fakes = atoms + noise * normal(30, 40, 6, seed=32)
    weights = unmix(rows.flatten(1), fakes.flatten(1), noise)
    modes = noisy.time_modes(own, 4)
    mine = noisy.in_modes(own, modes)
    known, wrong = noisy.smoothed(noisy.in_modes(fakes, modes), torch.arange(30), mine, 6, noise**2)
    share = truth.double().mean(0)
    odds = noisy.log_odds(noisy.in_modes(rows, modes), known, torch.diag(noise**2 + wrong), share)
    some = truth.any(1)
    old = score(largest(weights, equal_size(weights))[some], truth[some]).f1
    new = score(noisy.likeliest(odds)[some], truth[some]).f1
    assert new > old + 0.1
    white = noise**2 * torch.eye(len(wrong), dtype=torch.float64)
    told = noisy.log_odds(noisy.in_modes(rows, modes), noisy.in_modes(atoms, modes), white, share)
    assert score(noisy.likeliest(told)[some], truth[some]).f1 > new  # an insider


def test_what_others_add_is_spread_as_ones_own() -> None:
    own = normal(2000, 5)
    shape = torch.linspace(0.5, 2, 5).double()
    rows = sum(normal(2000, 5, seed=seed) * shape for seed in (1, 2, 3)) + 3 * normal(2000, 5, seed=4)
    assert isinstance(rows, Tensor)
    spread = noisy.spread_of_others(own * shape, rows, 2, 9.0)
    assert torch.allclose(spread.diagonal(), 2 * shape.square(), rtol=0.2, atol=0.2)


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


# -- the count sketch ------------------------------------------------------------------------------------------------------


def test_a_count_sketch_by_hand() -> None:
    drawn = CountSketch(torch.tensor([0, 2, 0, 1]), torch.tensor([1, -1, -1, 1]), 3)
    x = torch.tensor([[1.0], [2.0], [4.0], [8.0]])
    assert drawn.project(x).tolist() == [[-3.0], [8.0], [-2.0]]
    assert drawn.alone().tolist() == [False, True, False, True]
    assert drawn.alone(torch.tensor([True, False, False, True])).tolist() == [True, False, False, True]
    users, rows = read_off(drawn.project(x), drawn)
    assert users.tolist() == [1, 3]
    assert rows.tolist() == [[2.0], [8.0]]


@pytest.mark.parametrize("ratio", [1, 2, 5])
def test_as_many_users_are_alone_as_expected(ratio: int) -> None:
    """The mean of 20 sketches within four standard errors of (1 - 1/q)^(N - 1), which is e^(-N/q) within 1 %."""
    users = 4000
    rows = 4000 // ratio
    shares = [
        float(CountSketch.draw(users, rows, generator(seed)).alone().double().mean()) for seed in range(20)
    ]
    expected = expected_share(users, rows)
    error = share_error(users, rows)
    assert abs(float(np.mean(shares)) - expected) < 4 * error / math.sqrt(20)
    assert expected == pytest.approx(math.exp(-ratio), rel=0.01)
    assert float(np.std(shares)) == pytest.approx(error, rel=0.6)


# -- federations -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def four(small_parties: list[vf.PartyData]) -> list[vf.PartyData]:
    """Four parties, 120 users, 22 or 23 items each."""
    table = vf.data.synthetic_ratings(users=120, items=90, ratings=3000, seed=5)
    return vf.split_items(table, parties=4, seed=5)


def test_a_tapped_federation_sends_what_any_other_sends(small_parties: list[vf.PartyData]) -> None:
    chosen = config()
    ordinary = federation(small_parties, chosen)
    watched = record_federation(small_parties, chosen)
    for _ in range(4):
        ordinary.round()
        trip = watched.round()
    assert torch.equal(ordinary.coordinator.replica.parameters, watched.coordinator.replica.parameters)
    assert sorted(trip.replies) == sorted(trip.starts) == sorted(party.name for party in small_parties)
    projection = watched.parties[0].projection
    assert isinstance(projection, Projection)
    for party in watched.parties:
        y = sent_neighbourhoods(watched, trip)[party.data.name]
        assert torch.allclose(y[0], projection.project(party.neighbourhood(party.exchanged)), atol=2**-20)
        signs = watched.sent_gradients(trip)[party.data.name]
        assert set(signs.unique().tolist()) <= {-1.0, 0.0, 1.0}
        assert not signs[party.gradient[: signs.numel()].view_as(signs) == 0].any()


@pytest.mark.parametrize("chosen", [config(), config(gnn="ggnn"), best()])
def test_rows_are_sums_of_atoms(small_parties: list[vf.PartyData], chosen: vf.Config) -> None:
    watched = record_federation(small_parties, chosen)
    for _ in range(3):
        watched.round()
    party = watched.parties[1]
    truth = party.neighbours
    x = party.neighbourhood(party.exchanged)
    count = truth.sum(1, keepdim=True).clamp(min=1)
    f = 1 / count if (chosen.model.form, chosen.model.gnn) == ("propagation", "ggnn") else count.rsqrt()
    assert torch.allclose(x, f * (truth.float() @ party.atoms(party.exchanged)), atol=1e-6)
    gat = record_federation(small_parties, config(gnn="gat"))
    gat.round()
    with pytest.raises(ConfigError, match="GAT"):
        gat.parties[0].atoms(gat.parties[0].exchanged)


def test_masked_messages_show_their_sum_only(small_parties: list[vf.PartyData]) -> None:
    watched = record_federation(small_parties, best())
    trip = watched.round()
    total = sent_neighbourhoods(watched, trip)
    assert list(total) == list(watched.sent_gradients(trip)) == [TOGETHER]
    true = torch.stack([party.neighbourhood(party.exchanged) for party in watched.parties]).sum(0)
    assert torch.allclose(total[TOGETHER][0], true, atol=3 * 2**-11 + 1e-6)
    nothing = record_federation(small_parties, config(form="messages", **{"exchange.mode": "off"}))
    with pytest.raises(ConfigError, match="no sum"):
        nothing.exchange()


def test_all_but_one_have_the_others_matrix_and_all_but_two_the_sum_of_two(four: list[vf.PartyData]) -> None:
    watched = record_federation(four, best())
    for _ in range(4):
        exchange = watched.exchange()
    exact = [party.neighbourhood(knows) for party, knows in zip(watched.parties, exchange.knows, strict=True)]
    rounding = 2**-11 + 1e-6
    three = honest_sum(exchange.start, exchange.sent[:3], 16)[0]
    assert torch.allclose(three, exact[3], atol=rounding)
    two = honest_sum(exchange.start, exchange.sent[:2], 16)[0]
    assert torch.allclose(two, exact[2] + exact[3], atol=2 * rounding)
    assert not torch.allclose(two, exact[3], atol=20 * rounding)
    with pytest.raises(ProtocolError, match="another sum"):
        honest_sum(watched.exchange().start, exchange.sent[:3], 16)


def test_in_64_bits_what_is_left_is_exact_to_float_rounding(four: list[vf.PartyData]) -> None:
    watched = record_federation(four, config(**{"exchange.mode": "exact", "exchange.bits": 64}))
    exchange = watched.exchange()
    left = honest_sum(exchange.start, [exchange.sent[p] for p in (0, 1, 3)], 64)[0]
    true = watched.parties[2].neighbourhood(exchange.knows[2])
    assert torch.allclose(left, true, rtol=1e-6, atol=2**-32)


def test_who_is_exposed_by_how_many() -> None:
    assert [Exposure(4, colluders).summed for colluders in (1, 2, 3)] == [3, 2, 1]
    assert Exposure(10, 1).noise_left == 1
    assert Exposure(10, 9).noise_left == pytest.approx(1 / 9)


def scores(found: dict[str, float]) -> tuple[float, float]:
    guess = found["guess"]
    assert isinstance(guess, dict)
    return found["f1"], guess["f1"]


def test_masked_sums_give_items_away_to_fake_accounts(four: list[vf.PartyData]) -> None:
    """Four parties with 16 columns: one party alone finds more than half, all but one colluding find everything."""
    found = attack_sums(four, best(), rounds=100)
    assert set(found) >= {
        "party, insider, nnls",
        "colluders, insider, polished",
        "colluders, fakes, all exchanges",
    }
    assert found["colluders, fakes, all exchanges"]["exact"] > 0.95
    single, guess = scores(found["party, fakes, all exchanges"])
    assert single > guess + 0.1
    once, guess = scores(found["colluders, insider, polished"])
    assert once > guess


def test_noised_sums_give_items_away_to_who_expects_the_noise(four: list[vf.PartyData]) -> None:
    """Noise of 0.05: reading rows as if they were exact finds little, expecting the noise much, for an insider most."""
    noised = best(**{"exchange.mode": "noised", "exchange.noise": 0.05, "exchange.row_clip": 1.0})
    found = attack_sums(four, noised, rounds=100, copies=2)
    old, _ = scores(found["colluders, fakes, all exchanges"])
    new, guess = scores(found["colluders, fakes, noise expected"])
    assert new > max(old, guess) + 0.2
    alone, guess = scores(found["party, fakes, noise expected"])
    assert alone > guess + 0.1
    for who in ("colluders", "party"):
        fakes, insider = (found[f"{who}, {how}, noise expected"]["auc"] for how in ("fakes", "insider"))
        assert insider["within"] > fakes["within"] > 0.55
        assert insider["all"] > insider["guess"]
        assert insider["held"] > 0.6


def test_projected_sums_keep_rows_but_not_from_an_insider_over_rounds(four: list[vf.PartyData]) -> None:
    found = attack_sums(four, config(epochs=12), rounds=40)
    for name in ("colluders, insider, omp", "colluders, fakes, subset, ridge", "party, fakes, all exchanges"):
        reached, guess = scores(found[name])
        assert reached < guess + 0.05  # as for the paper's own attacks
    known = found["colluders, insider, all exchanges"]
    assert known["precision"] > 0.95
    assert known["recall"] > 0.1


def trips(watched: RecordedFederation, count: int) -> list[dict[str, float]]:
    readings = []
    for _ in range(count):
        trip = watched.round()
        for reading in read_trip(watched, trip, generator()).values():
            readings.append({"auc": reading.separation.auc, "proven": reading.proven, "false": reading.false})
    return readings


@pytest.fixture(scope="module")
def sparse() -> list[vf.PartyData]:
    """Three parties at which many of 300 users have nothing."""
    return vf.split_items(
        vf.data.synthetic_ratings(users=300, items=90, ratings=1800, seed=2), parties=3, seed=2
    )


@pytest.mark.parametrize(
    ("mechanism", "masked", "least", "most"),
    [
        ("none", False, 0.999, 1.0),
        ("ternary", False, 0.55, 0.95),
        ("laplace", False, 0.4, 0.65),
        ("ternary", True, 0.4, 0.8),
    ],
)
def test_the_coordinator_sees_who_has_ratings(
    sparse: list[vf.PartyData], mechanism: str, masked: bool, least: float, most: float
) -> None:
    """With messages a user without ratings has a gradient of 0: open ones tell all, ternary ones some, and these for sure."""
    mode = "masked" if masked else "exact"
    chosen = best(
        masking=masked,
        **{"gradients.mechanism": mechanism, "exchange.mode": mode, "exchange.backward": False},
    )
    readings = trips(record_federation(sparse, chosen), 5)
    assert len(readings) == 15
    assert least <= float(np.mean([each["auc"] for each in readings])) <= most
    false = float(np.mean([each["false"] for each in readings]))
    assert (false == 0) == (mechanism != "laplace" and not masked)


def test_many_rounds_show_who_has_ratings_and_how_many(sparse: list[vf.PartyData]) -> None:
    open_ = {"masking": False, "exchange.mode": "exact"}
    alone = attack_gradients(sparse, best(**open_), rounds=60, at=(1, 10))["rounds"]
    masked = attack_gradients(sparse, best(), rounds=60, at=(1, 10))["rounds"]
    assert list(alone) == ["1", "10", "60"]
    for name in ("any", "proven", "degree", "cosine"):
        assert alone["1"][name] < alone["10"][name] < alone["60"][name]
    assert alone["60"]["any"] > 0.97
    assert alone["60"]["false"] == 0
    assert masked["60"]["any"] < masked["60"]["guess"] + 0.05 < alone["60"]["any"]
    assert masked["60"]["false"] > 0.5


def test_rows_that_gradients_prove_are_solved_for(sparse: list[vf.PartyData]) -> None:
    """The coordinator without masks, theorem 1 fulfilled: it learns from gradients who is there, and then solves for X."""
    few = [sparse[0], *(vf.PartyData(p.name, p.ratings) for p in sparse[1:])]
    kept = np.isin(few[0].ratings.user, np.arange(300)[::6])
    few[0] = vf.PartyData(few[0].name, few[0].ratings.take(kept))
    watched = record_federation(few, config(form="messages", batch=0, epochs=200, rescale_users=1.0))
    average = ReleaseAverage()
    name = few[0].name
    for _ in range(100):
        trip = watched.round()
        average.add(watched.sent_gradients(trip)[name])
    party = watched.parties[0]
    assert isinstance(party.projection, Projection)
    assert party.projection.protected
    true = party.neighbourhood(party.exchanged)
    y = sent_neighbourhoods(watched, trip)[name][0]
    found = known_rows(y, dense_projection(party.projection), torch.nonzero(average.proven).squeeze(1))
    assert relative_error(found, true) < 0.01
    assert relative_error(party.projection.reconstruct(y), true) > 2


def test_membership_by_hand() -> None:
    pairs = Pairs(torch.tensor([0, 1]), torch.tensor([1, 0]), torch.tensor([3.0, 5.0]))
    users = torch.tensor([[1.0, 2.0], [0.0, 1.0]])
    items = torch.tensor([[1.0, 4.0], [1.0, 1.0]])
    assert squared_errors(users, items, pairs).tolist() == [0.0, 1.0]
    assert strength(torch.tensor([[1.0, -2.0], [0.0, 0.0]])).tolist() == [3.0, 0.0]


def test_a_model_that_memorises_tells_its_ratings(small_parties: list[vf.PartyData]) -> None:
    run = vf.train(small_parties, config(epochs=3))
    prepared = run.prepared()
    fair = membership(prepared, [(m.users, m.items) for m in run.models], generator())
    assert 0.45 < fair.control.auc < 0.55
    assert fair.trained.auc < 0.65
    parrots = []
    for party in prepared:  # h_u . h_v is the rating itself for training pairs, and 3 elsewhere
        table = torch.full((party.party.ratings.n_users, party.party.ratings.n_items), 3.0)
        table[party.train.user.long(), party.train.item.long()] = party.train.rating
        parrots.append((table, torch.eye(table.shape[1])))
    caught = membership(prepared, parrots, generator())
    assert caught.trained.auc > 0.8
    assert caught.trained.advantage > 0.5
    assert caught.train_rmse == 0


def test_users_alone_in_a_bucket_are_read_off_a_federations_neighbourhoods(
    sparse: list[vf.PartyData],
) -> None:
    watched = record_federation(sparse, config(**{"exchange.mode": "exact"}))
    for _ in range(3):
        watched.round()
    party = watched.parties[0]
    x = party.neighbourhood(party.exchanged)
    drawn = CountSketch.draw(300, 60, generator())
    there = x.any(1)
    users, rows = read_off(drawn.project(x), drawn, there)
    assert torch.allclose(rows, x[users], atol=1e-7)
    assert len(users) > int(drawn.alone().sum())  # users with nothing keep nobody company
    truth = party.neighbours[users]
    one = truth.sum(1) == 1
    weights = omp(rows[one], party.atoms(party.exchanged), most=1).weights
    assert torch.equal(weights > 0, truth[one])


def test_a_smaller_share_of_fakes_is_planted_and_used(four: list[vf.PartyData]) -> None:
    parts = [split_ratings(party, best().split, 0) for party in four]
    fakes = plant(four, parts, target=1, share=0.5, rng=np.random.default_rng(0))
    found = attack_sums(four, best(), rounds=60, share=0.5, victims=50)
    assert len(fakes.users) < four[1].ratings.n_items
    assert (
        found["colluders, fakes, all exchanges"]["precision"]
        > found["colluders, fakes, all exchanges"]["guess"]["precision"]
    )

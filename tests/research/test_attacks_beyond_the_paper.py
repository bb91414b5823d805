"""Attacks the paper does not try: cases solved by hand, and their mathematics."""

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
    share_error,
    solved,
    sparse_rows,
)
from torch import Tensor

from verfedgnn.core.errors import DataError
from verfedgnn.core.key_stream import KeyStream
from verfedgnn.core.random_streams import simulated_secret
from verfedgnn.privacy.gradient_protection import quantize_ternary
from verfedgnn.privacy.projection import Projection
from verfedgnn.research.attacks import noisy_sums as noisy
from verfedgnn.research.attacks import separation
from verfedgnn.research.attacks.attack_scores import score
from verfedgnn.research.attacks.count_sketch import CountSketch, expected_share
from verfedgnn.research.attacks.many_releases import ReleaseAverage
from verfedgnn.research.attacks.projection_inverse import dense_projection, least_norm
from verfedgnn.research.attacks.round_stacking import stack_rounds, unmix, unmix_sums, users_of_items
from verfedgnn.research.attacks.sparse_recovery import equal_size, largest, nnls, omp, polish


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


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

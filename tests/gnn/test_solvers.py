"""Items solved at home and users stepped in public, against hand-solved cases, gradients and exact alternating solves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from verfedgnn.core.graph import Graph, build_graph
from verfedgnn.gnn.factor_model import (
    FIRST_NOISE,
    ITEM_PRIOR,
    Estimates,
    PublicFactors,
    UserBasis,
    as_product,
    clamp_eigenvalues,
    item_grams,
    solve_factors,
)
from verfedgnn.gnn.list_model import (
    MOST_PULL,
    MOST_UNSEEN,
    PULL,
    PublicLists,
    Strengths,
    choose_strengths,
    pair_targets,
    pair_weights,
    solve_lists,
)
from verfedgnn.gnn.rater_solver import BIAS_DAMPING, READ, PublicRaters, choose_reads, solve_raters

THIN = Strengths(0.02, 0.03)


def draw_graph(
    users: int, items: int, edges: int, seed: int, *, values: bool = False
) -> tuple[Graph, Tensor]:
    """Return a random graph and targets in the order of its edges by user."""
    rng = np.random.default_rng(seed)
    cells = np.sort(rng.choice(users * items, edges, replace=False))
    user, item = cells // items, cells % items
    read = rng.normal(size=edges) if values else None
    graph = build_graph(user, item, users=users, items=items, values=read)
    return graph, torch.from_numpy(rng.normal(size=edges).astype(np.float32))


def dense(graph: Graph, values: Tensor) -> Tensor:
    out = torch.zeros(graph.users, graph.items)
    out[graph.edge_users.long(), graph.by_user[1].long()] = values
    return out


@given(st.integers(0, 10_000), st.integers(0, 60))
@settings(max_examples=20, derandomize=True, deadline=None)
def test_grams_are_sums_of_outer_products(seed: int, edges: int) -> None:
    graph, weights = draw_graph(12, 9, edges, seed)
    users = torch.from_numpy(np.random.default_rng(seed + 1).normal(size=(12, 3)).astype(np.float32))
    for given_weights in (None, weights):
        cells = dense(graph, torch.ones(edges) if given_weights is None else given_weights)
        seen = torch.zeros(9, dtype=torch.bool)
        for items, grams in item_grams(graph, users, given_weights):
            seen[items] = True
            wanted = torch.einsum("ui,uk,ul->ikl", cells[:, items], users, users)
            torch.testing.assert_close(grams, wanted, rtol=1e-4, atol=1e-4)
        assert seen.all(), "items without ratings have grams of 0"


@given(st.integers(0, 10_000))
@settings(max_examples=20, derandomize=True, deadline=None)
def test_the_basis_diagonalises_every_users_precision(seed: int) -> None:
    rng = np.random.default_rng(seed)
    gram, prior = (torch.from_numpy(a @ a.T + 0.1 * np.eye(4)) for a in rng.normal(size=(2, 4, 4)))
    counts = torch.tensor([0.0, 1.0, 37.0], dtype=torch.double)
    basis = UserBasis.of(gram, prior)
    wanted = torch.linalg.inv(counts.view(-1, 1, 1) * gram + prior)
    torch.testing.assert_close(basis.covariance(basis.spread(counts)), wanted, rtol=1e-6, atol=1e-8)


def certain(users: Tensor, counts: Tensor) -> PublicFactors:
    """Return users whose vectors are known exactly: their covariance is (almost) 0."""
    public = PublicFactors.initial(users[:, :-1], users[:, -1], counts)
    steep = 1e12 * torch.eye(users.shape[1])
    return PublicFactors(public.users, public.velocity, counts, steep, steep)


def test_items_of_certain_users_are_ridge_regressions() -> None:
    graph, targets = draw_graph(30, 8, 120, 0)
    torch.manual_seed(0)
    public = certain(torch.randn(30, 4), graph.user_degree[:, 0])
    step = solve_factors(graph, targets, public, Estimates())
    cells, marks = dense(graph, targets), dense(graph, torch.ones(120))
    for item in range(8):
        raters = marks[:, item] > 0
        inputs = torch.cat([public.users[raters, :3], torch.ones(int(raters.sum()), 1)], 1)
        left = cells[raters, item] - public.users[raters, 3]
        prior = torch.tensor([ITEM_PRIOR] * 3 + [4.0])
        solved = torch.linalg.solve(inputs.T @ inputs + FIRST_NOISE * torch.diag(prior), inputs.T @ left)
        torch.testing.assert_close(step.items[item], solved, rtol=1e-3, atol=1e-4)


def test_the_gradient_is_that_of_the_likelihood() -> None:
    """Without uncertainty about items, the release is the gradient of the squared error over twice the noise."""
    graph, targets = draw_graph(30, 8, 200, 1)
    torch.manual_seed(0)
    public = certain(torch.randn(30, 4), graph.user_degree[:, 0])
    step = solve_factors(graph, targets, public, Estimates(prior=torch.full((4,), 1e9)))
    users = public.users.clone().requires_grad_()
    errors = targets - graph.products(*as_product(users, step.items))
    (gradient,) = torch.autograd.grad(-errors.square().sum() / (2 * step.estimates.noise), users)
    torch.testing.assert_close(step.gradient, gradient, rtol=1e-4, atol=1e-4)


def fit(graph: Graph, targets: Tensor, columns: int, *, rounds: int) -> tuple[Tensor, Tensor, float]:
    """Return users and items whose product predicts, and the estimated noise."""
    torch.manual_seed(0)
    public = PublicFactors.initial(
        torch.randn(graph.users, columns), torch.zeros(graph.users), graph.user_degree[:, 0]
    )
    estimates = Estimates()
    for _ in range(rounds):
        step = solve_factors(graph, targets, public, estimates)
        estimates = step.estimates
        public = public.step(step.gradient, step.gram)
    return *as_product(public.users, step.items), estimates.noise


def cut(graph: Graph, targets: Tensor, first: int) -> list[tuple[Graph, Tensor]]:
    """Return the graphs and targets of two parties: one has the first items, the other one the rest."""
    user, item = graph.edge_users.long(), graph.by_user[1].long()
    parts = []
    for own, start, stop in ((item < first, 0, first), (item >= first, first, graph.items)):
        rows = user[own].numpy(), item[own].numpy() - start
        parts.append((build_graph(*rows, users=graph.users, items=stop - start), targets[own]))
    return parts


def test_a_federated_round_of_factors_equals_the_pooled_round() -> None:
    """Where items are certain, so that nothing depends on what a party estimates of its own ratings."""
    graph, targets = draw_graph(40, 20, 300, 7)
    torch.manual_seed(0)
    public = certain(torch.randn(40, 4), graph.user_degree[:, 0])
    prior = torch.full((4,), 1e7)
    pooled = solve_factors(graph, targets, public, Estimates(prior=prior))
    steps = [solve_factors(*part, public, Estimates(prior=prior)) for part in cut(graph, targets, 7)]
    torch.testing.assert_close(torch.cat([step.items for step in steps]), pooled.items)
    for name in ("gradient", "gram"):
        total = torch.stack([getattr(step, name) * step.estimates.noise for step in steps]).sum(0)
        torch.testing.assert_close(
            total, getattr(pooled, name) * pooled.estimates.noise, rtol=1e-5, atol=1e-4
        )


def test_factors_converge_to_exact_alternating_solves() -> None:
    """The steps of all users at once end within 0.1 % of the loss where every user is solved exactly in each round."""
    rng = np.random.default_rng(3)
    graph, noise = draw_graph(200, 50, 4000, 3)
    left, right = (torch.from_numpy(rng.normal(size=(n, 2)).astype(np.float32)) for n in (200, 50))
    parts = cut(graph, graph.products(left, right) + 0.5 * noise, 20)
    torch.manual_seed(0)
    start = PublicFactors.initial(torch.randn(200, 4), torch.zeros(200), graph.user_degree[:, 0])
    losses = []
    for exact in (True, False):
        public = start
        homes = [Estimates() for _ in parts]
        for _ in range(80):
            steps = [solve_factors(*part, public, home) for part, home in zip(parts, homes, strict=True)]
            homes = [step.estimates for step in steps]
            gradient = steps[0].gradient + steps[1].gradient
            stepped = public.step(gradient, steps[0].gram + steps[1].gram)
            if exact:
                hessian = public.prior.expand(200, 5, 5).clone()
                for (part, _), step in zip(parts, steps, strict=True):
                    inputs = torch.cat([step.items[:, :-1], torch.ones(part.items, 1)], 1)
                    rated = dense(part, torch.ones(len(part.edge_users)))
                    hessian += torch.einsum("um,mk,ml->ukl", rated, inputs, inputs) / step.estimates.noise
                solved = torch.linalg.solve(hessian, gradient - public.users @ public.prior)
                stepped = replace(stepped, users=public.users + solved, velocity=torch.zeros(200, 5))
            public = stepped
        errors = [
            targets - part.products(*as_product(public.users, step.items))
            for (part, targets), step in zip(parts, steps, strict=True)
        ]
        losses.append(float(torch.cat(errors).square().sum()))
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


def test_noise_does_not_make_users_grow_without_bound() -> None:
    """Releases that are mostly noise end with bounded users: their differences do not weaken the prior that holds them."""
    graph, targets = draw_graph(100, 30, 1500, 5)
    torch.manual_seed(0)
    public = PublicFactors.initial(torch.randn(100, 8), torch.zeros(100), graph.user_degree[:, 0])
    home = Estimates()
    lists = PublicLists(0.1 * torch.randn(100, 8), torch.zeros(100, 8), torch.ones(100), 30, THIN)
    for _ in range(60):
        step = solve_factors(graph, targets, public, home)
        home = step.estimates
        deviation = step.gradient.square().mean(0).sqrt()
        public = public.step(step.gradient + 2 * deviation * torch.randn(100, 9), step.gram)
        solved = solve_lists(graph, torch.ones(1500), lists.users, THIN)
        blur = solved.gram.abs().mean() * torch.randn(2, 8, 8)
        lists = lists.step(solved.gradient, solved.gram + blur + blur.transpose(1, 2))
        assert float(torch.linalg.eigvalsh(public.prior)[0]) > 0.09
        assert float(public.users.abs().max()) < 1e3
        assert bool(lists.users.isfinite().all())


def test_eigenvalues_are_clamped_only_where_they_are_too_small() -> None:
    matrix = torch.tensor([[2.0, 1.0], [1.0, 2.0]])  # eigenvalues 1 and 3
    assert clamp_eigenvalues(matrix, 1.0) is matrix
    torch.testing.assert_close(clamp_eigenvalues(matrix, 2.0), torch.tensor([[2.5, 0.5], [0.5, 2.5]]))


def test_variational_strengths_keep_a_model_from_learning_noise() -> None:
    """Targets are pure noise: what is learnt explains next to none of it, at any length of the vectors."""
    graph, targets = draw_graph(200, 60, 3000, 2)
    users, items, _ = fit(graph, targets, 16, rounds=30)
    predicted = graph.products(users, items)
    assert float(predicted.var() / targets.var()) < 0.1


def test_factors_find_a_low_rank_signal() -> None:
    rng = np.random.default_rng(3)
    graph, noise = draw_graph(300, 80, 6000, 3)
    left, right = (torch.from_numpy(rng.normal(size=(n, 2)).astype(np.float32)) for n in (300, 80))
    targets = graph.products(left, right) + 0.3 * noise
    users, items, estimated = fit(graph, targets, 8, rounds=15)
    error = (users @ items.T - left @ right.T).square().mean().sqrt()
    assert float(error) < 0.3, "all cells, rated or not, of a signal with a standard deviation of 1.4"
    assert estimated == pytest.approx(0.09, rel=0.5)


def test_strengths_do_not_erase_a_signal_that_takes_rounds_to_find() -> None:
    """Nine ratings a user and four directions, a third of the variance is noise: estimated sooner, the prior of items erases them."""
    rng = np.random.default_rng(1)
    graph, noise = draw_graph(400, 60, 3600, 1)
    left, right = (torch.from_numpy(rng.normal(size=(n, 4)).astype(np.float32)) / 4**0.25 for n in (400, 60))
    targets = graph.products(left, right) + 0.7 * noise
    users, items, _ = fit(graph, targets, 8, rounds=25)
    signal = left @ right.T
    assert float((users @ items.T - signal).square().mean() / signal.square().mean()) < 0.55


def test_raters_release_the_gradient_of_what_a_read_leaves_out() -> None:
    graph, targets = draw_graph(25, 10, 120, 4, values=True)
    torch.manual_seed(0)
    tables = 0.5 * torch.randn(25, 10)
    counts = graph.user_degree[:, 0]
    read = choose_reads(torch.rand(120))
    step = solve_raters(graph, targets, PublicRaters(tables, torch.zeros_like(tables), counts), read)
    moved = tables.clone().requires_grad_()
    w, b, z, y = moved[:, :3], moved[:, 3:4], moved[:, 4:7], moved[:, 7:]
    assert graph.values is not None
    total = torch.zeros(())
    for part in read:
        values, marks = dense(graph, graph.values * part), dense(graph, part)
        h = torch.tanh((values.T @ z + marks.T @ y) * marks.sum(0).clamp(min=1).rsqrt().unsqueeze(1))
        predicted = w @ h.T + b + step.items[:, 3]
        left_out = dense(graph, 1 - part)
        total = (
            total
            - ((dense(graph, targets) - predicted * dense(graph, torch.ones(120))).square() * left_out).sum()
            / 2
        )
    (gradient,) = torch.autograd.grad(total / (len(read) * (1 - READ)), moved)
    torch.testing.assert_close(step.gradient, gradient, rtol=1e-3, atol=1e-4)


def test_an_items_bias_is_its_mean_error() -> None:
    graph, targets = draw_graph(25, 10, 120, 5, values=True)
    tables = torch.zeros(25, 10)
    step = solve_raters(
        graph,
        targets,
        PublicRaters(tables, tables, graph.user_degree[:, 0]),
        choose_reads(torch.rand(120)),
    )
    cells, marks = dense(graph, targets), dense(graph, torch.ones(120))
    torch.testing.assert_close(step.items[:, 3], cells.sum(0) / (marks.sum(0) + BIAS_DAMPING))


def test_every_rating_is_read_about_equally_often() -> None:
    read = choose_reads(torch.linspace(0, 0.999, 1000)).sum(0)
    assert set(read.tolist()) == {2.0, 3.0}


def list_loss(users: Tensor, items: Tensor, weights: Tensor) -> float:
    """Return L of `list_model` for dense weights c (N, M)."""
    scores = users @ items.T
    alpha, strength = THIN.unseen, THIN.pull
    loss = (weights * (pair_targets(weights) - scores).square()).sum() + alpha * scores.square().sum()
    for vectors, mass, others in ((users, weights.sum(1), len(items)), (items, weights.sum(0), len(users))):
        loss = loss + (strength * (mass + alpha * others) * vectors.square().sum(1)).sum()
    return float(loss)


def test_lists_converge_to_exact_alternating_least_squares() -> None:
    """With three parties, the summed steps end within 0.1 % of the loss of exact solves of both sides."""
    rng = np.random.default_rng(6)
    tastes = rng.integers(0, 4, 120)
    liked = rng.random((120, 60)) < np.where(tastes[:, None] == np.arange(60) % 4, 0.5, 0.05)
    rating = torch.from_numpy(np.where(rng.random((120, 60)) < 0.7, 5.0, 2.0))
    cells = torch.where(torch.from_numpy(liked), pair_weights(rating, 4.0), 0.0).float()
    start = 0.1 * torch.from_numpy(rng.normal(size=(120, 5)).astype(np.float32))
    users, eye = start, torch.eye(5)
    alpha, strength = THIN.unseen, THIN.pull

    def solve(fixed: Tensor, weights: Tensor) -> Tensor:
        grams = torch.einsum("um,mk,ml->ukl", weights, fixed, fixed) + alpha * fixed.T @ fixed
        return torch.linalg.solve(
            grams + (strength * (weights.sum(1) + alpha * len(fixed))).view(-1, 1, 1) * eye,
            (weights * pair_targets(weights)) @ fixed,
        )

    for _ in range(60):
        items = solve(users, cells.T)
        users = solve(items, cells)
    exact = list_loss(users, solve(users, cells.T), cells)

    parts = []
    for own in (slice(0, 10), slice(10, 40), slice(40, 60)):
        user, item = cells[:, own].nonzero(as_tuple=True)
        graph = build_graph(user.numpy(), item.numpy(), users=120, items=own.stop - own.start)
        parts.append((graph, cells[:, own][user, item]))
    public = PublicLists(start, torch.zeros_like(start), cells.sum(1), 60, THIN)
    for _ in range(60):
        steps = [solve_lists(graph, weights, public.users, THIN) for graph, weights in parts]
        items = torch.cat([step.items for step in steps])
        loss = list_loss(public.users, items, cells)
        total = torch.stack([step.gradient for step in steps]).sum(0)
        public = public.step(total, torch.stack([step.gram for step in steps]).sum(0))
    assert loss == pytest.approx(exact, rel=1e-3)


def test_a_federated_round_of_lists_and_raters_equals_the_pooled_round() -> None:
    graph, targets = draw_graph(40, 20, 300, 7, values=True)
    torch.manual_seed(0)
    item = graph.by_user[1].long()
    weights = torch.rand(300)
    users, tables = torch.randn(40, 4), 0.5 * torch.randn(40, 10)
    drawn = torch.rand(300)
    assert graph.values is not None
    public = PublicRaters(tables, torch.zeros_like(tables), graph.user_degree[:, 0])
    whole = (
        solve_lists(graph, weights, users, THIN),
        solve_raters(graph, targets, public, choose_reads(drawn)),
    )
    lists, raters = [], []
    for own in (item < 7, item >= 7):
        user = graph.edge_users.long()[own].numpy()
        here = item[own].numpy() - (0 if bool((item[own] < 7).all()) else 7)
        part = build_graph(user, here, users=40, items=int(here.max()) + 1, values=graph.values[own].numpy())
        lists.append(solve_lists(part, weights[own], users, THIN))
        raters.append(solve_raters(part, targets[own], public, choose_reads(drawn[own])))
    for parts, pooled in ((lists, whole[0]), (raters, whole[1])):
        for name in ("gradient", "gram"):
            total = torch.stack([getattr(part, name) for part in parts]).sum(0)
            torch.testing.assert_close(total, getattr(pooled, name), rtol=1e-5, atol=1e-4)


def test_strengths_of_lists_by_hand() -> None:
    sparse = choose_strengths(users=1_000, items=10_000, ratings=10_000)
    assert sparse.unseen == pytest.approx(0.01)  # unseen pairs together weigh ten times the rated ones
    assert sparse.pull == MOST_PULL
    dense = choose_strengths(users=200, items=200, ratings=20_000)
    assert dense.unseen == MOST_UNSEEN
    assert dense.pull == pytest.approx(PULL / (100 + 50))

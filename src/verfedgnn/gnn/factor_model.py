r"""Biased matrix factorisation in few rounds: items are solved exactly at home, users take one preconditioned step in public.

.. math::
    \hat r_{uv} = e_u \cdot e_v + b_u + b_v, \qquad a_u = (e_u, b_u) \sim N(0, \Lambda^{-1}), \qquad
    (e_v, b_v) \sim N(0, \mathrm{diag}(\lambda_p)^{-1}), \qquad r_{uv} \sim N(\hat r_{uv}, \sigma_p^2)

Strengths are not chosen: they follow from the data by variational Bayes (docs/model.md). A party knows its items' posterior exactly,
and estimates its own noise :math:`\sigma_p^2` and prior :math:`\lambda_p` at home. A user's posterior covariance follows from public
numbers: the number of ratings :math:`n_u`, and the curvature of an average rating,

.. math::
    C_u = (n_u G + \Lambda)^{-1}, \qquad
    G = \tfrac{1}{n} \sum_p \sigma_p^{-2} \sum_v n_v \, E[x_v x_v^\top], \qquad x_v = (e_v, 1),

where G is one small matrix, summed over the parties. :math:`\Lambda^{-1}` is the users' second moment, and the eigenvalues of
:math:`\Lambda` stay above a small bound, because noise on releases would weaken it without end. The public step of a round is
:math:`C_u g_u` with momentum, where :math:`g_u` sums the parties' gradients and the prior's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from verfedgnn.core.errors import DivergedError
from verfedgnn.core.graph import Graph

STEP = 0.7
"""Share of the preconditioned step that is taken. The exact one overshoots, since all users move at once."""
MOMENTUM = 0.6
"""Share of the last round's step that is repeated."""
ITEM_PRIOR = 40.0
"""Prior precision of an item's vector before the party has estimated its own."""
BIAS_PRIOR = 4.0
"""Prior precision of biases before they are estimated."""
FIRST_NOISE = 0.8
"""Variance of a rating around its prediction before it is estimated, in units of the party's scale."""
LEAST_PRIOR = 0.1
"""Smallest eigenvalue of Lambda: noise on releases would otherwise pass for users who differ more and more."""
ROUNDS_BEFORE_PRIOR = 12
"""Rounds in which items keep the first prior. Users who have not found their direction yet would teach a party that its items do not differ."""


@dataclass(frozen=True)
class UserBasis:
    r"""The basis in which all users' covariances are diagonal: :math:`C_u = S \,\mathrm{diag}(1 / (1 + n_u d)) S^\top`."""

    vectors: Tensor
    """S (K, K)."""
    curvature: Tensor
    """d (K,)."""

    @classmethod
    def of(cls, gram: Tensor, prior: Tensor) -> UserBasis:
        """Diagonalise G and Lambda (K, K) together."""
        try:
            root = torch.linalg.inv(torch.linalg.cholesky(prior.double()))
        except RuntimeError:
            cause = "training diverged: users' vectors grew without bound"
            raise DivergedError(f"{cause}; check the ratings for extreme values") from None
        values, vectors = torch.linalg.eigh(root @ gram.double() @ root.T)
        return cls((root.T @ vectors).to(gram), values.clamp(min=0).to(gram))

    def spread(self, counts: Tensor) -> Tensor:
        """Return the diagonals of C_u in this basis (N, K), for users with `counts` ratings (N,)."""
        return 1 / (1 + counts.unsqueeze(1) * self.curvature)

    def covariance(self, diagonal: Tensor) -> Tensor:
        """Return S diag(x) S^T (..., K, K) for diagonals x (..., K)."""
        return (self.vectors * diagonal.unsqueeze(-2)) @ self.vectors.T

    def precondition(self, gradient: Tensor, counts: Tensor) -> Tensor:
        """Return C_u g_u for gradients g_u (N, K) of users with `counts` ratings (N,)."""
        return gradient @ self.vectors * self.spread(counts) @ self.vectors.T


@dataclass(frozen=True)
class PublicFactors:
    """The public side: every user's vector and bias, and what is known about them."""

    users: Tensor
    """a_u = (e_u, b_u) (N, K)."""
    velocity: Tensor
    """The last step (N, K)."""
    counts: Tensor
    """n_u, the number of training ratings of each user at all parties (N,)."""
    gram: Tensor
    """G (K, K)."""
    prior: Tensor
    """Lambda (K, K)."""

    @classmethod
    def initial(cls, vectors: Tensor, biases: Tensor, counts: Tensor) -> PublicFactors:
        """Start from random vectors e_u (N, D) and the means b_u (N,)."""
        users = torch.cat([vectors, biases.unsqueeze(1)], 1)
        columns = users.shape[1]
        prior = torch.eye(columns).to(users)
        prior[-1, -1] = BIAS_PRIOR
        gram = 0.1 / (columns - 1) * torch.eye(columns).to(users)
        return cls(users, torch.zeros_like(users), counts, gram, prior)

    def step(self, gradient: Tensor, gram: Tensor) -> PublicFactors:
        """Take the public step with the parties' summed gradients (N, K) and curvatures (K, K), and estimate Lambda again."""
        gram = gram / self.counts.sum().clamp(min=1)
        basis = UserBasis.of(gram, self.prior)
        downhill = basis.precondition(gradient - self.users @ self.prior, self.counts)
        velocity = MOMENTUM * self.velocity + STEP * downhill
        users = self.users + velocity
        rated = self.counts > 0
        spread = basis.spread(self.counts)[rated].mean(0)
        moments = users[rated].T @ users[rated] / rated.sum() + basis.covariance(spread)
        prior = torch.linalg.inv(moments.double())
        prior = clamp_eigenvalues((prior + prior.T) / 2, LEAST_PRIOR).to(users)
        return PublicFactors(users, velocity, self.counts, gram, prior)


def clamp_eigenvalues(matrix: Tensor, least: float) -> Tensor:
    """Return a symmetric matrix (K, K) whose eigenvalues are at least `least`: the same matrix, but for rounding, if they are."""
    values, vectors = torch.linalg.eigh(matrix)
    if values[0] >= least - 1e-6 * values[-1]:
        return matrix
    clamped: Tensor = vectors * values.clamp(min=least) @ vectors.T
    return clamped


@dataclass(frozen=True)
class Estimates:
    """What a party estimates at home besides its items."""

    noise: float = FIRST_NOISE
    """sigma_p^2."""
    prior: Tensor | None = None
    """lambda_p (K,); None before it is estimated."""
    rounds: int = 0
    """Number of times that the items were solved."""


@dataclass(frozen=True)
class HomeStep:
    """One round of a model at home: the solved items, and what the public step needs."""

    items: Tensor
    """The vectors of the party's items, with their biases (M_p, K)."""
    gradient: Tensor
    """The direction in which the party's loss falls, for each user (N, C)."""
    gram: Tensor
    """The party's summed curvature (..., K, K)."""
    estimates: Estimates = Estimates()


def solve_factors(graph: Graph, targets: Tensor, public: PublicFactors, estimates: Estimates) -> HomeStep:
    """Solve a party's items given the users, then return the gradient and curvature of the users given the items.

    `targets` are the ratings in units of the party's scale, in the order of the graph's edges by user (E,). The gradient is that of the
    log likelihood of a_u.
    """
    columns = public.users.shape[1]
    last = columns - 1
    biases = public.users[:, last]
    ones = torch.ones_like(biases).unsqueeze(1)
    inputs = torch.cat([public.users[:, :last], ones], 1)
    basis = UserBasis.of(public.gram, public.prior)
    uncertain = graph.sum_users(basis.spread(public.counts))
    edge_users = graph.edge_users.long()
    moments = graph.sum_users(inputs, targets - biases[edge_users])
    degree = graph.by_item[0].diff().to(inputs)
    prior = estimates.prior
    if prior is None:
        prior = torch.full((columns,), ITEM_PRIOR).to(inputs)
        prior[last] = BIAS_PRIOR
    items = torch.zeros((graph.items, columns)).to(inputs)
    curvature = inputs.new_zeros((columns, columns))
    shrinkage = inputs.new_zeros((columns, columns))
    squares = inputs.new_zeros(columns)
    variance = 0.0
    for group, gram in item_grams(graph, inputs):
        spread = basis.covariance(uncertain[group])
        precision = gram.clone()
        precision[:, :last, :last] += spread[:, :last, :last]
        precision = precision / estimates.noise + torch.diag(prior)
        right = moments[group].clone()
        right[:, :last] -= spread[:, :last, last]
        covariance = torch.cholesky_inverse(torch.linalg.cholesky(precision))
        solved = (covariance @ (right / estimates.noise).unsqueeze(2)).squeeze(2)
        items[group] = solved
        regressors = torch.cat([solved[:, :last], torch.ones_like(solved[:, :1])], 1)
        second = regressors.unsqueeze(2) * regressors.unsqueeze(1)
        second[:, :last, :last] += covariance[:, :last, :last]
        count = degree[group]
        variance += float(add_up(spread * second) + add_up(gram * covariance))
        squares += ((solved.square() + covariance.diagonal(dim1=1, dim2=2)) * (count > 0).unsqueeze(1)).sum(0)
        curvature += (second * count.view(-1, 1, 1)).sum(0)
        shrinkage[:last] += (covariance[:, :last] * count.view(-1, 1, 1)).sum(0)
    errors = targets - graph.products(*as_product(public.users, items))
    ratings = max(1, len(targets))
    noise = max(float(add_up(errors.square())) + variance, 1e-3 * ratings) / ratings
    gradient = graph.sum_items(torch.cat([items[:, :last], torch.ones_like(items[:, :1])], 1), errors)
    pull = (public.users[:, :last] @ shrinkage[:last, :last] + shrinkage[:last, last]) / ratings
    gradient[:, :last] -= graph.user_degree * pull
    if estimates.rounds + 1 > ROUNDS_BEFORE_PRIOR:
        prior = (degree > 0).sum() / squares.clamp(min=1e-9)
    return HomeStep(items, gradient / noise, curvature / noise, Estimates(noise, prior, estimates.rounds + 1))


def add_up(values: Tensor) -> Tensor:
    """Return the sum of all values (), the same for any number of threads: torch shares longer sums out to them."""
    return torch.stack([part.sum() for part in torch.split(values.flatten(), 2**15 - 1)]).sum()


def as_product(users: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
    """Return (e_u, b_u, 1) and (e_v, 1, b_v), whose product is the prediction e_u . e_v + b_u + b_v."""
    last = items[:, -1:]
    users = torch.cat([users, torch.ones_like(users[:, :1])], 1)
    return users, torch.cat([items[:, :-1], torch.ones_like(last), last], 1)


MOST_VALUES = 1 << 22
"""Most gathered values of user vectors in memory at a time."""


def item_grams(graph: Graph, users: Tensor, weights: Tensor | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    r"""Yield groups of items (n,) and :math:`\sum_{u \in N(v)} w_{uv} x_u x_u^\top` for each of them (n, K, K).

    `users` holds x_u (N, K), `weights` w_uv in the order of the edges by user (E,), by default 1. Items with a similar number of
    raters form a group, so that little of it is padding.
    """
    pointers, raters = (part.long() for part in graph.by_item)
    degrees = pointers.diff()
    order = torch.argsort(degrees, stable=True)
    by_item = None if weights is None else weights[graph.order]
    padded = torch.cat([users, users.new_zeros((1, users.shape[1]))])
    ascending = degrees[order]
    start = 0
    while start < len(order):  # the largest degree of a group is at most twice the smallest, plus four
        within = int(torch.searchsorted(ascending, 2 * ascending[start] + 4, right=True))
        width = users.shape[1]
        stop = min(
            within, start + max(1, MOST_VALUES // (width * (max(1, int(ascending[within - 1])) + width)))
        )
        items, start = order[start:stop], stop
        longest = int(degrees[items[-1]])
        place = torch.arange(longest, device=users.device)
        inside = place < degrees[items].unsqueeze(1)
        edges = torch.where(inside, pointers[items].unsqueeze(1) + place, 0)
        rows = torch.where(inside, raters[edges] if len(raters) else edges, len(users))
        gathered = padded[rows]
        weighted = gathered if by_item is None else gathered * by_item[edges].unsqueeze(2)
        yield items, weighted.transpose(1, 2) @ gathered

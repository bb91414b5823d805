r"""Lists in few rounds: weighted least squares over all pairs (iALS), with items solved at home and users stepped in public.

.. math::
    L = \sum_{(u, v)} c_{uv} (t_{uv} - x_u \cdot x_v)^2 + \alpha \sum_u \sum_v (x_u \cdot x_v)^2
        + \lambda \sum_u (c_u + \alpha M) |x_u|^2 + \lambda \sum_v (c_v + \alpha N) |x_v|^2

A liked pair has the weight :math:`c_{uv} = 1` and the target :math:`t_{uv} = 1`, another rated one 1/2 and 0.7; :math:`c_u` and :math:`c_v` are sums of these weights. As for ratings
(`factor_model.py`), the Hessian of a user is almost known without sending it, :math:`c_u G + \alpha \sum_v x_v x_v^\top` and the
regulariser, where G is the mean of :math:`x_v x_v^\top` over the weighted pairs of all parties.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from verfedgnn.core.graph import Graph
from verfedgnn.gnn.factor_model import HomeStep, UserBasis, clamp_eigenvalues, item_grams


@dataclass(frozen=True)
class Strengths:
    """The two strengths of the loss."""

    unseen: float
    """alpha, the weight of a pair without a rating."""
    pull: float
    """lambda."""


UNSEEN = 10.0
"""Weight of all pairs without a rating together, in ratings."""
MOST_UNSEEN = 0.25
"""Largest weight of one pair without a rating."""
PULL = 5.0
"""lambda times the geometric mean of what a typical user and a typical item weigh."""
MOST_PULL = 0.05
"""Largest lambda."""


def choose_strengths(users: int, items: int, ratings: int) -> Strengths:
    r"""Return the strengths for so many users, items and training ratings of all parties.

    .. math::
        \alpha = \min(1/4,\, 10 R / (N M)), \qquad
        \lambda = \min(1/20,\, 5 / \sqrt{(R/N + \alpha M)(R/M + \alpha N)})
    """
    unseen = min(MOST_UNSEEN, UNSEEN * ratings / (users * items))
    weight = (ratings / users + unseen * items) * (ratings / items + unseen * users)
    return Strengths(unseen, min(MOST_PULL, PULL / max(1e-9, weight) ** 0.5))


STEP = 0.7
"""Share of the preconditioned step that is taken."""
MOMENTUM = 0.5
"""Share of the last round's step that is repeated."""
START = 0.1
"""Norm of a user's vector before the first round."""
RATED_TARGET = 0.7
"""Target of a pair that is rated and not liked. 0.8 and 0.6 were better than 1 and 0.4 on ML-100K and Amazon."""


def pair_targets(weights: Tensor) -> Tensor:
    """Return t_uv of rated pairs, given their weights."""
    return RATED_TARGET + (1 - RATED_TARGET) * (2 * weights - 1)


def pair_weights(rating: Tensor, liked_from: float) -> Tensor:
    """Return c_uv of rated pairs: 1 for a liked one, else 1/2."""
    return torch.where(rating >= liked_from, 1.0, 0.5)


@dataclass(frozen=True)
class PublicLists:
    """The public side: every user's vector, and the sum of its pairs' weights."""

    users: Tensor
    """x_u (N, D)."""
    velocity: Tensor
    """The last step (N, D)."""
    weights: Tensor
    """c_u, summed over all parties (N,)."""
    items: int
    """M, the number of items of all parties."""
    strengths: Strengths

    def step(self, gradient: Tensor, grams: Tensor) -> PublicLists:
        """Take the public step with the parties' summed gradients (N, D) and their two sums of products (2, D, D)."""
        columns = self.users.shape[1]
        seen, every = (clamp_eigenvalues(gram, 0.0) for gram in grams)  # noise can make them indefinite
        alpha, pull = self.strengths.unseen, self.strengths.pull
        unseen = alpha * (every + pull * self.items * torch.eye(columns).to(every))
        mean = seen / self.weights.sum().clamp(min=1e-6) + pull * torch.eye(columns).to(seen)
        basis = UserBasis.of(mean, unseen)
        strength = pull * (self.weights + alpha * self.items)
        downhill = basis.precondition(gradient - strength.unsqueeze(1) * self.users, self.weights)
        velocity = MOMENTUM * self.velocity + STEP * downhill
        return replace(self, users=self.users + velocity, velocity=velocity)


def solve_lists(graph: Graph, weights: Tensor, users: Tensor, strengths: Strengths) -> HomeStep:
    """Solve a party's items x_v given x_u (N, D), then return the users' gradient given the items.

    `weights` are c_uv in the order of the graph's edges by user (E,). The gradient is half the negative one of L, without the
    regulariser. The curvatures are sums of x_v x_v^T over weighted pairs, and over all items (2, D, D).
    """
    columns = users.shape[1]
    alpha, pull = strengths.unseen, strengths.pull
    everybody = alpha * users.T @ users
    by_item = graph.sum_users(torch.ones_like(users[:, :1]), weights)
    strength = pull * (by_item + alpha * graph.users)
    targets = pair_targets(weights)
    right = graph.sum_users(users, weights * targets)
    items = torch.zeros((graph.items, columns)).to(users)
    for group, gram in item_grams(graph, users, weights):
        matrix = gram + everybody + torch.diag_embed(strength[group].expand(-1, columns))
        root = torch.linalg.cholesky(matrix)
        items[group] = torch.cholesky_solve(right[group].unsqueeze(2), root).squeeze(2)
    every = items.T @ items
    missing = weights * (targets - graph.products(users, items))
    gradient = graph.sum_items(items, missing) - alpha * users @ every
    return HomeStep(items, gradient, torch.stack([(items * by_item).T @ items, every]))

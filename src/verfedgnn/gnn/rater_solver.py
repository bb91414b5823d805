r"""The second model in few rounds: an item's vector is computed from its raters, so it is exact at home by construction.

.. math::
    h_v = \tanh\left( \tfrac{1}{\sqrt{N_v}} \sum_{u \in N(v)} (f_{uv} z_u + y_u) \right), \qquad
    \hat r_{uv} = w_u \cdot h_v + b_u + b_v

:math:`f_{uv}` is half the rating less the item's mean. Everything with a row per user is public; only :math:`b_v` is the party's own.
In each round a party reads a share of its ratings and predicts the others, several times, and releases the mean gradient: a vector
that has read a rating would predict it from itself.

The public step preconditions w and b with :math:`n_u G_h + \lambda_w`, where :math:`G_h` is the mean of :math:`(h_v, 1)(h_v, 1)^\top`
over ratings, and z and y with :math:`n_u G_w + \lambda_z`, where :math:`G_w` is public. An item has many raters, so their steps add
up: z and y take small ones, and the part that all users have in common is damped further.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from verfedgnn.core.graph import Graph
from verfedgnn.gnn.factor_model import HomeStep, UserBasis

STRENGTH_USERS = 40.0
"""lambda_w, the strength that pulls w_u towards 0."""
STRENGTH_BIAS = 3.0
"""Strength that pulls b_u towards 0."""
STRENGTH_READ = 12.0
"""lambda_z, the strength that pulls z_u and y_u towards 0."""
STEP_USERS = 0.1
"""Share of the preconditioned step of w and b that is taken."""
STEP_READ = 0.06
"""Share of the preconditioned step of z and y that is taken."""
COMMON = 0.05
"""Share of the mean step of z and y over all users that is taken."""
MOMENTUM = 0.8
"""Share of the last round's step that is repeated."""
READ = 0.7
"""Share of its ratings that a party reads at a time."""
READS = 4
"""Times that a party reads in a round."""
BIAS_DAMPING = 10.0
"""Number of ratings without error that an item's bias counts in addition to its own."""


@dataclass(frozen=True)
class PublicRaters:
    """The public side: what predicts (w_u, b_u), and what is read of a user's rating (z_u) and of its presence (y_u)."""

    tables: Tensor
    """(w_u, b_u, z_u, y_u) (N, 3H + 1)."""
    velocity: Tensor
    """The last step (N, 3H + 1)."""
    counts: Tensor
    """n_u, the number of training ratings of each user at all parties (N,)."""

    def split(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return (w_u, b_u) (N, H + 1), z_u (N, H) and y_u (N, H)."""
        hidden = (self.tables.shape[1] - 1) // 3
        predict, values, marks = torch.split(self.tables, [hidden + 1, hidden, hidden], 1)
        return predict, values, marks

    def step(self, gradient: Tensor, gram: Tensor, deviation: float) -> PublicRaters:
        """Take the public step with the parties' summed gradients (N, 3H + 1) and sums of (h_v, 1)(h_v, 1)^T over ratings.

        `deviation` is the mean of f_uv^2 over all ratings.
        """
        w = self.split()[0][:, :-1]
        hidden = w.shape[1]
        pulls = torch.full((3 * hidden + 1,), STRENGTH_READ).to(gradient)
        pulls[:hidden] = STRENGTH_USERS
        pulls[hidden] = STRENGTH_BIAS
        predict, values, marks = torch.split(gradient - pulls * self.tables, [hidden + 1, hidden, hidden], 1)
        of_users = UserBasis.of(gram / self.counts.sum().clamp(min=1), torch.diag(pulls[: hidden + 1]))
        of_read = UserBasis.of(READ * w.T @ w / len(w), torch.diag(pulls[hidden + 1 : 2 * hidden + 1]))
        share = self.counts / self.counts.sum().clamp(min=1)
        steps = [STEP_USERS * of_users.precondition(predict, self.counts)]
        for down, counts in ((values, self.counts * deviation), (marks, self.counts)):
            step = of_read.precondition(down, counts)
            steps.append(STEP_READ * (step - (1 - COMMON) * (share @ step)))
        velocity = MOMENTUM * self.velocity + torch.cat(steps, 1)
        return PublicRaters(self.tables + velocity, velocity, self.counts)


def choose_reads(drawn: Tensor) -> Tensor:
    """Return which ratings each read includes (READS, E), from a uniform number for each rating (E,).

    A read takes the ratings whose number is below `READ`. Before the next read, all numbers move on by 1/READS, and start again at 0
    beyond 1. So every rating is read about equally often, and the mean over the reads has less noise than over independent ones.
    """
    moved = [(drawn + read / READS) % 1 for read in range(READS)]
    return (torch.stack(moved) < READ).to(drawn)


def read_items(graph: Graph, public: PublicRaters, read: Tensor | None = None) -> Tensor:
    """Return h_v (M_p, H); `read` holds 1 for the ratings that are read, in the order of the edges by user (E,), by default all."""
    assert graph.values is not None, "the graph of this model has the values of its edges"
    _, values, marks = public.split()
    counted = graph.sum_users(torch.ones_like(values[:, :1]), read).clamp(min=1)
    weighted = graph.values if read is None else graph.values * read
    return torch.tanh((graph.sum_users(values, weighted) + graph.sum_users(marks, read)) * counted.rsqrt())


def solve_raters(graph: Graph, targets: Tensor, public: PublicRaters, reads: Tensor) -> HomeStep:
    """Compute a party's items, and the mean gradient over `reads` (reads, E) of the ratings that each read leaves out.

    The items (h_v, b_v) follow from all training ratings. The gradient is that of half the squared error, negative (N, 3H + 1), and the
    curvature the sum of (h_v, 1)(h_v, 1)^T over ratings (H + 1, H + 1).
    """
    assert graph.values is not None, "the graph of this model has the values of its edges"
    predict, _, _ = public.split()
    degree = graph.by_item[0].diff().to(targets).unsqueeze(1)
    vectors = read_items(graph, public)
    ones, constant = torch.ones_like(vectors[:, :1]), torch.ones_like(predict[:, :1])
    regressors = torch.cat([vectors, ones], 1)
    left = targets - graph.products(predict, regressors)
    bias = graph.sum_users(constant, left) / (degree + BIAS_DAMPING)
    total = torch.zeros_like(public.tables)
    for read in reads:
        counted = graph.sum_users(constant, read).clamp(min=1)
        seen = torch.cat([read_items(graph, public, read), ones], 1)
        errors = targets - graph.products(torch.cat([predict, constant], 1), torch.cat([seen, bias], 1))
        errors = errors * (1 - read)
        back = graph.sum_users(predict[:, :-1], errors) * (1 - seen[:, :-1].square()) * counted.rsqrt()
        parts = [graph.sum_items(seen, errors), graph.sum_items(back, graph.values * read)]
        total += torch.cat([*parts, graph.sum_items(back, read)], 1)
    gradient = total / (len(reads) * (1 - READ))
    return HomeStep(torch.cat([vectors, bias], 1), gradient, (regressors * degree).T @ regressors)

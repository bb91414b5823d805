r"""Sparse recovery: find the few items that add up to a user's row, given what each item contributes.

.. math::
    x_u = f(|S|) \sum_{v \in S} a_v \quad \Rightarrow \quad \hat w = \arg\min_{w \ge 0} | x_u - A^T w |_2

Who: anyone who sees rows of one party or of a sum of parties: the coordinator without masks, a party (the
others' sum), colluding parties (one other's matrix). Needs: the atoms a_v; a user with only item v has a_v as
its row. Attackers get them from fake accounts that rate one item each (`adversaries`), from an insider, or
from a leaked model; here they are given, the most that can be known. Tries to learn: which items a user has.

With D columns, convex methods can tell apart about D/2 items at best. Exchanging single items goes further,
because it also uses that all weights are equal.

Shapes: V victims, M items, D columns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

VALUES = 1 << 22
"""Number of exchanges compared at a time."""
STEPS = 40
"""Largest number of exchanges for a row. Few items need few, and for many items no number suffices."""
EXACT = 1e-5
"""Residual, as a share of the row, that counts as 0."""


@dataclass(frozen=True)
class Recovered:
    """The items that add up to each row."""

    weights: Tensor
    """Non-negative weights of the items (V, M), float64, most of them 0."""
    residual: Tensor
    """l2 norm of the unexplained part of each row (V,)."""


def nnls(x: Tensor, atoms: Tensor) -> Recovered:
    r"""Solve min |x - A^T w| over w >= 0 for rows x (V, D) and atoms A (M, D).

    The active-set method of Lawson and Hanson (1974), all rows at once: the item with the steepest slope
    joins the set, the set is solved for; where that would make a weight negative the step stops at 0 and the
    item leaves. It ends where no slope is positive, which is the condition of an optimum. At most D weights
    are not 0.
    """
    x = x.double()
    atoms = atoms.double()
    problem = _Normal(atoms @ atoms.T, x @ atoms.T)
    w = torch.zeros_like(problem.target)
    members = torch.zeros_like(w, dtype=torch.bool)
    small = 1e-9 * x.norm(dim=1) * atoms.norm(dim=1).max().clamp(min=1e-30)
    for _ in range(3 * min(x.shape[1], len(atoms))):
        slope = (problem.target - w @ problem.gram).masked_fill(members, -torch.inf)
        steepest, item = slope.max(1)
        rows = torch.nonzero(steepest > small).squeeze(1)
        if not len(rows):
            break
        members[rows, item[rows]] = True
        while len(rows):
            z = problem.solve(members, rows)
            now = w[rows]
            inside = members[rows]
            reach = torch.where(inside & (z <= 0), now / (now - z).clamp(min=1e-300), torch.inf)
            step = reach.amin(1, keepdim=True)
            stopped = step.squeeze(1) < torch.inf
            w[rows] = torch.where(stopped.unsqueeze(1), now + step.clamp(max=1) * (z - now), z)
            members[rows] = inside & ~(stopped.unsqueeze(1) & (reach <= step)) & (w[rows] > 0)
            w[rows] *= members[rows]
            rows = rows[stopped]
    return Recovered(w, (x - w @ atoms).norm(dim=1))


def omp(
    x: Tensor, atoms: Tensor, *, noise: float = 0.0, left: float = EXACT, most: int | None = None
) -> Recovered:
    """Run orthogonal matching pursuit: the item best aligned with the residual joins, then all weights are
    solved for again.

    A row (V, D) is done when the residual is at most a share `left` of it plus noise with standard deviation
    `noise` per column, or with `most` items (D by default). Where atoms (M, D) are orthogonal it finds the
    items exactly.
    """
    x = x.double()
    atoms = atoms.double()
    problem = _Normal(atoms @ atoms.T, x @ atoms.T)
    length = atoms.norm(dim=1).clamp(min=1e-30)
    w = torch.zeros_like(problem.target)
    members = torch.zeros_like(w, dtype=torch.bool)
    enough = left * x.norm(dim=1) + noise * math.sqrt(x.shape[1])
    rows = torch.nonzero(x.norm(dim=1) > enough).squeeze(1)
    for _ in range(min(most or x.shape[1], x.shape[1], len(atoms))):
        along = (problem.target[rows] - w[rows] @ problem.gram) / length
        nearest, item = along.masked_fill(members[rows], -torch.inf).max(1)
        rows = rows[nearest > 0]
        item = item[nearest > 0]
        if not len(rows):
            break
        members[rows, item] = True
        w[rows] = problem.solve(members, rows)
        rows = rows[(x[rows] - w[rows] @ atoms).norm(dim=1) > enough[rows]]
    w = w.clamp(min=0)
    return Recovered(w, (x - w @ atoms).norm(dim=1))


@dataclass(frozen=True)
class _Normal:
    """Least squares by its normal equations."""

    gram: Tensor
    """A A^T (M, M)."""
    target: Tensor
    """x A^T (V, M)."""

    def solve(self, members: Tensor, rows: Tensor) -> Tensor:
        """Return weights (R, M) of some rows (R,) that are 0 outside their `members` (V, M)."""
        inside = members[rows]
        most = max(1, int(inside.sum(1).max()))
        here, place = inside.to(torch.int8).topk(most, dim=1)  # members first
        gram = self.gram[place.unsqueeze(2), place.unsqueeze(1)] * (here.unsqueeze(2) * here.unsqueeze(1))
        size = gram.diagonal(dim1=1, dim2=2).amax(1).clamp(min=1e-30).view(-1, 1, 1)
        pad = torch.diag_embed(1.0 - here.double()) * size + 1e-13 * size * torch.eye(
            most, dtype=gram.dtype, device=gram.device
        )
        found = torch.linalg.solve(
            gram + pad, (self.target[rows].gather(1, place) * here).unsqueeze(2)
        ).squeeze(2)
        return torch.zeros_like(inside, dtype=gram.dtype).scatter(1, place, found * here)


def equal_size(weights: Tensor) -> Tensor:
    r"""Return the number of items in each row (V,), from weights (V, M) that should be one number on these
    items and 0 elsewhere.

    .. math::
        \hat c = \arg\min_c \min_\alpha | w - \alpha 1_{\text{largest } c} |^2
                = \arg\max_c \frac{1}{\sqrt c} \sum_{i \le c} w_{(i)}
    """
    above = weights.clamp(min=0).sort(dim=1, descending=True).values.cumsum(1)
    return (above * torch.arange(1, weights.shape[1] + 1, device=weights.device).rsqrt()).argmax(1) + 1


def largest(weights: Tensor, sizes: Tensor) -> Tensor:
    """Return claims (V, M): for each victim its `sizes` (V,) largest weights, without zeros."""
    order = torch.argsort(weights, dim=1, descending=True, stable=True)
    rank = torch.empty_like(order).scatter_(
        1, order, torch.arange(weights.shape[1], device=order.device).expand_as(order)
    )
    return (rank < sizes.unsqueeze(1)) & (weights > 0)


def polish(x: Tensor, atoms: Tensor, claims: Tensor, *, noise: float = 0.0) -> Recovered:
    r"""Exchange, add or drop single items as long as that brings the sum nearer to the row.

    .. math::
        \min_S | x - \tfrac{1}{\sqrt{|S|}} \sum_{v \in S} a_v |_2^2 + 2 \sigma^2 |S| \log M
        \quad \text{by steps to the best neighbour of } S

    For GCN, whose f(c) is 1/sqrt(c). From claims (V, M); weights are 1/sqrt(|S|) on the items it ends with, a
    local optimum. sigma is the `noise` in a column: an item must explain more than the best of M would
    explain of it.
    """
    x = x.double()
    atoms = atoms.double()
    members = claims.clone()
    price = 2 * noise**2 * math.log(len(atoms) + 1)
    rows = torch.nonzero(members.any(1)).squeeze(1)
    for _ in range(STEPS):
        if not len(rows):
            break
        rows = torch.cat(
            [
                _step(x, atoms, members, some, price)
                for some in torch.split(rows, max(1, VALUES // _pairs(members[rows])))
            ]
        )
    w = members.double() / members.sum(1, keepdim=True).clamp(min=1).sqrt()
    return Recovered(w, (x - w @ atoms).norm(dim=1))


def _pairs(members: Tensor) -> int:
    return (int(members.sum(1).max()) + 1) * (members.shape[1] + 1)


def _step(x: Tensor, atoms: Tensor, members: Tensor, rows: Tensor, price: float) -> Tensor:
    """Apply the best exchange to each of some rows of `members`, and return the rows that it improved."""
    inside = members[rows]
    target = x[rows]
    count = inside.sum(1)
    most = int(count.max())
    here, place = inside.to(torch.int8).topk(most, dim=1)
    nothing = atoms.new_zeros(1, atoms.shape[1])
    leaving = torch.cat(
        [atoms[place] * here.unsqueeze(2), nothing.expand(len(rows), 1, -1)], 1
    )  # (R, S + 1, D): or nobody
    joining = torch.cat([atoms, nothing])  # (M + 1, D): or nobody
    total = inside.double() @ atoms
    rest = total.unsqueeze(1) - leaving  # (R, S + 1, D)
    absent = torch.cat([here == 0, torch.zeros_like(here[:, :1], dtype=torch.bool)], 1)
    drops = torch.ones_like(absent, dtype=torch.long)
    drops[:, -1] = 0
    size = (count.view(-1, 1, 1) - drops.unsqueeze(2)) + (
        torch.arange(len(joining), device=x.device) < len(atoms)
    ).long()
    scale = size.clamp(min=1).rsqrt()
    # |x - s (rest + a)|^2 = |x|^2 - 2 s x.(rest + a) + s^2 |rest + a|^2
    along = (rest @ target.unsqueeze(2)) + (target @ joining.T).unsqueeze(1)
    square = rest.square().sum(2, keepdim=True) + 2 * rest @ joining.T + joining.square().sum(1)
    gain = 2 * scale * along - scale.square() * square - price * size
    gain = gain.masked_fill((size < 1) | absent.unsqueeze(2), -torch.inf)
    gain[:, :, :-1] = gain[:, :, :-1].masked_fill(inside.unsqueeze(1), -torch.inf)
    now = count.rsqrt().unsqueeze(1) * total
    best, which = gain.flatten(1).max(1)
    better = torch.nonzero(
        best > (2 * target * now - now.square()).sum(1) - price * count + 1e-12 * target.square().sum(1)
    ).squeeze(1)
    out = which[better] // len(joining)
    into = which[better] % len(joining)
    changed = inside[better]
    leaves = out < most
    joins = into < len(atoms)
    changed[leaves, place[better[leaves], out[leaves]]] = False
    changed[joins, into[joins]] = True
    members[rows[better]] = changed
    return rows[better]

r"""Neighbourhoods of several rounds, stacked: a user's items stay the same while their embeddings change.

.. math::
    x_u^{(t)} = f(|S|) \sum_{v \in S} a_v^{(t)}, \; t = 1 \ldots T \quad \Rightarrow \quad
    [x_u^{(1)} \ldots x_u^{(T)}] = f(|S|) \sum_{v \in S} [a_v^{(1)} \ldots a_v^{(T)}]

Embeddings change during training, so every exchange of the same graph gives D new equations for the same
unknown set. Once T D exceeds the number of items, the set can be solved for, even if a user has many items.

Who: a single curious party, which sees the others' sum in every exchange; colluding parties, which see one
other's matrix; the coordinator. Needs: fake accounts that rate one item each at the target. They have no other
ratings, so their row of the *sum* is the atom of their item: masked sums reveal the atoms in every exchange.
Tries to learn: which items a user has.

Projected neighbourhoods do not reveal atoms. An insider who knows them anyway unmixes Y into one column per
item,

.. math::
    [Y^{(1)} \ldots Y^{(T)}] = (\Phi B) \, [A^{(1)} \ldots A^{(T)}],

where B (N, M) says who has what, and Phi b_v (q,) is a compressed measurement of the few users with item v.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from verfedgnn.research.attacks.sparse_recovery import omp

SHRINK = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
"""Values from which `unmix_sums` chooses."""
NOISE = 0.3
"""Assumed noise of a whitened column, whose mean square is 1. A smaller value claims more items."""
LEFT = 0.01
"""Largest share of a projected column that may remain unexplained."""
TENTH = 0.1
"""Smallest weight, as a share of the largest, that is not rounding. Weights of an item's users differ by
the root of their number of items.
"""


def stack_rounds(parts: Sequence[Tensor]) -> Tensor:
    """Put rows or atoms of T rounds side by side: T times (R, D) -> (R, T D), in 64 bits."""
    return torch.cat([part.double() for part in parts], 1)


def unmix(rows: Tensor, atoms: Tensor, noise: float = 0.0) -> Tensor:
    r"""Return the weight of each item in each row: (V, C), (M, C) -> (V, M).

    .. math::
        \hat W = \arg\min_W | X - W A |^2 + M \sigma^2 | W |^2

    sigma is the standard deviation of the `noise` in a column. The squares of a user's c weights of 1/sqrt(c)
    add up to 1, so each of M is 1/M in the mean, and this is the mean of W given X where both are normal.
    """
    rows = rows.double()
    atoms = atoms.double()
    gram = atoms @ atoms.T
    ridge = len(atoms) * noise**2 + 1e-14 * float(gram.diagonal().mean())
    solution: Tensor = torch.linalg.solve(
        gram + ridge * torch.eye(len(gram), dtype=gram.dtype), atoms @ rows.T
    )
    return solution.T


def whitening(rows: Tensor, shrink: float) -> Tensor:
    r"""Return L (C, C) with L L^T = S (S R^T R S / n + shrink I)^{-1} S for rows R (n, C); S scales
    columns to a mean square of 1.

    What other parties add to a sum is noise to the attacker, and strong in the few directions that popular
    items share. Rows times L have it evenly in all directions, so that least squares weighs equations by what
    they are worth.
    """
    rows = rows.double()
    scale = rows.square().mean(0).sqrt().clamp(min=1e-30).reciprocal()
    even = rows * scale
    moments = even.T @ even / len(rows) + shrink * torch.eye(rows.shape[1], dtype=rows.dtype)
    root: Tensor = torch.linalg.cholesky(torch.linalg.inv(moments))
    return scale.unsqueeze(1) * root


def unmix_sums(rows: Tensor, atoms: Tensor, everybody: Tensor) -> Tensor:
    """Return `unmix` for rows that also hold other parties' items: (V, C), (M, C) and all users' rows (N,
    C) -> (V, M).

    How far to shrink is what makes items stand out most: the weight that one more atom would add to a row,
    over the standard deviation of that weight among rows that the whitening has not seen. The attacker can
    compute both.
    """
    one = everybody[::2].double()
    other = everybody[1::2].double()
    clearest = -1.0
    best = SHRINK[0]
    for shrink in SHRINK:
        even = whitening(one, shrink)
        mine = atoms.double() @ even
        unseen = other @ even
        added = unmix(mine, mine, NOISE).diagonal()
        spread = unmix(unseen, mine, NOISE).std(0)
        clear = float((added / spread.clamp(min=1e-30)).median())
        if clear > clearest:
            clearest = clear
            best = shrink
    even = whitening(everybody, best)
    return unmix(rows.double() @ even, atoms.double() @ even, NOISE)


def users_of_items(y: Sequence[Tensor], atoms: Sequence[Tensor], phi: Tensor) -> Tensor:
    """Return who has each item (N, M) from projected neighbourhoods T times (q, C), atoms T times (M, C)
    and Phi (q, N).

    Only items whose users add up to their column are claimed: with too many users, about q/4, matching
    pursuit goes wrong, and what it leaves over says so.
    """
    columns = unmix(stack_rounds(y), stack_rounds(atoms)).T  # rows are Phi b_v (M, q)
    found = omp(columns, phi.T, most=max(1, len(phi) // 2), left=LEFT)
    solved = found.residual <= LEFT * columns.norm(dim=1)
    claims: Tensor = (found.weights > TENTH * found.weights.amax(1, keepdim=True)) & solved.unsqueeze(1)
    return claims.T

r"""The exact solution of App. H's integer program: the subset of candidates nearest to a victim.

.. math::
    \min_{S, 1 \le |S| \le m} \left| x - f(|S|) \sum_{j \in S} c_j \right|_1,
    \qquad f(c) = 1/\sqrt c \text{ (GCN)}, \quad 1/c \text{ (GGNN)}, \quad 1 \text{ (GAT, gradients)}

Sums of all subsets of one size are points in R^D, the same for every victim x. They are cut into boxes of a
few hundred points. The distance to a box is a lower bound of the distance to each of its points, so only boxes
nearer than the best point so far are searched. In six dimensions that is about one box in a hundred.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

MOST = 3
"""Size of the largest subset (App. H: "we set the upper limit of c as 3")."""
POINTS = 1 << 21
"""Number of sums held at a time; with D = 6 they take 48 MiB, and some copies of that."""
LEAF = 512
"""Approximate number of sums in a box."""
VALUES = 1 << 20
"""Number of distances computed at a time."""

Scale = Callable[[int], float]

SCALES: dict[str, Scale] = {"gcn": lambda c: 1 / math.sqrt(c), "ggnn": lambda c: 1 / c, "gat": lambda c: 1.0}
"""f by GNN: an adversarial user has one neighbour; a user with c neighbours has their sum times f(c)."""


@dataclass(frozen=True)
class NearestSubsets:
    """The nearest subset for each of V victims."""

    members: Tensor
    """Rows of the candidates in the subset, ascending, padded with -1 (V, m)."""
    distance: Tensor
    """l1 distance of the subset (V,)."""


@dataclass(frozen=True)
class _Points:
    """All subsets of one size with given first members: their unscaled sums (n, D), and a function that
    names them.
    """

    sums: Tensor
    name: Callable[[Tensor], Tensor]
    """Returns members (n, size) of positions (n,)."""


def best_subsets(
    victims: Tensor, candidates: Tensor, scale: Scale, *, most: int = MOST, margin: float = 0.0
) -> NearestSubsets:
    """Find the subset of at most `most` candidates (A, D) nearest to each victim (V, D); ties go to a
    smallest subset.

    With a `margin`, a larger subset must be nearer by more than that.
    """
    best = torch.full((len(victims),), torch.inf, device=victims.device)
    members = torch.full((len(victims), most), -1, dtype=torch.int64, device=victims.device)
    for size in range(1, min(most, len(candidates)) + 1):
        bound = best - margin
        for points in _subsets(candidates, size):
            distance, position = _nearest(victims, points.sums * scale(size), bound)
            better = torch.nonzero(distance < bound).squeeze(1)
            best[better] = bound[better] = distance[better]
            members[better, :size] = points.name(position[better])
    return NearestSubsets(members, best)


def _subsets(candidates: Tensor, size: int) -> Iterator[_Points]:
    """Yield all subsets of `size`, about `POINTS` at a time.

    In lexicographic order, the subsets with first member i are i with every subset of size - 1 whose first
    member is above i. These are the end of the list of smaller subsets.
    """
    count = len(candidates)
    if size == 1:
        yield _Points(candidates, lambda position: position.unsqueeze(1))
        return
    rest = torch.combinations(torch.arange(count, device=candidates.device), size - 1)
    sums = candidates[rest].sum(1)
    starts = torch.searchsorted(
        rest[:, 0].contiguous(), torch.arange(1, count + 1, device=rest.device)
    ).tolist()
    first = 0
    while first <= count - size:
        block: list[int] = []
        held = 0
        while first <= count - size and (not block or held + len(rest) - starts[first] <= POINTS):
            block.append(first)
            held += len(rest) - starts[first]
            first += 1
        total = torch.cat([sums[starts[i] :] + candidates[i] for i in block])
        yield _Points(total, partial(_named, block=block, starts=starts, rest=rest))


def _named(position: Tensor, block: list[int], starts: list[int], rest: Tensor) -> Tensor:
    """Return the members of subsets at positions of a block: (n,) -> (n, size)."""
    ends = torch.tensor([len(rest) - starts[i] for i in block], device=rest.device).cumsum(0)
    which = torch.searchsorted(ends, position, right=True)
    first = torch.tensor(block, device=rest.device)[which]
    return torch.cat([first.unsqueeze(1), rest[len(rest) - (ends[which] - position)]], 1)


def _nearest(victims: Tensor, points: Tensor, bound: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nearest point to each victim and its position where it is nearer than `bound` (V,);
    elsewhere anything or infinity.
    """
    order, boxes = _boxed(points)
    # (B, D)
    low = boxes.amin(1)
    high = boxes.amax(1)
    best = torch.full_like(bound, torch.inf)
    place = torch.zeros_like(bound, dtype=torch.int64)
    rows = max(1, VALUES // low.numel())
    for start in range(0, len(victims), rows):
        x = victims[start : start + rows]
        apart = ((low - x.unsqueeze(1)).clamp(min=0) + (x.unsqueeze(1) - high).clamp(min=0)).sum(
            -1
        )  # (rows, B)
        mine = best[start : start + rows]
        at = place[start : start + rows]
        limit = bound[start : start + rows]
        nearest = apart.argmin(1)
        seen = torch.zeros_like(apart, dtype=torch.bool).scatter_(1, nearest.unsqueeze(1), True)
        for look in (seen, ~seen):  # the nearest box first, because it rules out most others
            pairs = torch.nonzero(look & (apart < torch.minimum(mine, limit).unsqueeze(1)))
            for some in torch.split(pairs, max(1, VALUES // boxes.shape[1])):
                _look(x, boxes, some[:, 0], some[:, 1], mine, at)
    return best, order.flatten()[place]


def _look(victims: Tensor, boxes: Tensor, victim: Tensor, box: Tensor, best: Tensor, place: Tensor) -> None:
    """Compare each victim with every point of its box, both (n,) with ascending victims, and update `best`
    and `place`.
    """
    distance = boxes.new_zeros(len(box), boxes.shape[1])
    for d in range(boxes.shape[2]):
        distance += (boxes[:, :, d].index_select(0, box) - victims[victim, d].unsqueeze(1)).abs_()
    nearest, where = distance.min(1)
    least = torch.full_like(best, torch.inf).scatter_reduce_(0, victim, nearest, "amin")
    winners = (
        torch.nonzero((nearest == least[victim]) & (nearest < best[victim])).squeeze(1).flip(0)
    )  # the first is written last
    best[victim[winners]] = nearest[winners]
    place[victim[winners]] = box[winners] * boxes.shape[1] + where[winners]


def _boxed(points: Tensor) -> tuple[Tensor, Tensor]:
    """Cut points (n, D) into quarters by one coordinate after the other; return their positions (B, L) and
    values (B, L, D).

    The last points are repeated to fill the boxes, which changes no minimum.
    """
    count, dim = points.shape
    levels = max(0, math.ceil(math.log(count / LEAF, 4)))
    size = math.ceil(count / 4**levels)
    order = torch.arange(4**levels * size, device=points.device).clamp(max=count - 1).unsqueeze(0)
    widest = points.std(0, correction=0).argsort(descending=True).tolist()
    for level in range(levels):
        inner = torch.argsort(points[:, widest[level % dim]][order], dim=1, stable=True)
        order = order.gather(1, inner).reshape(4 ** (level + 1), -1)
    return order, points[order]

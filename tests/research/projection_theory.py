"""Solvers and expected errors with which the tests check statements about projections and repeated releases.

No attack of the package uses them; they show how much a recipient of Y = Phi X can compute under an extra assumption.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from verfedgnn.privacy.projection import Projection
from verfedgnn.protocol.wire.fixed_point import from_fixed, wrap_signed
from verfedgnn.research.attacks.count_sketch import CountSketch, expected_share
from verfedgnn.research.attacks.projection_inverse import dense_projection, least_norm
from verfedgnn.research.attacks.recording import TOGETHER, RecordedFederation, Trip


def least_squares(phi: Tensor, y: Tensor) -> Tensor:
    """Return the least-squares solution; of several, the one of least norm."""
    solution: Tensor = torch.linalg.lstsq(phi, y).solution
    return solution


def informed(y: Tensor, phi: Tensor, features: Tensor) -> Tensor:
    r"""Return the X nearest to what public features F (N, F) of users explain: F B + minimum norm of Y - Phi F B.

    .. math::
        B = \arg\min_B | Y - \Phi F B |
    """
    start = features.double() @ least_squares(phi.double() @ features.double(), y.double())
    return (start + least_norm(y.double() - phi.double() @ start, phi).double()).float()


def known_rows(y: Tensor, phi: Tensor, rows: Tensor) -> Tensor:
    """Return the X (N, C) that is 0 outside `rows` (s,) and has Phi X nearest to Y; exact if that holds and s <= q."""
    x = torch.zeros(phi.shape[1], y.shape[1], dtype=torch.float64)
    x[rows] = least_squares(phi.double()[:, rows], y.double())
    return x.float()


def sparse_rows(y: Tensor, phi: Tensor, *, most: int | None = None, tolerance: float = 1e-5) -> Tensor:
    """Return an X (N, C) with Phi X = Y and few rows other than 0, found by simultaneous matching pursuit."""
    y = y.double()
    phi = phi.double()
    length = phi.norm(dim=0)
    chosen: list[int] = []
    left = y
    found = y.new_zeros(0, y.shape[1])
    for _ in range(most or max(1, len(phi) // 2)):
        if float(left.norm()) <= tolerance * float(y.norm()):
            break
        strength = (phi.T @ left).norm(dim=1) / length
        strength[chosen] = -1
        chosen.append(int(strength.argmax()))
        found = least_squares(phi[:, chosen], y)
        left = y - phi[:, chosen] @ found
    x = torch.zeros(phi.shape[1], y.shape[1], dtype=torch.float64)
    x[chosen] = found
    return x.float()


def relative_error(found: Tensor, true: Tensor) -> float:
    """Return |found - true|^2 / |true|^2 over the whole matrix."""
    return float((found.double() - true.double()).square().sum() / true.double().square().sum())


class InverseErrors(NamedTuple):
    """Squared errors of three inverses of the projection, as shares of |X|^2."""

    adjoint: float
    scaled: float
    minimum_norm: float


def expected_errors(users: int, rows: int) -> InverseErrors:
    """Return the expected errors for N users and q < N rows."""
    return InverseErrors((users + 1) / rows, (users + 1) / (users + rows + 1), max(0.0, 1 - rows / users))


def measured_errors(x: Tensor, projection: Projection) -> InverseErrors:
    """Return the errors on X (N, C) for a projection in one block."""
    y = projection.project(x)
    adjoint = projection.reconstruct(y)
    shrink = 1 / (1 + (projection.users + 1) / projection.rows)
    minimum = least_norm(y, dense_projection(projection))
    return InverseErrors(
        relative_error(adjoint, x), relative_error(adjoint * shrink, x), relative_error(minimum, x)
    )


def release_error(x: Tensor, r: float, releases: int) -> float:
    """Return the expected squared error of the mean of ternary releases of x: sum_i (r |x_i| - x_i^2) / T."""
    return float((r * x.double().abs() - x.double().square()).sum()) / releases


def averaged(x: Sequence[Tensor], projections: Sequence[Projection]) -> Tensor:
    """Return the mean of Phi_t^T Phi_t X_t (N, C) over rounds."""
    parts = [
        projection.reconstruct(projection.project(each))
        for each, projection in zip(x, projections, strict=True)
    ]
    return torch.stack(parts).mean(0)


def averaged_error(users: int, rows: int, rounds: int, *, fresh: bool) -> float:
    """Return the expected squared error of `averaged` for a constant X, as a share of |X|^2."""
    return (users + 1) / rows / (rounds if fresh else 1)


def solved(y: Sequence[Tensor], phi: Sequence[Tensor]) -> Tensor:
    """Return the X (N, C) of least norm with Phi_t X = Y_t in every round."""
    return least_squares(torch.cat(list(phi)).double(), torch.cat(list(y)).double()).float()


def share_error(users: int, rows: int) -> float:
    """Return the exact standard deviation of the share of users who are alone in a bucket of a count sketch."""
    one = expected_share(users, rows)
    both = (1 - 1 / rows) * (1 - 2 / rows) ** (users - 2)
    return math.sqrt(max(0.0, one / users + (1 - 1 / users) * both - one**2))


def read_off(y: Tensor, sketch: CountSketch, among: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the users who are alone in their bucket (n,) and their rows (n, C), from Y (q, C)."""
    users = torch.nonzero(sketch.alone(among)).squeeze(1)
    return users, (y[sketch.bucket] * sketch.sign.unsqueeze(1))[users]


def sent_neighbourhoods(federation: RecordedFederation, trip: Trip) -> dict[str, Tensor]:
    """Return the neighbourhoods (K, q, C) that the coordinator can read: each party's, or with masking their sum."""
    bits = federation.config.exchange.bits
    arrays = {
        name: reply.neighbourhoods for name, reply in trip.replies.items() if reply.neighbourhoods is not None
    }
    if federation.config.masking and arrays:  # masks cancel
        first = next(iter(arrays.values()))
        arrays = {TOGETHER: wrap_signed(np.add.reduce(list(arrays.values()), dtype=first.dtype), bits)}
    return {name: from_fixed(torch.from_numpy(values), bits) for name, values in arrays.items()}


def best_advantage(score: Tensor, truth: Tensor) -> float:
    """Return max TPR - FPR over all thresholds, chosen and judged on the same scores: a little too high."""
    gaps = [
        float((score[truth] >= t).double().mean() - (score[~truth] >= t).double().mean())
        for t in score.unique()
    ]
    return max(0.0, *gaps)

r"""Better inverses of the projection than the protocol's own.

.. math::
    \hat X = \Phi^T Y, \qquad
    \hat X_\lambda = \Phi^T (\Phi \Phi^T + \lambda I)^{-1} Y, \qquad
    \hat X_S = \arg\min_{X: X_u = 0, u \notin S} | Y - \Phi X |

Who: whoever receives Y = Phi X (q, C), the coordinator or a party; Phi (q, N) is public. Needs: nothing else; for the last, the
set S of users who have something at the party. Tries to learn: X (N, C), rows of which go on to `subset` or `recovery`.

Expected squared error as a share of |X|^2, for any X:

    adjoint         (N + 1) / q               5 at q = N/5: the error is more than twice the signal
    scaled adjoint  (N + 1) / (N + q + 1)     0.833
    minimum norm    1 - q/N                   0.8: a random subspace of dimension q holds q/N of any vector
    known rows      0 if |S| <= q             Theorem 1 speaks of a dense X; a sparse one is solved for

All on the CPU, in 64 bits.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from verfedgnn.privacy.projection import IdentityProjection, Projection


def dense(projection: Projection | IdentityProjection) -> Tensor:
    """Phi itself (q, N)."""
    device = projection.device if isinstance(projection, Projection) else torch.device("cpu")
    return projection.project(torch.eye(projection.users, device=device)).cpu()


def ridge(y: Tensor, phi: Tensor, penalty: float = 0.0) -> Tensor:
    """Phi^T (Phi Phi^T + penalty I)^-1 Y: (q, C), (q, N) -> (N, C); without a penalty the X of least norm with Phi X = Y.

    With q >= N that is the least-squares solution, and X itself where Y is exact.
    """
    y, phi = y.double(), phi.double()
    if penalty == 0.0:
        return _least(phi, y).float()
    gram = phi @ phi.T
    solved: Tensor = torch.linalg.solve(gram + penalty * torch.eye(len(gram), dtype=gram.dtype), y)
    return (phi.T @ solved).float()


def _least(phi: Tensor, y: Tensor) -> Tensor:
    """The least-squares solution, of several the one of least norm."""
    solution: Tensor = torch.linalg.lstsq(phi, y).solution
    return solution


def informed(y: Tensor, phi: Tensor, features: Tensor) -> Tensor:
    r"""The X of least distance from what public features of users (N, F) explain: F B + minimum norm of Y - Phi F B.

    .. math::
        B = \arg\min_B | Y - \Phi F B |

    F may be user embeddings, which are public, an own neighbourhood, a column of ones.
    """
    start = features.double() @ _least(phi.double() @ features.double(), y.double())
    return (start + ridge(y.double() - phi.double() @ start, phi).double()).float()


def known_rows(y: Tensor, phi: Tensor, rows: Tensor) -> Tensor:
    """X (N, C) with only `rows` (s,) not 0 and Phi X nearest to Y (q, C): exact if no other row is not 0 and s <= q.

    Who is active at a party may be known: the coordinator reads it off gradients (`curious`).
    """
    x = torch.zeros(phi.shape[1], y.shape[1], dtype=torch.float64)
    x[rows] = _least(phi.double()[:, rows], y.double())
    return x.float()


def sparse_rows(y: Tensor, phi: Tensor, *, most: int | None = None, tolerance: float = 1e-5) -> Tensor:
    """X (N, C) with few rows that are not 0 and Phi X = Y (q, C), without knowing which: simultaneous matching pursuit.

    The user whose column of Phi is most in line with what is left joins, for all columns of Y together; until `tolerance` of Y
    is left or there are `most` (q/2 unless said).
    """
    y, phi = y.double(), phi.double()
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
        found = _least(phi[:, chosen], y)
        left = y - phi[:, chosen] @ found
    x = torch.zeros(phi.shape[1], y.shape[1], dtype=torch.float64)
    x[chosen] = found
    return x.float()


def relative_error(found: Tensor, true: Tensor) -> float:
    """|found - true|^2 / |true|^2 over the whole matrix."""
    return float((found.double() - true.double()).square().sum() / true.double().square().sum())


class Errors(NamedTuple):
    """Squared errors as shares of |X|^2."""

    adjoint: float
    scaled: float
    minimum_norm: float


def expected_errors(users: int, rows: int) -> Errors:
    """What the three inverses without further knowledge are expected to have, for N users and q < N rows."""
    return Errors((users + 1) / rows, (users + 1) / (users + rows + 1), max(0.0, 1 - rows / users))


def measured_errors(x: Tensor, projection: Projection) -> Errors:
    """What they have on X (N, C): (users, rows) are the projection's, which must be one block with the plain adjoint."""
    y = projection.project(x)
    adjoint = projection.reconstruct(y)
    shrink = 1 / (1 + (projection.users + 1) / projection.rows)
    minimum = ridge(y, dense(projection))
    return Errors(relative_error(adjoint, x), relative_error(adjoint * shrink, x), relative_error(minimum, x))

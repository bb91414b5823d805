r"""A better inverse of the projection than the protocol's own.

.. math::
    \hat X = \Phi^T Y, \qquad
    \hat X_0 = \Phi^T (\Phi \Phi^T)^{-1} Y

Who: anyone who receives Y = Phi X (q, C), the coordinator or a party; Phi (q, N) is public. Needs: nothing else. Tries to
learn: X (N, C), whose rows go on to `subset_search` or `sparse_recovery`.

Expected squared error as a share of |X|^2, for any X:

    adjoint         (N + 1) / q               5 at q = N/5: the error is more than twice the signal
    scaled adjoint  (N + 1) / (N + q + 1)     0.833
    minimum norm    1 - q/N                   0.8: a random subspace of dimension q holds q/N of any vector
    known rows      0 if |S| <= q             Theorem 1 assumes a dense X; one with few rows can be solved for

All on the CPU, in 64 bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from verfedgnn.privacy.projection import IdentityProjection, Projection


def dense_projection(projection: Projection | IdentityProjection) -> Tensor:
    """Return Phi as a matrix (q, N)."""
    device = projection.device if isinstance(projection, Projection) else torch.device("cpu")
    return projection.project(torch.eye(projection.users, device=device)).cpu()


def least_norm(y: Tensor, phi: Tensor) -> Tensor:
    """Return the X (N, C) of least norm with Phi X = Y, from Y (q, C) and Phi (q, N).

    With q >= N that is the least-squares solution, and X itself where Y is exact.
    """
    solution: Tensor = torch.linalg.lstsq(phi.double(), y.double()).solution
    return solution.float()

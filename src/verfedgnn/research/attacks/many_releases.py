r"""Attacks on many releases, which reveal more than one release does.

Gradients. Q(x) is unbiased, so the mean of T ternary releases of one x is x up to noise that falls with the
root of T,

.. math::
    E \left| \tfrac1T \sum_t Q_t(x) - x \right|^2 = \frac{1}{T} \sum_i \left( r |x_i| - x_i^2 \right),

and the mean of |Q| is |x|: how often a user's row is not 0 tells how much the party has of that user. Who:
the coordinator, with masking off for one party, with masking on for the sum of all. Needs: the releases of T
rounds. Tries to learn: whether a user has any rating at a party, and how many.

Neighbourhoods. With one fixed Phi every round measures the same q directions; the mean over rounds has the
adjoint's error, always. A fresh Phi in every round measures new ones,

.. math::
    E | \tfrac1T \sum_t \Phi_t^T \Phi_t X - X |^2 = \frac{N + 1}{q T} | X |^2 ,

and from T q >= N on X is solved for exactly. Who: any recipient of Y.
"""

from __future__ import annotations

import torch
from torch import Tensor


class ReleaseAverage:
    """Running sums over one sender's releases: gradients of user embeddings (N, D) as the coordinator
    reads them.
    """

    def __init__(self) -> None:
        self.releases = 0
        self._sum: Tensor | float = 0.0
        self._size: Tensor | float = 0.0

    def add(self, release: Tensor) -> None:
        """Accumulate one release."""
        self.releases += 1
        self._sum = self._sum + release.double()
        self._size = self._size + release.double().abs().sum(1)

    @property
    def mean(self) -> Tensor:
        """Mean release (N, D): an estimate of the mean gradient, up to the public scale."""
        return torch.as_tensor(self._sum) / max(1, self.releases)

    @property
    def activity(self) -> Tensor:
        """Mean of |release| for each user (N,); with ternary releases, how often a coordinate is not 0."""
        return torch.as_tensor(self._size) / max(1, self.releases)

    @property
    def proven(self) -> Tensor:
        """Users with anything but zeros so far (N,). A ternary release of 0 is 0, so these users have
        ratings at the sender.
        """
        return self.activity > 0


def cosines(found: Tensor, true: Tensor) -> Tensor:
    """Return the cosines between the rows of two matrices (N, D); 0 where one row is 0."""
    return torch.nn.functional.cosine_similarity(found.double(), true.double(), dim=1)

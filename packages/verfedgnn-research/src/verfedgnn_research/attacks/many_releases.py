r"""Attacks on many releases, which reveal more than one release does.

Gradients: Q(x) is unbiased, so the mean of T ternary releases of one x is x with an error that falls with the
root of T,

.. math::
    E \left| \tfrac1T \sum_t Q_t(x) - x \right|^2 = \frac{1}{T} \sum_i \left( r |x_i| - x_i^2 \right),

and the mean of |Q| is |x|: the frequency of values other than 0 in a user's row shows how many ratings the
party has of that user. Who: the coordinator; without masking for each party, with masking for their sum. Needs: the releases of T
rounds. Tries to learn: whether a user has any rating at a party, and how many.
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

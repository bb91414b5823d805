r"""The count sketch, a projection with one non-zero per column that must not be used.

.. math::
    Y_b = \sum_{u: h(u) = b} s(u) X_u, \qquad h(u) \in \{1 \ldots q\}, \; s(u) \in \{-1, 1\} \text{ at random}

It costs O(N) instead of O(N q), but the row of a user who is alone in a bucket is sent unchanged:

.. math::
    P(u \text{ alone}) = (1 - 1/q)^{N - 1} \approx e^{-N/q}, \qquad X_u = s(u) Y_{h(u)}.

Who: any recipient of Y; h and s are public, as Phi is. Needs: nothing else. Tries to learn: rows of X,
exactly. Users without ratings at the party have rows of 0 and hide nobody, so N is the number of users with
ratings there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class CountSketch:
    """Buckets and signs of N users (N,), both int64, and the number q of buckets."""

    bucket: Tensor
    sign: Tensor
    rows: int

    @classmethod
    def draw(cls, users: int, rows: int, generator: torch.Generator) -> CountSketch:
        """Draw buckets and signs at random."""
        bucket = torch.randint(rows, (users,), generator=generator)
        return cls(bucket, 2 * torch.randint(2, (users,), generator=generator) - 1, rows)

    def project(self, x: Tensor) -> Tensor:
        """Return Y: (N, C) -> (q, C)."""
        return x.new_zeros(self.rows, x.shape[1]).index_add_(0, self.bucket, x * self.sign.unsqueeze(1))

    def alone(self, among: Tensor | None = None) -> Tensor:
        """Return the users (N,) who are alone in their bucket; with `among` (N,), only those users count."""
        counted = torch.ones_like(self.bucket) if among is None else among.long()
        return (torch.bincount(self.bucket, counted.double(), minlength=self.rows)[self.bucket] == 1) & (
            counted > 0
        )


def expected_share(users: int, rows: int) -> float:
    """Return the expected share of users who are alone: (1 - 1/q)^(N - 1), about e^(-N/q)."""
    return (1 - 1 / rows) ** (users - 1)

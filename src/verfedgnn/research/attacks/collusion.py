r"""Colluding parties subtract their own parts from a sum.

.. math::
    \sum_p X_p - \sum_{c \in \text{colluders}} X_c = \sum_{h \text{ honest}} X_h

Sums are integers modulo 2^b, so the remainder is exact up to fixed-point rounding. Who: k of P parties; a colluding
coordinator adds nothing to a masked sum. Needs: their own parts, which they computed themselves, and the sum, which every
party receives. Tries to learn: the matrix of one honest party, and from it who has what there (`sparse_recovery`,
`round_stacking`, `subset_search`).

    k = P - 1   the one honest party's matrix (masked, exact), its projection (projected), its ternary gradient
    k = P - 2   the sum of two honest parties; neither one's part
    k < P - 2   the sum of P - k

With `participation` below 1 only active parties count, and sums over different sets of parties can be subtracted from each
other. Masked sums over fewer than all parties are therefore refused (`party_counts.fewest_parties_in_sum`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.core.errors import ProtocolError
from verfedgnn.protocol.party.exchange_state import SentNeighbourhoods
from verfedgnn.protocol.wire.fixed_point import from_fixed, wrap_signed
from verfedgnn.protocol.wire.messages import RoundStart


@dataclass(frozen=True)
class Exposure:
    """What a number of colluding parties can compute about the others."""

    parties: int
    colluders: int

    @property
    def summed(self) -> int:
        """Number of honest parties in the remaining sum."""
        return self.parties - self.colluders

    @property
    def noise_left(self) -> float:
        """Share of the configured noise variance that remains with exchange.mode = noised; colluders know
        their own noise.
        """
        return self.summed / max(1, self.parties - 1)


def honest_sum(start: RoundStart, own: Sequence[SentNeighbourhoods], bits: int, columns: int) -> Tensor:
    """Return what remains (K, q, C) of the sum in a RoundStart without the colluders' `own` parts.

    `columns` is C, the columns of a neighbourhood. Users' means may follow them; they say nothing about single items.
    """
    if start.neighbourhoods is None or any(sent.trip != start.neighbourhood_trip for sent in own):
        raise ProtocolError("the colluders' parts belong to another sum; subtract the parts of this trip")
    left: NDArray[np.integer[Any]] = start.neighbourhoods
    for sent in own:
        left = left - sent.values
    return from_fixed(torch.from_numpy(wrap_signed(left, bits)[..., :columns]), bits)

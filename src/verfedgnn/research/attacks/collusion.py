r"""Colluding parties: a sum less the parts of those who talk to each other.

.. math::
    \sum_p X_p - \sum_{c \in \text{colluders}} X_c = \sum_{h \text{ honest}} X_h

Sums travel as integers and are subtracted modulo 2^b, so what is left is exact to the fixed point. Who: k of P parties; the
coordinator on their side adds nothing to a masked sum that they do not have. Needs: their own parts, which they computed
themselves, and the sum, which all are told. Tries to learn: the matrix of one honest party, then by `recovery`, `stacking` or
`subset` who has what there.

    k = P - 1   the one honest party's matrix (masked, exact), its projection (projected), its ternary gradient
    k = P - 2   the sum of two honest parties; neither one's part
    k < P - 2   the sum of P - k

One party with P - 2 others on its side is k = P - 1. With `participation` below 1 only active parties count, and sums over
changing sets can be subtracted from each other; masked sums over fewer than all are therefore refused (`exchange_plan.fewest_parties_in_sum`).
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


def honest_sum(start: RoundStart, own: Sequence[SentNeighbourhoods], bits: int) -> Tensor:
    """Return what remains (K, q, C) of the sum in a RoundStart without the colluders' `own` parts."""
    if start.neighbourhoods is None or any(sent.trip != start.neighbourhood_trip for sent in own):
        raise ProtocolError(
            "colluders subtract what they put into this very sum; these parts are of another one"
        )
    left: NDArray[np.integer[Any]] = start.neighbourhoods
    for sent in own:
        left = left - sent.values
    return from_fixed(torch.from_numpy(wrap_signed(left, bits)), bits)

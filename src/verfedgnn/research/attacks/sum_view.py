"""The rows of users that attackers compute from the sums of neighbourhoods in several exchanges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from verfedgnn.config.sections import FRACTION_BITS
from verfedgnn.core.errors import ConfigError
from verfedgnn.privacy.projection import Projection
from verfedgnn.research.attacks.collusion import honest_sum
from verfedgnn.research.attacks.projection_inverse import dense_projection, least_norm
from verfedgnn.research.attacks.recording import Exchange, RecordedFederation
from verfedgnn.research.attacks.round_stacking import stack_rounds

COLUMNS = 2048
"""Maximum number of stacked columns. More columns slow the solver down and barely improve the result."""

Who = Literal["colluders", "party"]
"""Who attacks: all parties but the target, or one party alone."""


class SumView:
    """The exchanges that attackers recorded, with the accounts and users they compare."""

    def __init__(
        self,
        federation: RecordedFederation,
        exchanges: Sequence[Exchange],
        *,
        target: int,
        attacker: int,
        fakes: Tensor,
        items: Tensor,
        victims: Tensor,
        copies: int,
    ) -> None:
        self.federation = federation
        self.exchanges = exchanges
        self.target = target
        self.attacker = attacker
        self.fakes = fakes
        self.items = items
        self.victims = victims
        self.once = len(items) // copies
        """Number of fake accounts, from the first on, that cover every planted item once."""
        self.honest = len(federation.parties[target].neighbours) - len(fakes)
        exchange = federation.config.exchange
        self.rounding = 2.0 ** -FRACTION_BITS[exchange.bits] / math.sqrt(12)
        """Standard deviation of the rounding to fixed point."""
        self.projection = federation.parties[0].projection
        self.phi = dense_projection(self.projection) if isinstance(self.projection, Projection) else None

    @property
    def target_items(self) -> int:
        """Number of items of the target party."""
        return self.federation.parties[self.target].data.items

    @property
    def columns(self) -> int:
        """Number of columns of a neighbourhood, C."""
        return self.federation.coordinator.model.operator.columns

    def rows(self, exchange: Exchange, who: Who, *, minimum_norm: bool = False) -> Tensor:
        """Return the rows of all layers (N, K C) that remain of the sum without the attackers' own parts.

        Projected rows are reconstructed by the adjoint, or with `minimum_norm` by the solution of least norm.
        """
        own = [
            sent
            for p, sent in enumerate(exchange.sent)
            if (p != self.target if who == "colluders" else p == self.attacker)
        ]
        left = honest_sum(exchange.start, own, self.federation.config.exchange.bits, self.columns)
        flat = left.permute(1, 0, 2).flatten(1)
        if self.projection is None:
            raise ConfigError(
                "this configuration exchanges no neighbourhoods, so there are no sums to attack"
            )
        if minimum_norm and self.phi is not None:
            return least_norm(flat, self.phi)
        return self.projection.reconstruct(flat)

    def first_layer(self, rows: Tensor) -> Tensor:
        """Return the first layer's columns (N, C) of `rows`."""
        return rows[:, : self.columns]

    def stacked_rows(self, who: Who) -> Tensor:
        """Return the rows (N, T K C) of exchanges spread over the training.

        The first exchange is left out where there are others: before training it shows nothing.
        """
        width = self.rows(self.exchanges[0], who).shape[1]
        last = len(self.exchanges) - 1
        places = np.unique(
            np.linspace(min(1, last), last, max(1, min(COLUMNS // width, last))).round().astype(int)
        )
        rows = stack_rounds([self.rows(self.exchanges[i], who) for i in places])
        return rows[:, rows.any(0)]

    def atoms(self, party: int) -> Tensor:
        """Return a party's atoms (M, T, D) in every exchange."""
        member = self.federation.parties[party]
        return torch.stack([member.atoms(each.knows[party]) for each in self.exchanges], 1)

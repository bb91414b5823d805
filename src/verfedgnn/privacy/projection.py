r"""Random projection of neighbourhoods (Sec. 4.4, Theorems 1 and 2).

.. math::
    Y = \Phi X, \quad \hat X = \Phi^T Y, \quad \Phi \in R^{q \times N}, \quad \Phi_{ij} \sim N(0, 1/q)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.core.errors import ConfigError
from verfedgnn.core.option_names import option, setting

TILE_VALUES = 1 << 22
"""Number of values of Phi that are drawn at a time (16 MiB)."""
CACHE_VALUES = 1 << 28
"""Largest number of values of Phi that is cached (1 GiB). A larger Phi is redrawn from its seed for each use."""
MOST_VALUES = 1 << 34
"""Largest number of values of Phi. Redrawing it takes about 90 seconds on one core, twice a round."""

Piece = tuple[slice, Tensor]
"""A range of the columns of Phi, and their values (1, q, w)."""


class Exchange:
    """The exchange of neighbourhoods; this one exchanges none."""

    users: int = 0
    """N, the number of users of a neighbourhood before it is projected."""
    rows: int = 0
    """Rows of an exchanged neighbourhood."""
    protected: bool = True
    """Whether Theorem 1 holds for what is sent."""

    def send(self, neighbourhoods: Sequence[Tensor]) -> Tensor | None:
        """Return what leaves a party of its neighbourhoods (N, C) in every layer, (K, q, C); None if nothing does."""
        return None

    def receive(self, others: Tensor | None) -> list[Tensor] | None:
        """Return the neighbourhoods (N, C) in every layer, of which the others sent the sum (K, q, C); None if it is not known."""
        return None


NO_EXCHANGE = Exchange()


class IdentityProjection(Exchange):
    """The identity in place of Phi: X itself is sent, without protection."""

    protected = False

    def __init__(self, users: int) -> None:
        self.users = self.rows = users

    def project(self, x: Tensor) -> Tensor:
        """Return X."""
        return x

    def reconstruct(self, y: Tensor) -> Tensor:
        """Return Y."""
        return y

    def send(self, neighbourhoods: Sequence[Tensor]) -> Tensor:
        """Compute Y = Phi X of all layers as one product."""
        x = torch.stack([layer.detach() for layer in neighbourhoods], 1)  # (N, K, C)
        y = self.project(x.flatten(1))
        return y.view(-1, *x.shape[1:]).permute(1, 0, 2)

    def receive(self, others: Tensor | None) -> list[Tensor] | None:
        """Compute X^ = Phi^T Y of all layers as one product."""
        if others is None:
            return None
        layers, rows, columns = others.shape
        x = self.reconstruct(others.permute(1, 0, 2).reshape(rows, -1))
        return list(x.view(-1, layers, columns).unbind(1))


class Projection(IdentityProjection):
    """The projection Phi for N users, defined by its seed alone and therefore equal on every device."""

    def __init__(
        self, users: int, *, ratio: float, seed: int = 0, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(users)
        self.seed, self.device = seed, torch.device(device)
        self.rows = max(1, int(users / ratio))
        # Theorem 1. With one user, q = N: the value would be sent times a known number.
        self.protected = 2 * self.rows <= users + 1 and self.rows < users
        values = self.rows * users
        if values > MOST_VALUES:
            raise ConfigError(
                f"the projection of {users:,} users has {values:.1e} values, too many to draw in every round; "
                f"use {option('preset', 'best')}, which exchanges no neighbourhoods"
            )
        self._cache: list[Piece] = []
        self._is_cached = values <= CACHE_VALUES

    def project(self, x: Tensor) -> Tensor:
        """Compute Y = Phi X: (N, C) -> (q, C) (eq. 13)."""
        y = x.new_zeros(1, x.shape[1], self.rows)
        wide = x.T.contiguous().unsqueeze(0)  # a third faster than a tall matrix
        for columns, phi in self._pieces():
            y.baddbmm_(wide[:, :, columns], phi.mT)
        return y[0].T.contiguous()

    def reconstruct(self, y: Tensor) -> Tensor:
        """Compute X^ = Phi^T Y: (q, C) -> (N, C) (eq. 14)."""
        wide = y.T.contiguous().unsqueeze(0)
        return torch.cat([torch.bmm(wide, phi)[0].T for _, phi in self._pieces()])

    def _pieces(self) -> Iterator[Piece]:
        if self._is_cached and not self._cache:
            self._cache = [(slice(0, self.users), torch.cat([phi for _, phi in self._drawn()], -1))]
        return iter(self._cache) if self._is_cached else self._drawn()

    def _drawn(self) -> Iterator[Piece]:
        width = max(1, TILE_VALUES // self.rows)
        for index, left in enumerate(range(0, self.users, width)):
            columns = slice(left, min(left + width, self.users))
            values = np.empty((1, self.rows, columns.stop - left), np.float32)
            rng = np.random.Generator(np.random.Philox(np.random.SeedSequence([self.seed, index])))
            rng.standard_normal(out=values[0], dtype=np.float32)
            values *= np.float32(1 / math.sqrt(self.rows))
            yield columns, torch.from_numpy(values).to(self.device)


def make_exchange(config: Config, users: int, device: torch.device | str = "cpu") -> Exchange:
    """Return the exchange of a configuration; raise `ConfigError` if its projection would hide nothing."""
    if config.exchange == "off":
        return Exchange()
    if not config.exchange:
        return IdentityProjection(users)
    projection = Projection(users, ratio=config.exchange, seed=config.seed, device=device)
    if not projection.protected and "projection" not in config.unprotected:
        raise ConfigError(
            f"a projection of {users:,} common user(s) with exchange = {config.exchange:g} hides nothing; "
            f"use more users, or allow it with {setting('unprotected', 'projection')}"
        )
    return projection

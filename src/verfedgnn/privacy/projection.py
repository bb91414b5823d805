r"""Random projection of neighbourhoods (Sec. 4.4, Theorems 1 and 2).

.. math::
    Y = \Phi X, \quad \hat X = \Phi^T Y, \quad \Phi \in R^{q \times N}, \quad \Phi_{ij} \sim N(0, 1/q)

With a block size B < N, users are cut into blocks of B and Phi is block-diagonal. Each block has its own
Gaussian matrix and satisfies Theorem 1 separately; the cost is O(N B) instead of O(N q). B >= N is the
paper's Phi.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np
import torch
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.core.errors import ConfigError
from verfedgnn.core.option_names import setting

TILE_VALUES = 1 << 22
"""Number of values of Phi that are drawn at a time (16 MiB)."""
CACHE_VALUES = 1 << 28
"""Largest number of values of Phi that is cached (1 GiB).

A larger Phi is redrawn from its seed for each use.
"""
MOST_VALUES = 1 << 34
"""Largest number of values of Phi. Redrawing it takes about 90 seconds on one core, twice a round."""


@dataclass(frozen=True)
class Tile:
    """A piece of Phi: all rows of one block and a range of its columns."""

    rows: slice
    columns: slice
    index: int

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and columns."""
        return self.rows.stop - self.rows.start, self.columns.stop - self.columns.start


Piece = tuple[slice, slice, Tensor]
"""Rows, columns and values (B, q, w) of B successive blocks of one shape, or of some columns of one large
block.
"""


class Projection:
    """The projection Phi for N users, defined by its seed alone and therefore equal on every device."""

    def __init__(
        self,
        users: int,
        *,
        ratio: float,
        block: int = 0,
        seed: int = 0,
        device: torch.device | str = "cpu",
        cache_values: int = CACHE_VALUES,
    ) -> None:
        self.users = users
        self.seed = seed
        self.device = torch.device(device)
        bounds = cut_blocks(users, block)
        self.tiles: list[Tile] = []
        self.protected = True
        self.rows = 0
        values = 0
        for start, stop in bounds:
            q = block_rows(stop - start, ratio)
            self.protected &= is_protected(stop - start, q)
            width = max(1, TILE_VALUES // q)
            for left in range(start, stop, width):
                right = min(left + width, stop)
                self.tiles.append(Tile(slice(self.rows, self.rows + q), slice(left, right), len(self.tiles)))
            self.rows += q
            values += q * (stop - start)
        if values > MOST_VALUES:
            raise ConfigError(
                f"with exchange.block = {block}, the projection of {users:,} users has {values:.1e} values, too many to "
                "draw in every round; set exchange.block = 256, which protects each block equally well"
            )
        self._cache: list[Piece] | None = [] if values <= cache_values else None

    def project(self, x: Tensor) -> Tensor:
        """Compute Y = Phi X: (N, C) -> (q, C) (eq. 13)."""
        y = x.new_zeros(self.rows, x.shape[1])
        for rows, columns, phi in self._pieces():
            _blocks_of(y[rows], phi).baddbmm_(phi, _blocks_of(x[columns], phi))
        return y

    def reconstruct(self, y: Tensor) -> Tensor:
        """Compute X^ = Phi^T Y: (q, C) -> (N, C) (eq. 14)."""
        x = y.new_empty(self.users, y.shape[1])
        for rows, columns, phi in self._pieces():
            x[columns] = torch.bmm(phi.mT, _blocks_of(y[rows], phi)).flatten(0, 1)
        return x

    def _pieces(self) -> Iterator[Piece]:
        if self._cache is None:
            return map(self._drawn, self._groups())
        if not self._cache:
            drawn = map(self._drawn, self._groups())
            self._cache += [
                _joined(list(pieces)) for _, pieces in groupby(drawn, lambda piece: piece[0].start)
            ]
        return iter(self._cache)

    def _groups(self) -> Iterator[list[Tile]]:
        """Group successive tiles of one shape, up to `TILE_VALUES` values together."""
        group: list[Tile] = []
        for tile in self.tiles:
            if group and (
                tile.shape != group[0].shape or (len(group) + 1) * math.prod(tile.shape) > TILE_VALUES
            ):
                yield group
                group = []
            group.append(tile)
        yield group

    def _drawn(self, tiles: list[Tile]) -> Piece:
        q, width = tiles[0].shape
        values = np.empty((len(tiles), q, width), np.float32)
        for tile, place in zip(tiles, values, strict=True):
            rng = np.random.Generator(np.random.Philox(np.random.SeedSequence([self.seed, tile.index])))
            rng.standard_normal(out=place, dtype=np.float32)
        values *= np.float32(1 / math.sqrt(q))
        first = tiles[0]
        last = tiles[-1]
        rows = slice(first.rows.start, last.rows.stop)
        columns = slice(first.columns.start, last.columns.stop)
        return rows, columns, torch.from_numpy(values).to(self.device)


class IdentityProjection:
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


def make_projection(
    config: Config, users: int, device: torch.device | str
) -> Projection | IdentityProjection | None:
    """Return the projection of the exchange, or None without an exchange; raise `ConfigError` if it would hide nothing."""
    exchange = config.exchange
    if exchange.mode == "off":
        return None
    if exchange.mode == "exact":
        return IdentityProjection(users)
    projection = Projection(
        users, ratio=exchange.ratio, block=exchange.block, seed=config.seed, device=device
    )
    if not projection.protected and "projection" not in config.unprotected:
        raise ConfigError(
            f"a projection of {users:,} common user(s) with exchange.ratio = {exchange.ratio:g} hides nothing; "
            f"use more users, or allow it with {setting('unprotected', 'projection')}"
        )
    return projection


def _joined(pieces: list[Piece]) -> Piece:
    """Join the pieces of one large block, so that a cached block needs one product.

    Other lists have one piece.
    """
    rows, first, _ = pieces[0]
    _, last, _ = pieces[-1]
    return rows, slice(first.start, last.stop), torch.cat([phi for _, _, phi in pieces], -1)


def _blocks_of(x: Tensor, phi: Tensor) -> Tensor:
    """View rows (B w, C) as (B, w, C), one matrix for each block of `phi`."""
    return x.view(len(phi), -1, x.shape[1])


def cut_blocks(users: int, block: int) -> list[tuple[int, int]]:
    """Return the start and stop of each block of users. With `block` = 0 there is one block.

    There are `users` // `block` blocks. The remaining users are spread over the last blocks, so that no block
    is smaller than `block` and successive blocks mostly have the same size.
    """
    count = max(1, users // block) if block else 1
    size, larger = divmod(users, count)
    bounds = [size * i + max(0, i - (count - larger)) for i in range(count + 1)]
    return list(pairwise(bounds))


def block_rows(users: int, ratio: float) -> int:
    """Return q for a block of `users`: users / ratio, rounded down, at least 1."""
    return max(1, int(users / ratio))


def is_protected(users: int, rows: int) -> bool:
    """Return whether Theorem 1's condition 2q <= N + 1 holds and q < N.

    A block of one user has q = N: its value would be sent times a known number.
    """
    return 2 * rows <= users + 1 and rows < users
